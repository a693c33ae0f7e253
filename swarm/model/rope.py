"""The rotary embedding that a config.json asks for, in the older and the newer spelling.

As in transformers: a `rope_scaling` that says anything is all there is, whatever `rope_parameters` says
beside it; only the base frequency may stand outside.
"""

import dataclasses
from dataclasses import dataclass

from swarm.errors import UnsupportedModel
from swarm.model.fields import Fields
from swarm.model.ranges import RANGES

SUPPORTED_ROPE_TYPES = ("default", "linear", "llama3", "yarn")
_LEAST_TURNS = 1e-6


@dataclass(frozen=True, slots=True)
class Rope:
    """Rotary position embedding: which kind, and its parameters (names as Hugging Face's)."""

    type: str = "default"
    theta: float = 10_000.0
    factor: float = 1.0
    original_context_length: int = 0  # llama3, yarn
    low_freq_factor: float = 1.0  # llama3
    high_freq_factor: float = 4.0  # llama3
    beta_fast: float = 32.0  # yarn
    beta_slow: float = 1.0  # yarn
    attention_factor: float | None = None  # yarn
    mscale: float | None = None  # yarn
    mscale_all_dim: float | None = None  # yarn
    truncate: bool = True  # yarn


def read_rope(fields: Fields) -> Rope:
    """The rotary embedding. Raises `BrokenModel` and `UnsupportedModel` as `read_config` does."""
    recipe = _recipe(fields)
    rope_type = recipe.text_or("rope_type", recipe.text_or("type", "default"))
    if rope_type not in SUPPORTED_ROPE_TYPES:
        raise UnsupportedModel(
            f"The rotary embedding {rope_type!r} in {fields.path} is not supported",
            f"Supported: {', '.join(SUPPORTED_ROPE_TYPES)}.",
        )
    if recipe.number_or("partial_rotary_factor", fields.number_or("partial_rotary_factor", 1.0)) != 1.0:
        raise UnsupportedModel(f"A partial rotary embedding, as in {fields.path}, is not supported")
    theta = recipe.number_or("rope_theta", fields.number_or("rope_theta", 10_000.0))
    rope = Rope(type=rope_type, theta=theta)
    return rope if rope_type == "default" else _read_scaling(rope, recipe, fields)


def extended_context(rope: Rope, fields: Fields) -> int:
    """How many tokens the model is for: what the recipe stretches its own context to, if it does.

    Raises `BrokenModel` when that is more than any model has.
    """
    context_length = fields.count("max_position_embeddings")
    if rope.type == "linear":
        stretched = context_length * rope.factor
    elif rope.type == "yarn":
        stretched = rope.original_context_length * rope.factor
    else:  # Llama 3's recipe says what was already stretched
        return context_length
    if stretched > RANGES["max_position_embeddings"].most:
        raise fields.broken("max_position_embeddings", f"is {context_length:,}, stretched to {stretched:g}")
    return max(context_length, int(stretched))


def _recipe(fields: Fields) -> Fields:
    for name in ("rope_scaling", "rope_parameters"):
        section = fields.section(name)
        if section is not None and section.everything():
            if any(isinstance(value, dict) for value in section.everything().values()):
                raise UnsupportedModel(
                    f"A rotary embedding for each kind of layer, as in {fields.path}, is not supported"
                )
            return section
    return Fields(fields.path, {}, "rope_parameters.")


def _read_scaling(rope: Rope, recipe: Fields, fields: Fields) -> Rope:
    context_length = fields.count("max_position_embeddings")
    key = "original_max_position_embeddings"
    original = fields.count_or(
        key, recipe.count_or(key, context_length)
    )  # the outer wins, as in transformers
    factor = recipe.number_or("factor", context_length / original if rope.type == "yarn" else None)
    if factor is None:
        raise recipe.broken("factor", "is missing")
    rope = dataclasses.replace(rope, factor=factor)
    if rope.type == "linear":
        return rope
    rope = dataclasses.replace(rope, original_context_length=original)
    if rope.type == "llama3":
        low, high = recipe.number("low_freq_factor"), recipe.number("high_freq_factor")
        if high <= low:
            raise recipe.broken("high_freq_factor", f"is {high}, not above low_freq_factor, {low}")
        return dataclasses.replace(rope, low_freq_factor=low, high_freq_factor=high)
    return dataclasses.replace(
        rope,
        beta_fast=_turns(recipe, "beta_fast", 32.0),
        beta_slow=_turns(recipe, "beta_slow", 1.0),
        attention_factor=recipe.number_or("attention_factor", None),
        mscale=recipe.number_or("mscale", None),
        mscale_all_dim=recipe.number_or("mscale_all_dim", None),
        truncate=recipe.flag("truncate", True),
    )


def _turns(recipe: Fields, name: str, default: float) -> float:
    """A number of full turns that a logarithm is taken of; 0 is the default, as in transformers."""
    turns = recipe.number_or(name, default) or default
    if turns < _LEAST_TURNS:
        raise recipe.broken(name, f"is {turns}, neither 0 nor at least {_LEAST_TURNS:g}")
    return turns
