"""The rotary embedding that a config.json asks for, in the older and the newer spelling.

As in transformers: a `rope_scaling` that says anything is all there is, whatever `rope_parameters` says
beside it; only the base frequency may stand outside.

Two recipes of transformers change all positions at once when a text grows past the length that the model
was first trained on (`dynamic`, `longrope`), so that its first tokens would have to be computed again. Here
they are computed up to that length, where they are fixed, and the context ends there.
"""

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass

from swarm.errors import UnsupportedModel
from swarm.model.fields import Fields
from swarm.model.ranges import RANGES

SUPPORTED_ROPE_TYPES = ("default", "linear", "dynamic", "llama3", "yarn", "longrope", "proportional")
_NO_ALIASES: Mapping[str, str] = {}
_LEAST_TURNS = 1e-6


@dataclass(frozen=True, slots=True)
class Rope:
    """Rotary position embedding: which kind, and its parameters (names as Hugging Face's)."""

    type: str = "default"
    theta: float = 10_000.0
    factor: float = 1.0
    original_context_length: int = 0  # llama3, yarn, longrope
    low_freq_factor: float = 1.0  # llama3
    high_freq_factor: float = 4.0  # llama3
    beta_fast: float = 32.0  # yarn
    beta_slow: float = 1.0  # yarn
    attention_factor: float | None = None  # yarn, longrope
    mscale: float | None = None  # yarn
    mscale_all_dim: float | None = None  # yarn
    truncate: bool = True  # yarn
    short_factors: tuple[float, ...] = ()  # longrope: a divisor for each frequency
    share: float = 1.0  # of a head's components that turn, the first ones
    interleaved: bool = False  # the pair of component 2i is 2i + 1, not i + half
    query_growth: float = 0.0  # queries grow by so much times ln(1 + how often the original context is full)

    def turning(self, head_dim: int) -> int:
        """How many components of a head turn."""
        return head_dim if self.type == "proportional" else int(head_dim * self.share)


def read_rope(
    fields: Fields,
    *,
    partial: bool = False,
    interleaved: bool = False,
    aliases: Mapping[str, str] = _NO_ALIASES,
) -> Rope:
    """The rotary embedding of all blocks.

    A family says whether part of a head may turn (`partial`), how pairs lie, and what else it calls a type.
    Raises `BrokenModel` and `UnsupportedModel` as `read_config` does.
    """
    recipe = _recipe(fields)
    theta = recipe.number_or("rope_theta", fields.number_or("rope_theta", 10_000.0))
    rope = Rope(type=_read_type(recipe, fields, aliases), theta=theta, interleaved=interleaved)
    return _read_kind(rope, recipe, fields, partial)


def read_layered_ropes(
    fields: Fields, theta: float, sliding_theta_key: str, sliding_theta: float
) -> tuple[Rope, Rope]:
    """Those of blocks that see all and of blocks that slide, as Gemma 3 writes them. A `rope_scaling` is for
    the former. Raises as `read_rope`."""
    newer = fields.section("rope_parameters") or Fields(fields.path, {})
    full, sliding = newer.section("full_attention"), newer.section("sliding_attention")
    scaling = fields.section("rope_scaling")
    parts = {**(full.everything() if full else {}), **(scaling.everything() if scaling else {})}
    recipe = Fields(fields.path, parts, "rope_scaling." if scaling else "rope_parameters.full_attention.")
    sliding = sliding or Fields(fields.path, {})
    bases = (
        recipe.number_or("rope_theta", fields.number_or("rope_theta", theta)),
        sliding.number_or("rope_theta", fields.number_or(sliding_theta_key, sliding_theta)),
    )
    ropes = [
        _read_kind(Rope(type=_read_type(each, fields, _NO_ALIASES), theta=base), each, fields, partial=False)
        for each, base in zip((recipe, sliding), bases, strict=True)
    ]
    return ropes[0], ropes[1]


def _read_type(recipe: Fields, fields: Fields, aliases: Mapping[str, str]) -> str:
    rope_type = recipe.text_or("rope_type", recipe.text_or("type", "default"))
    rope_type = aliases.get(rope_type, rope_type)
    if rope_type not in SUPPORTED_ROPE_TYPES:
        raise UnsupportedModel(
            f"The rotary embedding {rope_type!r} in {fields.path} is not supported",
            f"Supported: {', '.join(SUPPORTED_ROPE_TYPES)}.",
        )
    return rope_type


def _read_kind(rope: Rope, recipe: Fields, fields: Fields, partial: bool) -> Rope:
    share = recipe.number_or("partial_rotary_factor", fields.number_or("partial_rotary_factor", 1.0))
    if share != 1.0 and not partial and rope.type != "proportional":
        raise UnsupportedModel(f"A partial rotary embedding, as in {fields.path}, is not supported")
    rope = dataclasses.replace(rope, share=share)
    if rope.type == "dynamic":
        return dataclasses.replace(rope, type="default")
    return rope if rope.type == "default" else _read_scaling(rope, recipe, fields)


def extended_context(rope: Rope, fields: Fields) -> int:
    """How many tokens the model is for: what the recipe stretches its own context to, if it does.

    Raises `BrokenModel` when that is more than any model has.
    """
    context_length = fields.count("max_position_embeddings")
    if rope.type == "linear":
        stretched = context_length * rope.factor
    elif rope.type == "yarn":
        stretched = rope.original_context_length * rope.factor
    elif rope.type == "longrope":
        return min(context_length, rope.original_context_length)
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
    has_own_factor = {"yarn": context_length / original, "longrope": context_length / original}
    factor = recipe.number_or("factor", {**has_own_factor, "proportional": 1.0}.get(rope.type))
    if factor is None:
        raise recipe.broken("factor", "is missing")
    rope = dataclasses.replace(rope, factor=factor)
    if rope.type in ("linear", "proportional"):
        return rope
    rope = dataclasses.replace(rope, original_context_length=original)
    if rope.type == "llama3":
        low, high = recipe.number("low_freq_factor"), recipe.number("high_freq_factor")
        if high <= low:
            raise recipe.broken("high_freq_factor", f"is {high}, not above low_freq_factor, {low}")
        return dataclasses.replace(rope, low_freq_factor=low, high_freq_factor=high)
    if rope.type == "longrope":
        return dataclasses.replace(
            rope,
            attention_factor=recipe.number_or("attention_factor", _longrope_scale(factor, original)),
            short_factors=recipe.numbers("short_factor"),
        )
    return dataclasses.replace(
        rope,
        beta_fast=_turns(recipe, "beta_fast", 32.0),
        beta_slow=_turns(recipe, "beta_slow", 1.0),
        attention_factor=recipe.number_or("attention_factor", None),
        mscale=recipe.number_or("mscale", None),
        mscale_all_dim=recipe.number_or("mscale_all_dim", None),
        truncate=recipe.flag("truncate", True),
    )


def _longrope_scale(factor: float, original: int) -> float:
    """LongRoPE (arXiv:2402.13753) as in transformers."""
    return 1.0 if factor <= 1 or original == 1 else math.sqrt(1 + math.log(factor) / math.log(original))


def _turns(recipe: Fields, name: str, default: float) -> float:
    """A number of full turns that a logarithm is taken of; 0 is the default, as in transformers."""
    turns = recipe.number_or(name, default) or default
    if turns < _LEAST_TURNS:
        raise recipe.broken(name, f"is {turns}, neither 0 nor at least {_LEAST_TURNS:g}")
    return turns
