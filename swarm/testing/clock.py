"""Virtual time: an event loop whose clock jumps to the next timer when nothing else can happen.

Hours pass in milliseconds, and the same program takes the same course every time. Work that the loop
hands to threads (`run_in_executor`, `asyncio.to_thread`) is waited for in real time while the virtual
clock stands still. Sockets and subprocesses do not belong here. Where nothing can ever happen again,
`Deadlock` is raised instead of waiting for ever.
"""

import asyncio
import selectors
from collections.abc import Callable, Coroutine
from concurrent.futures import Executor
from typing import Any, TypeVar, TypeVarTuple

from swarm.errors import SwarmError

_Args = TypeVarTuple("_Args")
_Result = TypeVar("_Result")


class Deadlock(SwarmError):
    """Every task waits and no timer is set: nothing can ever happen again."""

    code = "deadlock"


class _IdleSelector(selectors.DefaultSelector):
    """Never waits: asks `on_idle` what to do instead."""

    def __init__(self) -> None:
        super().__init__()
        self.on_idle: Callable[[float | None], bool] = lambda _: False

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        events = super().select(0)
        if events or (timeout is not None and timeout <= 0):
            return events
        waits_for_threads = self.on_idle(timeout)
        return super().select(None) if waits_for_threads else []


class VirtualTimeLoop(asyncio.SelectorEventLoop):
    """An asyncio loop in virtual time, in seconds from 0."""

    def __init__(self) -> None:
        self._now_s = 0.0
        self._threads = 0
        selector = _IdleSelector()
        super().__init__(selector)
        selector.on_idle = self._jump

    def time(self) -> float:
        return self._now_s

    def run_in_executor(
        self, executor: Executor | None, func: Callable[[*_Args], _Result], *args: *_Args
    ) -> asyncio.Future[_Result]:
        """As asyncio's; until the thread is done, virtual time stands still."""
        work = super().run_in_executor(executor, func, *args)
        self._threads += 1
        work.add_done_callback(self._thread_done)
        return work

    async def shutdown_default_executor(self) -> None:
        self._threads += 1  # asyncio waits for a thread of its own here
        try:
            await super().shutdown_default_executor()
        finally:
            self._threads -= 1

    def _thread_done(self, _: object) -> None:
        self._threads -= 1

    def _jump(self, timeout: float | None) -> bool:
        if self._threads:
            return True
        if timeout is None:
            waiting = ", ".join(sorted(task.get_name() for task in asyncio.all_tasks(self)))
            raise Deadlock(f"No timer is set and nothing is ready; these tasks wait for ever: {waiting}")
        self._now_s += timeout
        return False


def run_virtual(main: Coroutine[Any, Any, _Result]) -> _Result:
    """Run a coroutine to its end in virtual time. Raises what it raises, or `Deadlock`."""
    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        return runner.run(main)
