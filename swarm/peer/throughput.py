"""How fast this peer is: measured on its own blocks before it announces itself.

Also chooses the number of threads, because more of them are slower, not faster, when the machine is
busy: torch's threads spin while they wait for each other. Runs on the compute thread.
"""

import os
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch

from swarm.model.cache import KVCache
from swarm.model.span import SpanModel, SpanStep

DECODE_STEPS = 6
PREFILL_TOKENS = 64


@dataclass(frozen=True, slots=True)
class Throughput:
    """Speed through the whole span, of one session alone."""

    threads: int
    decode_tokens_per_s: float
    prefill_tokens_per_s: float


def measure(
    model: SpanModel, threads: int | None = None, clock: Callable[[], float] = time.perf_counter
) -> Throughput:
    """Measure with `threads`, or choose between one and all cores, and leave torch set to that."""
    choices = {threads} if threads else {1, os.cpu_count() or 1}
    measured = [_measure_with(model, count, clock) for count in sorted(choices)]
    best = max(measured, key=lambda result: result.decode_tokens_per_s)
    torch.set_num_threads(best.threads)
    return best


def _measure_with(model: SpanModel, threads: int, clock: Callable[[], float]) -> Throughput:
    torch.set_num_threads(threads)
    cache = model.new_cache()
    row = torch.zeros(1, model.config.hidden_size, dtype=model.dtype)
    _push(model, cache, row)  # the first step touches every weight for the first time
    decode_s = min(_timed(clock, lambda: _push(model, cache, row)) for _ in range(DECODE_STEPS))
    tokens = min(PREFILL_TOKENS, model.config.context_length - cache.position)
    rows = row.expand(tokens, -1).contiguous()
    prefill_s = _timed(clock, lambda: _push(model, cache, rows))
    return Throughput(threads, round(1 / decode_s, 2), round(tokens / prefill_s, 2))


def _push(model: SpanModel, cache: KVCache, rows: torch.Tensor) -> None:
    model.forward([SpanStep(cache, rows)])


def _timed(clock: Callable[[], float], work: Callable[[], None]) -> float:
    started_at = clock()
    work()
    return max(1e-9, clock() - started_at)
