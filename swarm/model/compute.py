"""Where tensors are computed: one thread per process, so that the event loop stays free to beat.

`InlineCompute` runs the work at once in the caller; it makes whole swarms deterministic under a
virtual clock. Neither knows what it computes.
"""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Protocol, TypeVar

Result = TypeVar("Result")


class Compute(Protocol):
    """Runs functions one at a time, in the order given."""

    async def run(self, work: Callable[[], Result]) -> Result: ...

    def close(self) -> None: ...


class ComputeThread:
    """The one compute thread of a process."""

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="compute")

    async def run(self, work: Callable[[], Result]) -> Result:
        """Run `work` in the thread. Cancelling the caller does not interrupt what already runs."""
        return await asyncio.get_running_loop().run_in_executor(self._thread, work)

    def close(self) -> None:
        """Drop what has not started; what runs, ends by itself."""
        self._thread.shutdown(wait=False, cancel_futures=True)


class InlineCompute:
    """Runs everything at once, then sleeps as long as `cost_s` says it would have taken."""

    def __init__(self, cost_s: float = 0.0) -> None:
        self._cost_s = cost_s

    async def run(self, work: Callable[[], Result]) -> Result:
        result = work()
        await asyncio.sleep(self._cost_s)
        return result

    def close(self) -> None:
        """Nothing to end."""
