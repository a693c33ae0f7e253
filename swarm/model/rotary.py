"""Rotary position embeddings (RoFormer, arXiv:2104.09864) and their context extensions.

Frequencies as in transformers' modeling_rope_utils, in fp32. Heads are laid out as Hugging Face
has them: the pair of component i is component i + head_dim / 2.
"""

import math
from typing import NamedTuple

import torch
from torch import Tensor

from swarm.model.config import ModelConfig
from swarm.model.rope import Rope


class RotaryTables(NamedTuple):
    """Factors for some rows, in the compute dtype; the sine's first half is negated."""

    cos: Tensor  # [rows, 1, head_dim]
    sin: Tensor  # [rows, 1, head_dim]


class Rotary:
    """The rotary embedding of one model."""

    def __init__(self, config: ModelConfig, dtype: torch.dtype) -> None:
        self._dtype = dtype
        self._frequencies = inverse_frequencies(config.rope, config.head_dim)
        self._scale = attention_scale(config.rope)

    def tables(self, positions: Tensor) -> RotaryTables:
        """Factors for rows at integer `positions` [rows]."""
        angles = positions.to(torch.float32).unsqueeze(1) * self._frequencies  # [rows, head_dim / 2]
        cos, sin = angles.cos() * self._scale, angles.sin() * self._scale
        return RotaryTables(
            torch.cat((cos, cos), dim=-1).to(self._dtype).unsqueeze(1),
            torch.cat((-sin, sin), dim=-1).to(self._dtype).unsqueeze(1),
        )


def rotate_(heads: Tensor, tables: RotaryTables) -> None:
    """Turn `heads` [rows, heads, head_dim] by their positions, in place."""
    swapped = heads.roll(heads.shape[-1] // 2, dims=-1)
    heads.mul_(tables.cos).addcmul_(swapped, tables.sin)


def inverse_frequencies(rope: Rope, head_dim: int) -> Tensor:
    """Radians per token for each pair of components, [head_dim / 2] fp32."""
    exponents = torch.arange(0, head_dim, 2, dtype=torch.float32) / head_dim
    plain = 1.0 / (rope.theta**exponents)
    if rope.type == "linear":
        return plain / rope.factor
    if rope.type == "llama3":
        return _llama3(plain, rope)
    if rope.type == "yarn":
        return _yarn(plain, rope, head_dim)
    return plain


def attention_scale(rope: Rope) -> float:
    """What sines and cosines are multiplied with; 1 but for YaRN (arXiv:2309.00071, section 3.4)."""
    if rope.type != "yarn":
        return 1.0
    if rope.attention_factor is not None:
        return rope.attention_factor
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
