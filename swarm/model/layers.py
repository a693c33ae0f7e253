"""The layers of a decoder block, on rows of hidden states; no positions, no caches, no peers.

A `Projection` chooses its kernel by the number of rows and by what the machine computes natively:
on a CPU without 16-bit dot products, torch multiplies 16-bit matrices row by row, 10 to 40 times
slower than widening the weight on the fly (AVX2, 3072x576, 64 rows: 23 ms against 3.5 ms).
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

_WIDEN_ELEMENTS = 2**20  # of a weight at a time: 4 MiB in fp32 stays in the cache between writing and reading


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Root mean square norm over the last axis (arXiv:1910.07467), computed in fp32.

    Written out because `F.rms_norm` takes ten times as long for many rows on a CPU.
    """
    norm: Tensor = torch.linalg.vector_norm(x, dim=-1, keepdim=True, dtype=torch.float32)
    scale = norm.square_().div_(x.shape[-1]).add_(eps).rsqrt_()
    return (x * scale).to(x.dtype).mul_(weight)


def multiplies_natively(dtype: torch.dtype) -> bool:
    """Whether this machine has a fast matrix product in `dtype`."""
    if dtype == torch.bfloat16:
        return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())
    if dtype == torch.float16:
        return bool(torch.ops.mkldnn._is_mkldnn_fp16_supported())
    return True


@dataclass(frozen=True, slots=True)
class Projection:
    """A linear layer: x @ weight.T + bias."""

    weight: Tensor  # [out, in]
    bias: Tensor | None  # [out]
    widen: bool  # to fp32 for more than one row

    def __call__(self, x: Tensor) -> Tensor:
        """Rows [rows, in] to rows [rows, out]."""
        if len(x) == 1:  # torch.mv beats F.linear for one 16-bit row
            row = x[0]
            product = (
                torch.mv(self.weight, row) if self.bias is None else torch.addmv(self.bias, self.weight, row)
            )
            return product.unsqueeze(0)
        return self._widened(x) if self.widen else F.linear(x, self.weight, self.bias)

    @property
    def size_bytes(self) -> int:
        """Memory held."""
        return self.weight.nbytes + (0 if self.bias is None else self.bias.nbytes)

    def _widened(self, x: Tensor) -> Tensor:
        out_features, in_features = self.weight.shape
        wide = x.to(torch.float32)
        product = x.new_empty(len(x), out_features)
        step = max(1, _WIDEN_ELEMENTS // in_features)
        scratch = torch.empty(min(step, out_features), in_features)
        for start in range(0, out_features, step):
            part = self.weight[start : start + step]
            product[:, start : start + step] = wide @ scratch[: len(part)].copy_(part).T
        return product if self.bias is None else product.add_(self.bias)


def gated_silu(gate_up: Tensor) -> Tensor:
    """SiLU(gate) * up of rows [rows, 2 * width]; works in place and returns a view of the gate half."""
    gate, up = gate_up.chunk(2, dim=-1)
    return F.silu(gate, inplace=True).mul_(up)
