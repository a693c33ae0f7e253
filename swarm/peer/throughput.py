"""How fast this peer is: measured on its own blocks before it announces itself.

Also chooses the number of threads, because more of them are slower, not faster, when the machine is
busy: torch's threads spin while they wait for each other; and chooses again when it becomes so later.
"""

import asyncio
import logging
import os
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch

from swarm.model.cache import KVCache
from swarm.model.compute import Compute
from swarm.model.span import SpanModel, SpanStep
from swarm.peer.threads import ThreadWatch

DECODE_STEPS = 6
PREFILL_TOKENS = 64

_logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Throughput:
    """Speed through the whole span, of one session alone."""

    threads: int
    decode_tokens_per_s: float
    prefill_tokens_per_s: float
    pinned: bool = False  # so many threads were asked for


class ThreadControl:
    """Keeps a peer on as many threads as are good for it. `throughput` is what was measured last."""

    def __init__(self, model: SpanModel, compute: Compute, throughput: Throughput) -> None:
        self.throughput = throughput
        self._model = model
        self._compute = compute
        step_s = 1 / max(throughput.decode_tokens_per_s, 1e-9)
        self._watch = ThreadWatch(throughput.threads, step_s, may_choose=not throughput.pinned)

    async def note(self, rows: int, elapsed_s: float) -> None:
        """A batch was computed. Threads that are in each other's way are given up at once."""
        if rows == 1:
            self._watch.note(elapsed_s)
        if self._watch.has_collapsed:
            _logger.warning(
                "%d threads are in each other's way, another program is busy: on with one",
                self._watch.threads,
            )
            await self._compute.run(lambda: torch.set_num_threads(1))
            self._watch.collapsed(_now())

    async def rest(self) -> None:
        """Nothing waits: the time to try more threads again, when it has come."""
        if self._watch.wants_to_try(_now()):
            self.throughput = await self._compute.run(lambda: measure(self._model))
            self._watch.chosen(self.throughput.threads, 1 / self.throughput.decode_tokens_per_s, _now())


def measure(
    model: SpanModel, threads: int | None = None, clock: Callable[[], float] = time.perf_counter
) -> Throughput:
    """Measure with `threads`, or with as many as are fastest, and leave torch set to that."""
    if threads:
        return replace(_measure_with(model, threads, clock), pinned=True)
    best = _measure_with(model, 1, clock)
    for count in _more_threads(os.cpu_count() or 1):
        if not _is_faster(model, count, 1 / best.decode_tokens_per_s, clock):
            break
        best = max(best, _measure_with(model, count, clock), key=lambda each: each.decode_tokens_per_s)
    torch.set_num_threads(best.threads)
    return best


def _more_threads(cores: int) -> list[int]:
    """Two, four, eight and so on, and last all of them."""
    doubled = [2**power for power in range(1, cores.bit_length()) if 2**power < cores]
    return [*doubled, cores] if cores > 1 else []


def _is_faster(model: SpanModel, threads: int, step_s: float, clock: Callable[[], float]) -> bool:
    """A short look: threads that are in each other's way would take seconds to be measured."""
    torch.set_num_threads(threads)
    cache, row = model.new_cache(), torch.zeros(1, model.config.hidden_size, dtype=model.dtype)
    return any(_timed(clock, lambda: _push(model, cache, row)) < step_s for _ in range(3))


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


def _now() -> float:
    return asyncio.get_running_loop().time()


def _push(model: SpanModel, cache: KVCache, rows: torch.Tensor) -> None:
    model.forward([SpanStep(cache, rows)])


def _timed(clock: Callable[[], float], work: Callable[[], None]) -> float:
    started_at = clock()
    work()
    return max(1e-9, clock() - started_at)
