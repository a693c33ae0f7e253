"""What decides the bits of a kernel besides itself: the processor and the build of torch."""

import hashlib
import json
import platform
from collections.abc import Iterable
from pathlib import Path

import torch

from swarm.model.dtypes import dtype_name
from swarm.model.linear.layouts import FLOATS, multiplies_natively

_CPUINFO = Path("/proc/cpuinfo")
_NAMES = ("model name", "Hardware", "CPU part")  # as Linux has them on x86 and on ARM
_FINGERPRINT_DIGITS = 12


def processor() -> str:
    """The processor's name and what of it torch uses."""
    formats = [dtype_name(dtype) for dtype in FLOATS if multiplies_natively(dtype)]
    return " ".join((_name(), torch.backends.cpu.get_cpu_capability(), *formats))


def build() -> str:
    """The build of torch."""
    return torch.__version__


def fingerprint(parts: Iterable[str]) -> str:
    """A short name of kernels on this machine: where it is the same, so are the bits they give."""
    told = json.dumps([processor(), build(), *sorted(set(parts))])
    return hashlib.sha256(told.encode()).hexdigest()[:_FINGERPRINT_DIGITS]


def _name() -> str:
    try:
        lines = _CPUINFO.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        lines = []
    named = dict(line.split(":", 1) for line in reversed(lines) if ":" in line)
    found = {key.strip(): value.strip() for key, value in named.items()}
    return next(
        (found[name] for name in _NAMES if found.get(name)), platform.processor() or platform.machine()
    )
