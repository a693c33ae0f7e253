"""``llama``: the plain decoder; biases only where config.json asks for them."""

from swarm.model.architectures.traits import Traits
from swarm.model.fields import Fields


def read_traits(fields: Fields) -> Traits:
    """The traits of a Llama model (also SmolLM2, TinyLlama, Yi and other llama-shaped ones)."""
    bias = fields.flag("attention_bias", False)
    return Traits(qkv_bias=bias, output_bias=bias, mlp_bias=fields.flag("mlp_bias", False))
