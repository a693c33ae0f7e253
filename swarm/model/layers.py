"""The layers of a decoder block between its weights, on rows of hidden states; no positions, no caches."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from swarm.model.architectures.traits import NormKind


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Root mean square norm over the last axis (arXiv:1910.07467), computed in fp32.

    Written out because `F.rms_norm` takes ten times as long for many rows on a CPU.
    """
    norm: Tensor = torch.linalg.vector_norm(x, dim=-1, keepdim=True, dtype=torch.float32)
    scale = norm.mul_(norm).mul_(1 / x.shape[-1]).add_(eps).rsqrt_()
    return (x * scale).to(x.dtype).mul_(weight)


@dataclass(frozen=True, slots=True)
class Norm:
    """A norm over the last axis, with its weights."""

    kind: NormKind
    weight: Tensor  # [width]
    bias: Tensor | None  # [width], of a biased one
    eps: float

    def __call__(self, x: Tensor) -> Tensor:
        """Rows [..., width], normed; a new tensor."""
        if self.kind == "rms":
            return rms_norm(x, self.weight, self.eps)
        if self.kind == "rms one more":
            return rms_norm(x.to(torch.float32), 1 + self.weight.to(torch.float32), self.eps).to(x.dtype)
        return F.layer_norm(x, self.weight.shape, self.weight, self.bias, self.eps)

    @property
    def size_bytes(self) -> int:
        """Memory held."""
        return self.weight.nbytes + (0 if self.bias is None else self.bias.nbytes)


def gated_silu(gate_up: Tensor) -> Tensor:
    """SiLU(gate) * up of rows [rows, 2 * width]; works in place and returns a view of the gate half."""
    gate, up = gate_up.chunk(2, dim=-1)
    return F.silu(gate, inplace=True).mul_(up)


def activation_of(name: str, gated: bool) -> Callable[[Tensor], Tensor]:
    """What stands between the two halves of an MLP, for rows of its first half; it may work in place."""
    if not gated:
        return _PLAIN[name]
    return gated_silu if name == "silu" else partial(_gated, _PLAIN[name])


def _gated(activation: Callable[[Tensor], Tensor], gate_up: Tensor) -> Tensor:
    gate, up = gate_up.chunk(2, dim=-1)
    return activation(gate).mul_(up)


_PLAIN: dict[str, Callable[[Tensor], Tensor]] = {
    "silu": F.silu,
    "gelu": F.gelu,
    "gelu_pytorch_tanh": partial(F.gelu, approximate="tanh"),
}
