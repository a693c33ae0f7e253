"""``llama``: the plain decoder; biases only where config.json asks for them."""

from swarm.model.architectures.traits import COMMON_DEFAULTS, Traits
from swarm.model.fields import Fields

DEFAULTS = {
    **COMMON_DEFAULTS,
    "vocab_size": 32_000,
    "intermediate_size": 11_008,
    "max_position_embeddings": 2048,
    "bos_token_id": 1,
    "eos_token_id": 2,
}


def read_traits(fields: Fields) -> Traits:
    """The traits of a Llama model (also SmolLM2, TinyLlama, Yi and other llama-shaped ones)."""
    bias = fields.flag("attention_bias", False)
    return Traits(qkv_bias=bias, output_bias=bias, mlp_bias=fields.flag("mlp_bias", False))
