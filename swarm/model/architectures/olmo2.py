"""``olmo2``: norms only after attention and MLP, and over all heads of q and k together."""

from swarm.model.architectures.traits import COMMON_DEFAULTS, BlockNames, Design, Traits
from swarm.model.fields import Fields

DEFAULTS = {
    **COMMON_DEFAULTS,
    "vocab_size": 50_304,
    "intermediate_size": 11_008,
    "max_position_embeddings": 2048,
    "rms_norm_eps": 1e-5,
    "eos_token_id": 50_279,
}
NAMES = BlockNames(
    input_norm="",
    attention_out_norm="post_attention_layernorm",
    mlp_norm="",
    mlp_out_norm="post_feedforward_layernorm",
)


def read_traits(fields: Fields) -> Traits:
    """The traits of an OLMo 2 model."""
    bias = fields.flag("attention_bias", False)
    return Traits(
        qkv_bias=bias,
        output_bias=bias,
        qk_norm=True,
        design=Design(whole_qk_norm=True, names=NAMES),
    )
