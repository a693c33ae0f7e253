"""``qwen3``: RMS norm on each head of q and k; a head_dim of its own; sliding windows by layer."""

from swarm.model.architectures import qwen2
from swarm.model.architectures.traits import Traits, windows_by_layer
from swarm.model.fields import Fields

DEFAULTS = {**qwen2.DEFAULTS, "head_dim": 128}


def read_traits(fields: Fields) -> Traits:
    """The traits of a dense Qwen3 model."""
    bias = fields.flag("attention_bias", False)
    return Traits(qkv_bias=bias, output_bias=bias, qk_norm=True, windows=windows_by_layer(fields))
