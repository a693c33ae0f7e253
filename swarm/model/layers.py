"""The layers of a decoder block between its weights, on rows of hidden states; no positions, no caches."""

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Root mean square norm over the last axis (arXiv:1910.07467), computed in fp32.

    Written out because `F.rms_norm` takes ten times as long for many rows on a CPU.
    """
    norm: Tensor = torch.linalg.vector_norm(x, dim=-1, keepdim=True, dtype=torch.float32)
    scale = norm.mul_(norm).mul_(1 / x.shape[-1]).add_(eps).rsqrt_()
    return (x * scale).to(x.dtype).mul_(weight)


def gated_silu(gate_up: Tensor) -> Tensor:
    """SiLU(gate) * up of rows [rows, 2 * width]; works in place and returns a view of the gate half."""
    gate, up = gate_up.chunk(2, dim=-1)
    return F.silu(gate, inplace=True).mul_(up)
