"""Writes a safetensors file one tensor at a time, so that a whole model is never in memory.

The library's own writer wants all tensors at once. Format: u64 length of the header, header in JSON
with each tensor's dtype, shape and byte range, padded with spaces to a multiple of 8; then the bytes.
"""

import json
from collections.abc import Iterable, Mapping
from pathlib import Path

import torch

_FORMAT_NAMES = {torch.float32: "F32", torch.bfloat16: "BF16", torch.float16: "F16"}
_ALIGNMENT_BYTES = 8


def write_safetensors(
    path: Path,
    shapes: Mapping[str, tuple[int, ...]],
    dtype: torch.dtype,
    tensors: Iterable[tuple[str, torch.Tensor]],
) -> None:
    """Write `tensors`, which come in the order of `shapes` and have its names and shapes."""
    with path.open("wb") as file:
        file.write(_header(shapes, dtype))
        for (name, shape), (found, tensor) in zip(shapes.items(), tensors, strict=True):
            if name != found or shape != tuple(tensor.shape):
                raise ValueError(f"tensor {found} {tuple(tensor.shape)} where {name} {shape} was announced")
            file.write(tensor.to(dtype).contiguous().view(torch.uint8).numpy().data)


def _header(shapes: Mapping[str, tuple[int, ...]], dtype: torch.dtype) -> bytes:
    entries: dict[str, object] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name, shape in shapes.items():
        start, end = end, end + torch.Size(shape).numel() * dtype.itemsize
        entries[name] = {"dtype": _FORMAT_NAMES[dtype], "shape": shape, "data_offsets": [start, end]}
    header = json.dumps(entries, separators=(",", ":")).encode()
    header += b" " * (-len(header) % _ALIGNMENT_BYTES)
    return len(header).to_bytes(8, "little") + header
