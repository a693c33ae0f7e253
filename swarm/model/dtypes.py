"""The number formats that weights, caches and hidden states come in, by name.

The short names are those of the command line and of the wire; config.json has the long ones.
"""

import torch

from swarm.errors import UsageError

_DTYPES = {
    "fp32": torch.float32,
    "bf16": torch.bfloat16,
    "fp16": torch.float16,
}


def parse_dtype(name: str) -> torch.dtype:
    """Read ``"bf16"`` or ``"bfloat16"``. Raises `UsageError` for a format we cannot compute in."""
    for short, dtype in _DTYPES.items():
        if name in (short, str(dtype).removeprefix("torch.")):
            return dtype
    raise UsageError(f"{name!r} is not a supported dtype", f"Choose one of {', '.join(_DTYPES)}.")


def dtype_name(dtype: torch.dtype) -> str:
    """The short name: ``torch.bfloat16`` gives ``"bf16"``. Raises `UsageError` for other formats."""
    for short, each in _DTYPES.items():
        if each == dtype:
            return short
    raise UsageError(f"{dtype} is not a supported dtype", f"Choose one of {', '.join(_DTYPES)}.")
