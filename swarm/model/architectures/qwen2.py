"""``qwen2``: biases on q, k and v, always; sliding windows by layer."""

from swarm.model.architectures.traits import COMMON_DEFAULTS, Traits, windows_by_layer
from swarm.model.fields import Fields

DEFAULTS = {
    **COMMON_DEFAULTS,
    "vocab_size": 151_936,
    "intermediate_size": 22_016,
    "num_key_value_heads": 32,
    "max_position_embeddings": 32_768,
    "sliding_window": 4096,
    "max_window_layers": 28,
}


def read_traits(fields: Fields) -> Traits:
    """The traits of a Qwen2 or Qwen2.5 model."""
    return Traits(qkv_bias=True, windows=windows_by_layer(fields))
