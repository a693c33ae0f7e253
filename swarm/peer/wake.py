"""Notices that this machine slept, or this process was frozen: a tick came far too late.

Told by a clock that goes on in both and that nobody can set. By the wall clock a correction of the time
would look like a sleep, and asyncio's own clock stands still while the machine sleeps.
"""

import asyncio
import sys
import time
from collections.abc import Awaitable, Callable

TICK_S = 1.0
SLEPT_S = 3.0  # more than this late is no busy machine: clients have given the sessions up by then


def boot_clock() -> float:
    """Seconds since some moment, with those in which the machine slept."""
    # macOS has mach_continuous_time under the name of a clock that on Linux stands still during sleep
    clock = time.CLOCK_BOOTTIME if sys.platform == "linux" else time.CLOCK_MONOTONIC_RAW
    return time.clock_gettime(clock)


class SleepWatch:
    """Watches a clock such as `boot_clock`. `run` until cancelled."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._ticked_at = clock()

    def forget(self) -> None:
        """What was slept until now is known already."""
        self._ticked_at = self._clock()

    async def run(self, on_wake: Callable[[float], Awaitable[None]]) -> None:
        """Call `on_wake(seconds)` after each sleep."""
        while True:
            self._ticked_at = self._clock()
            await asyncio.sleep(TICK_S)
            late_s = self._clock() - self._ticked_at - TICK_S
            if late_s > SLEPT_S:
                await on_wake(late_s)
