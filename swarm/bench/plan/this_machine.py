"""What this machine has: its free memory, and how fast it reads it and multiplies, measured in a second."""

import time
from collections.abc import Callable

import numpy as np
import psutil

from swarm.bench.plan.machines import Machine

MEMORY_SHARE = 0.8  # of what is free, as a peer takes
READ_BYTES = 256 * 2**20
SIDE = 1024  # of the matrices
TIMES = 3


def measure_machine() -> Machine:
    """Measure this machine."""
    row, matrix = np.ones(8192, np.float32), np.ones((8192, READ_BYTES // 4 // 8192), np.float32)
    read_s = _fastest(lambda: row @ matrix)  # reads it once, as a decoding step does
    square = np.ones((SIDE, SIDE), np.float32)
    multiply_s = _fastest(lambda: square @ square)
    return Machine(
        name="this machine",
        memory_bytes=int(psutil.virtual_memory().available * MEMORY_SHARE),
        reads_gb_per_s=READ_BYTES / read_s / 1e9,
        gflops=2 * SIDE**3 / multiply_s / 1e9,
        is_client=True,
    )


def _fastest(work: Callable[[], object]) -> float:
    times = []
    for _ in range(TIMES):
        begun = time.perf_counter()
        work()
        times.append(time.perf_counter() - begun)
    return min(times)
