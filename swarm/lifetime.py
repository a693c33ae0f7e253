"""How long a service runs: until it is told to stop, or until what it stands on is lost.

A service that did not look would stay when its node is lost for good, seem alive, and never be started again.
What goes wrong in one of its tasks ends no more than one run of that task.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from typing import Any, TypeVar

from swarm.network.transport import Network

Result = TypeVar("Result")

RUN_AGAIN_AFTER_S = 1.0
MAX_FAILURES = 5  # in a row
STEADY_S = 60.0  # what ran for so long begins a new row

_log = logging.getLogger(__name__)


async def persist(name: str, work: Callable[[], Awaitable[None]]) -> None:
    """Do `work`, again and again if it fails, until it comes to its own end.

    What the system refuses (no file left, no memory) is tried again for as long as it takes; a mistake of
    ours only so often in a row, and then it is raised: a supervisor can start all of it anew.
    """
    clock = asyncio.get_running_loop().time
    failures = 0
    while True:
        begun = clock()
        try:
            return await work()
        except Exception as error:  # seen, and the program goes on
            _log.exception("The %s failed; it is started again", name)
            failures = 1 if clock() - begun > STEADY_S else failures + 1
            if failures == MAX_FAILURES and not isinstance(error, OSError | MemoryError):
                raise
        await asyncio.sleep(RUN_AGAIN_AFTER_S)


class Stopped(Exception):
    """Told to stop before some work was at its end."""


async def unless_stopped(stop: asyncio.Event, work: Coroutine[Any, Any, Result]) -> Result:
    """Do `work`, which is cancelled when told to stop meanwhile; raises `Stopped` then."""
    working, stopping = asyncio.create_task(work), asyncio.create_task(stop.wait())
    try:
        await asyncio.wait([working, stopping], return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            raise Stopped
        return working.result()
    finally:
        stopping.cancel()
        working.cancel()
        await asyncio.gather(working, return_exceptions=True)


async def until_stopped(
    stop: asyncio.Event, network: Network, tasks: Iterable[asyncio.Task[None]] = ()
) -> None:
    """Return when told to stop. Raises what ended the node for good, or one of `tasks`, if that comes first.

    The tasks are only watched: they go on afterwards, and one that returns has not failed.
    """
    stopped, lost = asyncio.create_task(stop.wait()), asyncio.create_task(network.wait_failed())
    waiting: set[asyncio.Task[Any]] = {stopped, lost, *tasks}
    try:
        while not stopped.done():
            done, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            if lost in done:
                raise lost.result()
            for task in done:
                task.result()
    finally:
        stopped.cancel()
        lost.cancel()
