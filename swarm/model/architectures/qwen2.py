"""``qwen2``: biases on q, k and v, always; sliding windows by layer."""

from swarm.model.architectures.traits import Traits, windows_by_layer
from swarm.model.fields import Fields


def read_traits(fields: Fields) -> Traits:
    """The traits of a Qwen2 or Qwen2.5 model."""
    return Traits(qkv_bias=True, windows=windows_by_layer(fields))
