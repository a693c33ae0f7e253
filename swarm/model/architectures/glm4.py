"""``glm4``: norms before and after, half of each head turns in neighbouring pairs, fused gate and up."""

from swarm.model.architectures.traits import COMMON_DEFAULTS, BlockNames, Design, Traits
from swarm.model.fields import Fields
from swarm.model.rope import read_rope

DEFAULTS = {
    **COMMON_DEFAULTS,
    "vocab_size": 151_552,
    "intermediate_size": 13_696,
    "num_hidden_layers": 40,
    "num_key_value_heads": 2,
    "head_dim": 128,
    "max_position_embeddings": 131_072,
    "rms_norm_eps": 1.5625e-7,
    "partial_rotary_factor": 0.5,
    "attention_bias": True,
    "eos_token_id": [151_329, 151_336, 151_338],
}
NAMES = BlockNames(
    attention_out_norm="post_self_attn_layernorm",
    gate_up=("mlp.gate_up_proj",),
    mlp_out_norm="post_mlp_layernorm",
)


def read_traits(fields: Fields) -> Traits:
    """The traits of a dense GLM-4-0414 model."""
    return Traits(
        qkv_bias=fields.flag("attention_bias", True),
        design=Design(names=NAMES),
        rope=read_rope(fields, partial=True, interleaved=True),
    )
