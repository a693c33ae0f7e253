"""Which layout and kernels a weight gets: measured, because no kernel is the fastest everywhere.

Candidates that this build of torch lacks, or that are not exact enough here, are left out. Timings are
the least of several rounds in which all candidates take turns, so that what else the machine does
meets all of them. Measured on weights of its own, which together do not fit in a core's cache.
"""

import time
import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from swarm.model.linear.layouts import (
    ONEDNN_FEW,
    ONEDNN_MANY,
    PLAIN,
    TRANSPOSED,
    WIDEN,
    Kernel,
    Layout,
    Packed,
    Quantization,
    multiplies_natively,
)
from swarm.model.linear.quantized import (
    GROUP,
    INT4,
    INT4_OUTPUTS,
    INT8,
    INT8_ONEDNN,
    from_int4,
    from_int8,
    to_int4,
    to_int8,
)

LAYOUTS = {
    layout.name: layout for layout in (PLAIN, TRANSPOSED, ONEDNN_FEW, ONEDNN_MANY, INT8, INT8_ONEDNN, INT4)
}
ROW_CLASSES = (1, 8, 64, None)  # most rows of each; None: any number
_ROWS = (1, 4, 32, 128)  # measured for each class
_WEIGHTS = (4, 2, 1, 2)  # of each class, when a layout is judged: most steps are of one row
_MOST_ELEMENTS = 2**22  # of a weight: of a larger one a part is measured
_SAMPLE_OUTPUTS = 256  # of a weight, on which kernels are looked at for exactness
_ALIGNED_OUTPUTS = 64
_PASS_ELEMENTS = (3 * 2**21, 3 * 2**21, 2**21, 2**20)  # gone through at a time, by class
_ROUNDS, _MOST_ROUNDS, _ROUNDS_S = 3, 12, 0.05
_LEAST_ELEMENTS = 2**17  # of a weight for which it matters
_ROUNDING = {
    torch.float32: 2e-6,
    torch.bfloat16: 2**-8,
    torch.float16: 2**-10,
}  # allowed, of |rows| @ |weight|
_NOT_HERE = (RuntimeError, AttributeError, NotImplementedError)  # how torch says that it has no such thing
_INT8_ROUNDING = 2**-12  # of its rows, which are in two parts of 8 bits
_INT4_ROUNDING = 2**-7  # its rows are in bf16


class Shape(NamedTuple):
    """A weight's."""

    outputs: int
    inputs: int

    def __str__(self) -> str:
        return f"{self.outputs}x{self.inputs}"


class Form(NamedTuple):
    """What weights are kept in and rows come in."""

    dtype: torch.dtype
    quantization: Quantization = "none"
    legible: bool = False  # whether the weight itself must stay readable


@dataclass(frozen=True, slots=True)
class KernelChoice:
    """A layout, and the name of the kernel of it for each class of rows."""

    layout: str
    kernels: tuple[str, ...]
    microseconds: tuple[float, ...] = ()  # as measured; empty when it was not

    def kernel(self, rows: int) -> str:
        """The one for so many rows."""
        return self.kernels[row_class(rows)]


Times = Mapping[tuple[str, str, int], float]  # (layout, kernel, class) -> seconds


def row_class(rows: int) -> int:
    """The index in `ROW_CLASSES`."""
    return 0 if rows == 1 else 1 if rows <= 8 else 2 if rows <= 64 else 3


def form_of(shape: Shape, wanted: Form) -> Form:
    """What a weight of that shape can be kept in: 8 bits where its shape does not suit 4."""
    fits = shape.inputs % GROUP == 0 and shape.outputs % INT4_OUTPUTS == 0
    return wanted._replace(quantization="int8") if wanted.quantization == "int4" and not fits else wanted


def plain_choice(form: Form) -> KernelChoice:
    """What is used where nothing is measured: the layouts that every build of torch has."""
    if form.quantization == "int8":
        return KernelChoice(INT8.name, ("int-mm",) * len(ROW_CLASSES))
    if form.quantization == "int4":
        return KernelChoice(INT4.name, ("int4-mm",) * len(ROW_CLASSES))
    many = "linear" if multiplies_natively(form.dtype) else "widen"
    return KernelChoice(PLAIN.name, ("mv", many, many, many))


def matters(shape: Shape) -> bool:
    """Whether a weight is large enough for its kernel to matter."""
    return shape.outputs * shape.inputs >= _LEAST_ELEMENTS


def known_kernels(form: Form) -> str:
    """Names what there is to choose from, so that a version that knows more chooses anew."""
    names = " ".join(
        f"{layout.name}({kernel.name})" for layout in candidates(form) for kernel in layout.kernels
    )
    return f"{zlib.crc32(names.encode()):08x}"


def candidates(form: Form) -> list[Layout]:
    """The layouts that a weight may get."""
    return [
        layout
        for layout in LAYOUTS.values()
        if layout.quantization == form.quantization
        and form.dtype in layout.dtypes
        and (layout.legible or not form.legible)
    ]


def measure_choice(shape: Shape, form: Form) -> KernelChoice:
    """Measure all candidates for a weight, with the threads that torch is set to, and take the best."""
    # A thread's own time does not run while others have its core; of several threads it tells too little.
    clock = time.thread_time if torch.get_num_threads() == 1 else time.perf_counter
    part = Shape(_fewer(shape.outputs, _MOST_ELEMENTS // shape.inputs), shape.inputs)
    weight = _some(part.outputs, part.inputs, form.dtype) * part.inputs**-0.5
    sample = weight[: _fewer(part.outputs, _SAMPLE_OUTPUTS)]
    usable = {layout.name: kernels for layout in candidates(form) if (kernels := _usable(layout, sample))}
    with torch.inference_mode():
        times = dict(_timed(usable, weight, clock))
    return best_choice(times) if times else plain_choice(form)


def _fewer(outputs: int, most: int) -> int:
    """About as many as `most`, fewer by whole blocks, so that what suits the one suits the other."""
    surplus = max(0, outputs - max(_ALIGNED_OUTPUTS, most))
    return outputs - surplus // _ALIGNED_OUTPUTS * _ALIGNED_OUTPUTS


def best_choice(times: Times) -> KernelChoice:
    """The layout whose best kernels lose least to the fastest there are, most steps having one row."""
    best: dict[str, list[tuple[float, str]]] = {}
    for layout in dict.fromkeys(layout for layout, _, _ in times):
        best[layout] = [
            min(
                (seconds, kernel)
                for (name, kernel, each), seconds in times.items()
                if (name, each) == (layout, index)
            )
            for index in range(len(ROW_CLASSES))
        ]
    least = [min(rows[index][0] for rows in best.values()) for index in range(len(ROW_CLASSES))]

    def loss(layout: str) -> float:
        return sum(
            weight * seconds / fastest
            for weight, (seconds, _), fastest in zip(_WEIGHTS, best[layout], least, strict=True)
        )

    chosen = min(best, key=loss)
    return KernelChoice(
        chosen,
        tuple(kernel for _, kernel in best[chosen]),
        tuple(round(seconds * 1e6, 1) for seconds, _ in best[chosen]),
    )


def _usable(layout: Layout, weight: Tensor) -> dict[int, list[Kernel]]:
    """By class, the kernels that there are here and that are exact enough; empty if a class has none."""
    try:
        packed = layout.pack(weight)
    except _NOT_HERE:
        return {}
    kernels = {
        index: [
            kernel
            for kernel in _kernels_for(layout, index, weight.dtype)
            if is_exact(layout, kernel, packed, weight, rows)
        ]
        for index, rows in enumerate(_ROWS)
    }
    return kernels if all(kernels.values()) else {}


def _kernels_for(layout: Layout, index: int, dtype: torch.dtype) -> list[Kernel]:
    return [
        kernel
        for kernel in layout.kernels
        if (kernel.most_rows is None or _ROWS[index] <= kernel.most_rows)
        and not (kernel is WIDEN and multiplies_natively(dtype))
    ]


def is_exact(layout: Layout, kernel: Kernel, packed: Packed, weight: Tensor, rows: int) -> bool:
    """Whether a kernel is there and rounds no worse than its number format must, also where all values are
    as large as they can be: one that computes in a narrower format, or saturates, does not pass."""
    x = _some(rows, weight.shape[1], weight.dtype)
    x[0] = x[0].sign()
    exact_weight = stands_for(weight, layout.quantization).double()
    try:
        with torch.inference_mode():
            error = (kernel.run(x, packed, None).double() - x.double() @ exact_weight.T).abs()
    except _NOT_HERE:
        return False
    size = x.double().abs() @ exact_weight.abs().T
    rounding = _ROUNDING[weight.dtype]
    if layout.quantization != "none":
        rounding = max(rounding, _INT4_ROUNDING if layout.quantization == "int4" else _INT8_ROUNDING)
    return bool((error <= rounding * size + torch.finfo(torch.float32).tiny).all())


def stands_for(weight: Tensor, quantization: Quantization) -> Tensor:
    """The weight that a packed one computes with, in fp32."""
    if quantization == "int8":
        return from_int8(to_int8(weight))
    return from_int4(to_int4(weight)) if quantization == "int4" else weight.to(torch.float32)


def _timed(
    usable: Mapping[str, dict[int, list[Kernel]]], weight: Tensor, clock: Callable[[], float]
) -> Iterator[tuple[tuple[str, str, int], float]]:
    copies = max(1, min(16, _PASS_ELEMENTS[0] // weight.numel()))
    packed = {name: _copies(LAYOUTS[name].pack(weight), copies) for name in usable}
    for index, rows in enumerate(_ROWS):
        x = _some(rows, weight.shape[1], weight.dtype)
        used = max(1, min(copies, _PASS_ELEMENTS[index] // weight.numel()))
        works = {
            (name, kernel.name, index): (kernel, packed[name][:used])
            for name, kernels in usable.items()
            for kernel in kernels[index]
        }
        least = _least_of_rounds(works, x, clock)
        yield from ((each, seconds / used) for each, seconds in least.items())


def _copies(packed: Packed, count: int) -> list[Packed]:
    """Cheaper than to pack again."""
    more = [tuple(part.clone() for part in packed) for _ in range(count - 1)]
    return [packed, *more]


def _least_of_rounds(
    works: Mapping[tuple[str, str, int], tuple[Kernel, list[Packed]]], x: Tensor, clock: Callable[[], float]
) -> dict[tuple[str, str, int], float]:
    """Seconds that each needs to go through its weights, at best; all take turns."""
    least = dict.fromkeys(works, float("inf"))
    began, rounds = clock(), 0
    while rounds < _ROUNDS or (rounds < _MOST_ROUNDS and clock() - began < _ROUNDS_S):
        for each, (kernel, weights) in works.items():
            started = clock()
            for packed in weights:
                kernel.run(x, packed, None)
            least[each] = min(least[each], clock() - started)
        rounds += 1
    return least


def _some(rows: int, columns: int, dtype: torch.dtype) -> Tensor:
    """Numbers, always the same."""
    generator = torch.Generator().manual_seed(rows)
    return torch.randn(rows, columns, generator=generator).to(dtype)
