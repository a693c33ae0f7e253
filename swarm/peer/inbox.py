"""The messages of one stream that wait for their turn: in order, and only so many.

A Rewind takes the place of what it makes void, so that a client that gives steps up one after the
other is not taken for one that floods its peer.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from typing import NamedTuple

from swarm.errors import SessionRefused
from swarm.network.channel import Envelope
from swarm.wire.messages import AnyMessage, Rewind, Step


class Waiting(NamedTuple):
    """A message, the body that came with it, and how many rewinds it stands for."""

    message: AnyMessage
    body: bytes
    rewinds: int


class Inbox:
    """One task puts messages in, another takes them out; `limit` of them may wait.

    `on_void` is told the size of each body that nobody needs any more.
    """

    def __init__(self, limit: int, on_void: Callable[[int], None] = lambda size_bytes: None) -> None:
        self._limit = limit
        self._on_void = on_void
        self._waiting: deque[Waiting] = deque()
        self._arrived = asyncio.Event()

    def put(self, envelope: Envelope) -> None:
        """Let a message wait behind the others. Raises `SessionRefused` when there are too many."""
        message, rewinds = envelope.message, 0
        if isinstance(message, Rewind):
            rewinds = 1
            while self._waiting and _is_void(self._waiting[-1].message, message):
                void = self._waiting.pop()
                rewinds += void.rewinds  # both ends count them
                self._on_void(len(void.body))
        if len(self._waiting) >= self._limit:
            raise SessionRefused("protocol", "Too many messages without reading the answers.")
        self._waiting.append(Waiting(message, envelope.body, rewinds))
        self._arrived.set()

    async def get(self) -> Waiting:
        """The message that has waited longest, as soon as there is one."""
        while not self._waiting:
            self._arrived.clear()
            await self._arrived.wait()
        return self._waiting.popleft()


def _is_void(earlier: AnyMessage, rewind: Rewind) -> bool:
    """Whether nothing is left of a message once the rewind right behind it is done."""
    return isinstance(earlier, Step | Rewind) and earlier.position >= rewind.position
