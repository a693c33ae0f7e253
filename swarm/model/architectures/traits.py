"""What may differ from one family of decoder to the next, as values.

Every supported family is: RMS norm, grouped-query attention with rotary positions, RMS norm, gated
SiLU MLP. A file of this folder says, for one ``model_type``, which of these traits it has.
"""

from dataclasses import dataclass

from swarm.errors import UnsupportedModel
from swarm.model.fields import Fields

Windows = tuple[int | None, ...]


@dataclass(frozen=True, slots=True)
class Traits:
    """The differences of one model from the plain decoder."""

    qkv_bias: bool = False
    output_bias: bool = False
    mlp_bias: bool = False
    qk_norm: bool = False
    default_head_dim: int | None = None  # None: hidden_size // num_attention_heads
    windows: Windows = ()  # by block, None for full attention; empty when every block has it


def windows_by_layer(fields: Fields) -> Windows:
    """Sliding windows as the Qwen families write them: a switch, a size, and which layers slide."""
    window = fields.count_or("sliding_window", None)
    if window is None or not fields.flag("use_sliding_window", False):
        return ()
    num_blocks = fields.count("num_hidden_layers")
    layer_types = fields.raw("layer_types")
    if layer_types is None:
        full = fields.number_or("max_window_layers", 28)  # the families' own default
        return tuple(window if block >= full else None for block in range(num_blocks))
    if not isinstance(layer_types, list) or len(layer_types) != num_blocks:
        raise fields.broken("layer_types", f"is not a list of {num_blocks} names")
    return tuple(_window_of(layer_type, window) for layer_type in layer_types)


def _window_of(layer_type: object, window: int) -> int | None:
    if layer_type == "sliding_attention":
        return window
    if layer_type == "full_attention":
        return None
    raise UnsupportedModel(
        f"The layer type {layer_type!r} is not supported", "Supported: full_attention, sliding_attention."
    )
