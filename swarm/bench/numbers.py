"""What a benchmark measures in: a number format and how the weights are kept, `bf16` or `bf16+int4`."""

from typing import NamedTuple, get_args

import torch

from swarm.errors import UsageError
from swarm.model.dtypes import parse_dtype
from swarm.model.linear.layouts import Quantization


class Numbers(NamedTuple):
    """A format that blocks are computed in."""

    dtype: str
    quantization: Quantization

    @property
    def torch_dtype(self) -> torch.dtype:
        return parse_dtype(self.dtype)

    def __str__(self) -> str:
        return self.dtype if self.quantization == "none" else f"{self.dtype}+{self.quantization}"


def parse_numbers(text: str) -> Numbers:
    """Read `bf16`, `bf16+int8`, or `int8`, which is in bf16. Raises `UsageError`."""
    dtype, _, quantization = text.partition("+")
    if dtype in get_args(Quantization) and not quantization:
        dtype, quantization = "bf16", dtype
    parse_dtype(dtype)
    for known in get_args(Quantization):
        if (quantization or "none") == known:
            return Numbers(dtype, known)
    raise UsageError(f"{text!r} is no number format", "Choose one like fp32, bf16, fp16, int8, bf16+int4.")
