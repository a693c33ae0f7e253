"""How a weight matrix can lie in memory, and the kernels that multiply rows with it as it lies there.

A `Layout` packs a weight [out, in] once; its `Kernel`s then take rows [rows, in] and give rows
[rows, out]. Which of them a build of torch has, and which is fastest, is for `choice` to find out:
nothing here is known to be best anywhere. A kernel may give other last bits by the number of rows,
but a row's result never depends on what the other rows are.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

Quantization = Literal["none", "int8", "int4"]
Packed = tuple[Any, ...]  # tensors, some of them opaque to all but their kernels
Pack = Callable[[Tensor], Packed]
Run = Callable[[Tensor, Packed, Tensor | None], Tensor]  # (rows, packed weight, bias)

FLOATS = (torch.float32, torch.bfloat16, torch.float16)
WIDEN_ELEMENTS = 2**20  # of a weight at a time: 4 MiB in fp32 stays in the cache between writing and reading


@dataclass(frozen=True, slots=True)
class Kernel:
    """One way to multiply."""

    name: str
    run: Run
    most_rows: int | None = None  # None: any number


@dataclass(frozen=True, slots=True)
class Layout:
    """One way for a weight to lie in memory. Packing raises `RuntimeError` or `AttributeError` where this
    build of torch cannot, or where the shape does not suit."""

    name: str
    quantization: Quantization
    dtypes: tuple[torch.dtype, ...]  # of the rows
    pack: Pack
    kernels: tuple[Kernel, ...]
    legible: bool = False  # whether the first packed tensor is the weight [out, in] itself, or a view of it


def multiplies_natively(dtype: torch.dtype) -> bool:
    """Whether this machine has a fast matrix product in `dtype`."""
    if dtype == torch.float32:
        return True
    if not torch._C._has_mkldnn:
        return False
    check = "_is_mkldnn_bf16_supported" if dtype == torch.bfloat16 else "_is_mkldnn_fp16_supported"
    return bool(getattr(torch.ops.mkldnn, check)())


def packed_bytes(packed: Packed) -> int:
    """Memory that the tensors of a packed weight take."""
    return sum(part.numel() * part.element_size() for part in packed if isinstance(part, Tensor))


def _keep(weight: Tensor) -> Packed:
    return (weight,)


def _linear(rows: Tensor, packed: Packed, bias: Tensor | None) -> Tensor:
    return F.linear(rows, packed[0], bias)


def _mv(rows: Tensor, packed: Packed, bias: Tensor | None) -> Tensor:
    row = rows[0]
    product = torch.mv(packed[0], row) if bias is None else torch.addmv(bias, packed[0], row)
    return product.unsqueeze(0)


def _widen(rows: Tensor, packed: Packed, bias: Tensor | None) -> Tensor:
    """In fp32, a part of the weight at a time: on a CPU without 16-bit dot products torch multiplies 16-bit
    matrices row by row, 10 to 40 times slower (AVX2, 3072x576, 64 rows: 23 ms against 3.5 ms)."""
    weight: Tensor = packed[0]
    out_features, in_features = weight.shape
    wide = rows.to(torch.float32)
    product = rows.new_empty(len(rows), out_features)
    step = max(1, WIDEN_ELEMENTS // in_features)
    scratch = torch.empty(min(step, out_features), in_features)
    for start in range(0, out_features, step):
        part = weight[start : start + step]
        product[:, start : start + step] = wide @ scratch[: len(part)].copy_(part).T
    return product if bias is None else product.add_(bias)


def _transpose(weight: Tensor) -> Packed:
    """The weight as a view of its transposed copy."""
    return (weight.T.contiguous().T,)


def _matmul(rows: Tensor, packed: Packed, bias: Tensor | None) -> Tensor:
    return rows @ packed[0].T if bias is None else torch.addmm(bias, rows, packed[0].T)


def _reorder(expected_rows: int) -> Pack:
    def pack(weight: Tensor) -> Packed:
        return (torch.ops.mkldnn._reorder_linear_weight(weight, expected_rows),)

    return pack


def _onednn(rows: Tensor, packed: Packed, bias: Tensor | None) -> Tensor:
    product: Tensor = torch.ops.mkldnn._linear_pointwise(rows, packed[0], bias, "none", [], "")
    return product


WIDEN = Kernel("widen", _widen)  # of no use where the machine multiplies in the format itself
PLAIN = Layout(
    "plain",
    "none",
    FLOATS,
    _keep,
    (Kernel("linear", _linear), Kernel("mv", _mv, most_rows=1), WIDEN),
    legible=True,
)
TRANSPOSED = Layout("transposed", "none", FLOATS, _transpose, (Kernel("matmul", _matmul),), legible=True)
# oneDNN chooses the order of the weight by how many rows it is told to expect.
ONEDNN_FEW = Layout("onednn-1", "none", FLOATS, _reorder(1), (Kernel("onednn", _onednn),))
ONEDNN_MANY = Layout("onednn-64", "none", FLOATS, _reorder(64), (Kernel("onednn", _onednn),))
