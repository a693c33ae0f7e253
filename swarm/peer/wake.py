"""Notices that this machine slept, or this process was frozen.

While a machine sleeps the wall clock goes on and the monotonic clock may not; while a process is
frozen both do, and the event loop does not. Either shows as a tick that took far too long.
"""

import asyncio
from collections.abc import Awaitable, Callable

TICK_S = 1.0
SLEPT_S = 3.0  # more than this late is no busy machine: clients have given the sessions up by then


async def watch_for_sleep(now: Callable[[], float], on_wake: Callable[[float], Awaitable[None]]) -> None:
    """Call `on_wake(seconds)` after each sleep, until cancelled. `now` is the wall clock."""
    clock = asyncio.get_running_loop().time
    while True:
        wall, monotonic = now(), clock()
        await asyncio.sleep(TICK_S)
        late_s = max(now() - wall, clock() - monotonic) - TICK_S
        if late_s > SLEPT_S:
            await on_wake(late_s)
