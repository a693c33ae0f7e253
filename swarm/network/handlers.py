"""The tasks that answer incoming channels, one each, and their end with the node.

Knows nothing of how a channel came in. A handler that fails ends its own channel and is logged;
it never harms another.
"""

import asyncio
import logging

from swarm.errors import NetworkError, SwarmError
from swarm.network.channel import Channel
from swarm.network.transport import Handler

_log = logging.getLogger(__name__)


class HandlerTasks:
    """Runs handlers; `close` cancels those still running."""

    def __init__(self) -> None:
        self._running: set[asyncio.Task[None]] = set()

    def __bool__(self) -> bool:
        """Whether any runs."""
        return bool(self._running)

    def start(self, handler: Handler, channel: Channel) -> "asyncio.Task[None]":
        """Run `handler` on `channel` in a task of its own; the channel is closed after it."""
        task = asyncio.create_task(_run(handler, channel), name=f"handler for {channel.peer}")
        self._running.add(task)
        task.add_done_callback(self._finished)
        return task

    async def close(self) -> None:
        """Cancel all handlers and wait until they are gone."""
        running = tuple(self._running)
        for task in running:
            task.cancel()
        if running:
            await asyncio.wait(running)

    def _finished(self, task: "asyncio.Task[None]") -> None:
        self._running.discard(task)
        error = None if task.cancelled() else task.exception()
        if isinstance(error, NetworkError):
            _log.debug("A channel ended: %s", error)
        elif isinstance(error, SwarmError):
            _log.warning("A channel was ended: %s", error)
        elif error is not None:
            _log.error("A handler failed; its channel is closed", exc_info=error)


async def _run(handler: Handler, channel: Channel) -> None:
    try:
        await handler(channel)
    finally:
        channel.close()
