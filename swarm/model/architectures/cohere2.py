"""``cohere2``: one layer norm, attention and MLP side by side, positions only in blocks that slide."""

from swarm.model.architectures.traits import (
    COMMON_DEFAULTS,
    BlockNames,
    Design,
    Traits,
    layer_types_every,
    windows_by_name,
)
from swarm.model.fields import Fields
from swarm.model.rope import read_rope

DEFAULTS = {
    **COMMON_DEFAULTS,
    "vocab_size": 256_000,
    "hidden_size": 8192,
    "intermediate_size": 22_528,
    "num_hidden_layers": 40,
    "num_attention_heads": 64,
    "layer_norm_eps": 1e-5,
    "max_position_embeddings": 8192,
    "sliding_window": 4096,
    "logit_scale": 0.0625,
    "tie_word_embeddings": True,
    "bos_token_id": 5,
    "eos_token_id": 255_001,
}


def read_traits(fields: Fields) -> Traits:
    """The traits of a Cohere 2 model (Command R7B, Command A, Aya)."""
    period = fields.count_or("sliding_window_pattern", 4)
    fields = fields.with_fallback("layer_types", layer_types_every(fields, period))
    bias = fields.flag("attention_bias", False)
    windows = windows_by_name(fields, fields.count_or("sliding_window", None))
    rope = read_rope(fields, interleaved=True)
    return Traits(
        qkv_bias=bias,
        output_bias=bias,
        windows=windows,
        design=Design(
            norm="layer",
            parallel_residual=True,
            logit_multiplier=fields.number("logit_scale"),
            names=BlockNames(mlp_norm=""),
        ),
        rope=rope,
        ropes=tuple(None if window is None else rope for window in windows),
    )
