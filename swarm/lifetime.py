"""How long a service runs: until it is told to stop, or until what it stands on is lost.

A service that did not look would stay when its node is lost for good, seem alive, and never be started again.
"""

import asyncio
import signal
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any, Protocol

from swarm.errors import SwarmError


class Node(Protocol):
    """What a service knows of its node here, as network/transport.Network has it."""

    async def wait_failed(self) -> SwarmError: ...


async def until_stopped(stop: asyncio.Event, node: Node, tasks: Iterable[asyncio.Task[None]] = ()) -> None:
    """Return when told to stop. Raises what ended the node for good, or one of `tasks`, if that comes first.

    The tasks are only watched: they go on afterwards, and one that returns has not failed.
    """
    stopped, lost = asyncio.create_task(stop.wait()), asyncio.create_task(node.wait_failed())
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


@contextmanager
def stopped_by_hangup(stop: asyncio.Event) -> Iterator[None]:
    """While the block runs, the end of its terminal (SIGHUP) tells a service to stop.

    Both the shell and the system may tell it, so a second time must not mean what a second Ctrl-C means.
    What was started with nohup goes on.
    """
    if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
        yield
        return
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGHUP, stop.set)
    try:
        yield
    finally:
        loop.remove_signal_handler(signal.SIGHUP)
