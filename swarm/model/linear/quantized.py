"""Weights in 8 and 4 bits: made from a weight [out, in], and the kernels that multiply rows with them.

8 bits: one scale for each output, symmetric. The rows are quantised too, each by its own largest value
and in two parts of 8 bits, because a few values of a row are far larger than the rest. The products are
whole numbers, so a row's result depends on nothing but that row, not even on how many there are.
4 bits: a scale and an offset for each 32 inputs of an output, and rows in bf16.
A row with a NaN or an infinity in it gives no finite number.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from swarm.model.linear.layouts import FLOATS, Kernel, Layout, Packed, Run

GROUP = 32  # inputs that share a scale in 4 bits
INT4_OUTPUTS = 16  # a weight in 4 bits has a multiple of so many
INT4_BYTES_PER_WEIGHT = 0.5 + 4 / GROUP  # scale and offset are in bf16
INT8_BYTES_PER_OUTPUT = 8  # a scale, and a zero that oneDNN asks for
_LARGEST = 127
_REST = 2 * _LARGEST  # what is left of a row after rounding is at most half a step
_LEAST_SCALE = 1e-30
_LEVELS = 15
_CLIPS = (1.0, 0.95, 0.9, 0.85, 0.8)  # of a group's range; what gives the smallest error is taken
_PART_ELEMENTS = 2**20  # of a weight that is quantised at a time


class Int8Weight(NamedTuple):
    """A weight in 8 bits: codes * scales."""

    codes: Tensor  # [out, in] int8
    scales: Tensor  # [out] fp32


class Int4Weight(NamedTuple):
    """A weight in 4 bits: (codes - 8) * scales + offsets, by group."""

    codes: Tensor  # [out, in] int32, 0 to 15
    scales: Tensor  # [out, in / GROUP] bf16
    offsets: Tensor  # [out, in / GROUP] bf16


def to_int8(weight: Tensor) -> Int8Weight:
    """Quantise by output."""
    codes = torch.empty(weight.shape, dtype=torch.int8)
    scales = torch.empty(len(weight))
    step = max(1, _PART_ELEMENTS // weight.shape[1])
    for start in range(0, len(weight), step):
        part = weight[start : start + step].to(torch.float32)
        scale = _scales_of(part)
        scales[start : start + step] = scale.squeeze(1)
        codes[start : start + step] = (part / scale).round_()
    return Int8Weight(codes, scales)


def to_int4(weight: Tensor) -> Int4Weight:
    """Quantise by group of inputs. Raises `RuntimeError` when they are no whole groups."""
    outputs, inputs = weight.shape
    if inputs % GROUP:
        raise RuntimeError(f"{inputs} inputs are no whole groups of {GROUP}")
    codes = torch.empty(weight.shape, dtype=torch.int32)
    scales = torch.empty(outputs, inputs // GROUP, dtype=torch.bfloat16)
    offsets = torch.empty_like(scales)
    step = max(1, _PART_ELEMENTS // inputs)
    for start in range(0, outputs, step):
        groups = weight[start : start + step].to(torch.float32).view(-1, inputs // GROUP, GROUP)
        code, scale, offset = _quantized_groups(groups)
        codes[start : start + step] = code.flatten(1)
        scales[start : start + step], offsets[start : start + step] = scale, offset
    return Int4Weight(codes, scales, offsets)


def from_int8(weight: Int8Weight) -> Tensor:
    """What it stands for, in fp32."""
    return weight.codes * weight.scales.unsqueeze(1)


def from_int4(weight: Int4Weight) -> Tensor:
    """What it stands for, in fp32."""
    steps = weight.codes.view(*weight.scales.shape, GROUP) - 8
    scale, offset = weight.scales.float().unsqueeze(2), weight.offsets.float().unsqueeze(2)
    return (steps * scale + offset).view(weight.codes.shape)


def _quantized_groups(groups: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Codes [out, groups, GROUP], scales and offsets [out, groups] with the smallest squared error."""
    low, high = groups.aminmax(dim=2)
    best_error = torch.full_like(low, torch.inf)
    best = (torch.zeros_like(groups), torch.zeros_like(low), torch.zeros_like(low))
    for clip in _CLIPS:
        scale = ((high - low) * clip / _LEVELS).clamp_min_(1e-9).to(torch.bfloat16).float()
        offset = ((high + low) / 2 + scale / 2).to(torch.bfloat16).float()
        steps = ((groups - offset.unsqueeze(2)) / scale.unsqueeze(2)).round_().clamp_(-8, 7)
        error = (steps * scale.unsqueeze(2) + offset.unsqueeze(2) - groups).square_().sum(dim=2)
        better = error < best_error
        best_error = torch.where(better, error, best_error)
        best = (
            torch.where(better.unsqueeze(2), steps, best[0]),
            torch.where(better, scale, best[1]),
            torch.where(better, offset, best[2]),
        )
    return best[0] + 8, best[1], best[2]


def _scales_of(rows: Tensor) -> Tensor:
    """What the largest value of each row [rows, 1] is 127 of, in fp32; not finite where one is not."""
    return rows.abs().amax(dim=1, keepdim=True).to(torch.float32).div_(_LARGEST).clamp_min_(_LEAST_SCALE)


def _quantized_rows(rows: Tensor) -> tuple[Tensor, Tensor]:
    """Rows as int8 [2 * rows, in], first themselves and then what is left of them, and the scale of each
    [rows, 1]. Few operations: each takes as long as the sums in it."""
    scales = _scales_of(rows)
    scaled = rows / scales
    first = scaled.round()
    return torch.cat((first, scaled.sub_(first).mul_(_REST).round_())).to(torch.int8), scales


def _rescaled(product: Tensor, scales: Tensor, bias: Tensor | None, dtype: torch.dtype) -> Tensor:
    """Rows [rows, out] from the products of both parts [2 * rows, out]."""
    rows = len(scales)
    whole = torch.add(product[:rows], product[rows:], alpha=1 / _REST).mul_(scales)
    return (whole if bias is None else whole.add_(bias)).to(dtype)


def _keep_int8(weight: Tensor) -> Packed:
    return tuple(to_int8(weight))


def _int_mm(rows: Tensor, packed: Packed, bias: Tensor | None) -> Tensor:
    codes, scales = _quantized_rows(rows)
    product = torch._int_mm(codes, packed[0].T).to(torch.float32).mul_(packed[1])
    return _rescaled(product, scales, bias, rows.dtype)


def _pack_onednn_int8(weight: Tensor) -> Packed:
    codes, scales = to_int8(weight)
    zeros = torch.zeros(len(codes), dtype=torch.int32)
    return torch.ops.onednn.qlinear_prepack(codes, None), scales, zeros


def _onednn_int8(rows: Tensor, packed: Packed, bias: Tensor | None) -> Tensor:
    codes, scales = _quantized_rows(rows)
    product = torch.ops.onednn.qlinear_pointwise(
        codes, 1.0, 0, *packed, None, 1.0, 0, torch.float32, "none", [], ""
    )
    return _rescaled(product, scales, bias, rows.dtype)


def _pack_int4(weight: Tensor) -> Packed:
    codes, scales, offsets = to_int4(weight)
    grouped = torch.stack((scales, offsets), dim=2).transpose(0, 1).contiguous()  # [groups, out, 2]
    return torch.ops.aten._convert_weight_to_int4pack_for_cpu(codes, 1), grouped


def _int4_mm(rows: Tensor, packed: Packed, bias: Tensor | None) -> Tensor:
    product: Tensor = torch.ops.aten._weight_int4pack_mm_for_cpu(
        rows.to(torch.bfloat16).contiguous(), packed[0], GROUP, packed[1]
    )
    return (product if bias is None else product.add_(bias)).to(rows.dtype)


def _int4_widen(block: int) -> Run:
    """In bf16, a part of the weight at a time: the kernel for 4 bits takes as long for each row as for one.

    `block`: outputs that torch's order of the codes keeps together, twice as many as bytes for one input; the
    low halves of the bytes are the first of them. It depends on the processor, so it is tried out before use.
    """

    def run(rows: Tensor, packed: Packed, bias: Tensor | None) -> Tensor:
        codes, grouped = packed
        groups, outputs, _ = grouped.shape
        pairs = codes.view(torch.uint8).view(outputs // block, groups, GROUP, block // 2)
        scales = grouped[:, :, 0].unsqueeze(1).contiguous()  # [groups, 1, out]
        offsets = torch.sub(grouped[:, :, 1], grouped[:, :, 0], alpha=8).unsqueeze(1)
        product = torch.empty(len(rows), outputs, dtype=torch.bfloat16)
        narrow = rows.to(torch.bfloat16)
        step = max(1, _PART_ELEMENTS // (groups * GROUP * block))
        for first in range(0, len(pairs), step):
            wide = _in_bf16(pairs[first : first + step])
            part = slice(first * block, (first + step) * block)
            torch.addcmul(offsets[:, :, part], wide, scales[:, :, part], out=wide)
            product[:, part] = narrow @ wide.view(groups * GROUP, -1)
        return (product if bias is None else product.add_(bias)).to(rows.dtype)

    return run


def _in_bf16(pairs: Tensor) -> Tensor:
    """The codes [groups, GROUP, out] that bytes [blocks, groups, GROUP, half a block] hold."""
    blocks, groups, _, half = pairs.shape
    halves = torch.empty(blocks, 2, groups, GROUP, half, dtype=torch.uint8)
    torch.bitwise_and(pairs, 15, out=halves[:, 0])
    torch.bitwise_right_shift(pairs, 4, out=halves[:, 1])
    ordered = halves.permute(2, 3, 0, 1, 4).to(torch.bfloat16, memory_format=torch.contiguous_format)
    return ordered.view(groups, GROUP, blocks * 2 * half)


INT4_WIDEN = (Kernel("widen-64", _int4_widen(64)), Kernel("widen-32", _int4_widen(32)))
INT8 = Layout("int8", "int8", FLOATS, _keep_int8, (Kernel("int-mm", _int_mm),))
INT8_ONEDNN = Layout("int8-onednn", "int8", FLOATS, _pack_onednn_int8, (Kernel("onednn", _onednn_int8),))
INT4 = Layout("int4", "int4", FLOATS, _pack_int4, (Kernel("int4-mm", _int4_mm), *INT4_WIDEN))
