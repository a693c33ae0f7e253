"""Rotary position embeddings (RoFormer, arXiv:2104.09864) and their context extensions.

Frequencies as in transformers' modeling_rope_utils, in fp32. The pair of component i of those that turn
is the one half of them further on, or its neighbour where the recipe says interleaved.
"""

import math
from typing import NamedTuple

import torch
from torch import Tensor

from swarm.model.rope import Rope


class RotaryTables(NamedTuple):
    """Factors for some rows, in the compute dtype; the sine of each pair's first is negated."""

    cos: Tensor  # [rows, 1, components that turn]
    sin: Tensor  # [rows, 1, components that turn]
    interleaved: bool
    query_scale: Tensor | None  # [rows, 1, 1]


class Rotary:
    """A rotary embedding of a model."""

    def __init__(self, rope: Rope, head_dim: int, dtype: torch.dtype) -> None:
        self._dtype = dtype
        self._rope = rope
        self._frequencies = inverse_frequencies(rope, head_dim)
        self._scale = attention_scale(rope)

    def tables(self, positions: Tensor) -> RotaryTables:
        """Factors for rows at integer `positions` [rows]."""
        angles = positions.to(torch.float32).unsqueeze(1) * self._frequencies  # [rows, head_dim / 2]
        cos, sin = angles.cos() * self._scale, angles.sin() * self._scale
        join = _interleave if self._rope.interleaved else _halves
        return RotaryTables(
            join(cos, cos).to(self._dtype).unsqueeze(1),
            join(-sin, sin).to(self._dtype).unsqueeze(1),
            self._rope.interleaved,
            self._query_scale(positions) if self._rope.query_growth else None,
        )

    def _query_scale(self, positions: Tensor) -> Tensor:
        filled = (positions // self._rope.original_context_length).to(torch.float32)
        return (1 + self._rope.query_growth * filled.log1p()).to(self._dtype).view(-1, 1, 1)


def _halves(first: Tensor, second: Tensor) -> Tensor:
    return torch.cat((first, second), dim=-1)


def _interleave(first: Tensor, second: Tensor) -> Tensor:
    return torch.stack((first, second), dim=-1).flatten(-2)


def rotate_(heads: Tensor, tables: RotaryTables) -> None:
    """Turn `heads` [rows, heads, head_dim] by their positions, in place."""
    turning = tables.cos.shape[-1]
    if turning < heads.shape[-1]:
        heads = heads[..., :turning]
    swapped = _neighbours(heads) if tables.interleaved else heads.roll(turning // 2, dims=-1)
    heads.mul_(tables.cos).addcmul_(swapped, tables.sin)


def _neighbours(heads: Tensor) -> Tensor:
    return heads.view(*heads.shape[:-1], -1, 2).flip(-1).flatten(-2)


def inverse_frequencies(rope: Rope, head_dim: int) -> Tensor:
    """Radians per token for each pair of components that turns, fp32."""
    turning = rope.turning(head_dim)
    exponents = torch.arange(0, turning, 2, dtype=torch.float32) / turning
    plain = 1.0 / (rope.theta**exponents)
    if rope.type == "linear":
        return plain / rope.factor
    if rope.type == "proportional":
        plain[int(rope.share * head_dim // 2) :] = 0
        return plain / rope.factor
    if rope.type == "longrope":
        return 1.0 / (torch.tensor(rope.short_factors) * rope.theta**exponents)
    if rope.type == "llama3":
        return _llama3(plain, rope)
    if rope.type == "yarn":
        return _yarn(plain, rope, turning)
    return plain


def attention_scale(rope: Rope) -> float:
    """What sines and cosines are multiplied with; 1 but for LongRoPE and YaRN (arXiv:2309.00071, 3.4)."""
    if rope.attention_factor is not None:
        return rope.attention_factor
    if rope.type != "yarn":
        return 1.0
    if rope.mscale and rope.mscale_all_dim:
        return _magnitude(rope.factor, rope.mscale) / _magnitude(rope.factor, rope.mscale_all_dim)
    return _magnitude(rope.factor, 1.0)


def _magnitude(factor: float, mscale: float) -> float:
    return 1.0 if factor <= 1 else 0.1 * mscale * math.log(factor) + 1.0


def _llama3(plain: Tensor, rope: Rope) -> Tensor:
    """Llama 3.1: long wavelengths are stretched, short ones kept, those between interpolated."""
    turns = rope.original_context_length * plain / (2 * math.pi)  # full turns within the original context
    share = (turns - rope.low_freq_factor) / (rope.high_freq_factor - rope.low_freq_factor)
    share = share.clamp(0, 1)  # 0: stretch, 1: keep
    return (1 - share) * plain / rope.factor + share * plain


def _yarn(plain: Tensor, rope: Rope, head_dim: int) -> Tensor:
    """YaRN, section 3.2 ("NTK-by-parts"): a linear ramp between stretched and kept components."""

    def component(turns: float) -> float:
        """The component that makes so many turns within the original context."""
        wavelength = rope.original_context_length / (turns * 2 * math.pi)
        return head_dim * math.log(wavelength) / (2 * math.log(rope.theta))

    low, high = component(rope.beta_fast), component(rope.beta_slow)
    if rope.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, head_dim - 1)
    width = high - low or 0.001  # as in transformers
    share = ((torch.arange(head_dim // 2, dtype=torch.float32) - low) / width).clamp(0, 1)  # 1: stretch
    return plain / rope.factor * share + plain * (1 - share)
