"""A linear layer: a packed weight, with the kernel for each number of rows."""

from dataclasses import dataclass

from torch import Tensor

from swarm.model.linear.choice import LAYOUTS, KernelChoice, Shape, row_class
from swarm.model.linear.layouts import Kernel, Packed, packed_bytes


@dataclass(frozen=True, slots=True)
class Linear:
    """rows @ weight.T + bias."""

    shape: Shape
    choice: KernelChoice
    bias: Tensor | None  # [out]
    packed: Packed
    kernels: tuple[Kernel, ...]  # by class of rows

    def __call__(self, rows: Tensor) -> Tensor:
        """Rows [rows, in] to rows [rows, out]."""
        return self.kernels[row_class(len(rows))].run(rows, self.packed, self.bias)

    @property
    def size_bytes(self) -> int:
        """Memory held."""
        return packed_bytes(self.packed) + (0 if self.bias is None else self.bias.nbytes)

    def __str__(self) -> str:
        return f"{self.shape} {self.choice.layout} {' '.join(self.choice.kernels)}"


def pack_linear(weight: Tensor, bias: Tensor | None, choice: KernelChoice) -> Linear:
    """Pack a weight [out, in] as was chosen; whoever gave it should let go of it."""
    layout = LAYOUTS[choice.layout]
    by_name = {kernel.name: kernel for kernel in layout.kernels}
    kernels = tuple(by_name[name] for name in choice.kernels)
    return Linear(Shape(*weight.shape), choice, bias, layout.pack(weight), kernels)
