"""``gemma3_text``: as Gemma 2, scores not capped, heads normed, and a rotary base for each kind of block."""

from swarm.model.architectures import gemma2
from swarm.model.architectures.traits import Traits, layer_types_every, windows_by_name
from swarm.model.fields import Fields
from swarm.model.rope import read_layered_ropes

DEFAULTS = {
    **gemma2.DEFAULTS,
    "vocab_size": 262_208,
    "max_position_embeddings": 131_072,
    "attn_logit_softcapping": None,
    "final_logit_softcapping": None,
}


def read_traits(fields: Fields) -> Traits:
    """The traits of a Gemma 3 text model."""
    period = fields.count_or("sliding_window_pattern", 6)
    fields = fields.with_fallback("layer_types", layer_types_every(fields, period))
    bias = fields.flag("attention_bias", False)
    windows = windows_by_name(fields, fields.count_or("sliding_window", None))
    rope, sliding = read_layered_ropes(fields, 1e6, "rope_local_base_freq", 1e4)
    return Traits(
        qkv_bias=bias,
        output_bias=bias,
        qk_norm=True,
        windows=windows,
        design=gemma2.read_design(fields, None),
        rope=rope,
        ropes=tuple(rope if window is None else sliding for window in windows),
    )
