"""What may differ from one family of decoder to the next, as values.

Every supported family is: RMS norm, grouped-query attention with rotary positions, RMS norm, gated
SiLU MLP. A file of this folder says, for one ``model_type``, which of these traits it has.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from swarm.errors import UnsupportedModel
from swarm.model.fields import Fields, brief

Windows = tuple[int | None, ...]

# What transformers' configuration classes of all these families have for a key that is left out.
COMMON_DEFAULTS: Mapping[str, object] = {
    "hidden_size": 4096,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "rms_norm_eps": 1e-6,
}


@dataclass(frozen=True, slots=True)
class Traits:
    """The differences of one model from the plain decoder."""

    qkv_bias: bool = False
    output_bias: bool = False
    mlp_bias: bool = False
    qk_norm: bool = False
    windows: Windows = ()  # by block, None for full attention; empty when every block has it


def windows_by_layer(fields: Fields) -> Windows:
    """Sliding windows as the Qwen families write them: a switch, a size, and which layers slide."""
    slides = fields.flag("use_sliding_window", False)
    window = fields.count_or("sliding_window", None) if slides else None
    if fields.raw("layer_types") is not None:
        return windows_by_name(fields, window)
    if window is None:
        return ()
    full = fields.count("max_window_layers")
    return tuple(window if block >= full else None for block in range(fields.count("num_hidden_layers")))


def windows_by_name(fields: Fields, window: int | None) -> Windows:
    """Sliding windows where `layer_types` names the kind of each block's attention."""
    num_blocks, names = fields.count("num_hidden_layers"), fields.raw("layer_types")
    if not isinstance(names, list) or len(names) != num_blocks:
        raise fields.broken("layer_types", f"is not a list of {num_blocks} names")
    if window is None and "sliding_attention" in names:
        raise fields.broken("layer_types", "has blocks that slide, and no size of the window is given")
    return tuple(_window_of(name, window) for name in names)


def _window_of(layer_type: object, window: int | None) -> int | None:
    if layer_type == "sliding_attention":
        return window
    if layer_type == "full_attention":
        return None
    raise UnsupportedModel(
        f"The layer type {brief(layer_type)} is not supported",
        "Supported: full_attention, sliding_attention.",
    )
