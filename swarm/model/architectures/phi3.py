"""``phi3``: q, k, v in one tensor, gate and up in another; LongRoPE; part of a head may turn."""

from swarm.model.architectures.traits import COMMON_DEFAULTS, BlockNames, Design, Traits
from swarm.model.fields import Fields
from swarm.model.rope import read_rope

DEFAULTS = {
    **COMMON_DEFAULTS,
    "vocab_size": 32_064,
    "hidden_size": 3072,
    "intermediate_size": 8192,
    "max_position_embeddings": 4096,
    "original_max_position_embeddings": 4096,
    "rms_norm_eps": 1e-5,
    "bos_token_id": 1,
    "eos_token_id": 32_000,
}
_ALIASES = {"su": "longrope", "yarn": "longrope"}  # as older Phi-3 configurations call it
NAMES = BlockNames(qkv=("self_attn.qkv_proj",), gate_up=("mlp.gate_up_proj",))


def read_traits(fields: Fields) -> Traits:
    """The traits of a Phi-3, Phi-3.5, Phi-4 or Phi-4-mini model."""
    window = fields.count_or("sliding_window", None)
    return Traits(
        windows=() if window is None else (window,) * fields.count("num_hidden_layers"),
        design=Design(names=NAMES),
        rope=read_rope(fields, partial=True, aliases=_ALIASES),
    )
