"""What clients have sent and what is not done yet: messages of a stream in order, and bytes of all streams.

Only so many messages of one stream wait. A Rewind takes the place of what it makes void, so that a client
that gives steps up one after the other is not taken for one that floods its peer. A body is read only when
there is room for it, so what a peer lends to sessions bounds this, too. Who waits for room is served in
order, but nobody waits behind a client that has its share.
"""

import asyncio
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from swarm.errors import SessionRefused
from swarm.network.channel import Envelope
from swarm.values import PeerId
from swarm.wire.messages import AnyMessage, Rewind, Step

COPIES = 4  # of a body: as it came, its rows, what comes out, and the answer
SHARE = 2  # a client has this part of all
WAIT_S = 45.0  # a busy peer works through its queue meanwhile


class QueuedMessage(NamedTuple):
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
        self._waiting: deque[QueuedMessage] = deque()
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
        self._waiting.append(QueuedMessage(message, envelope.body, rewinds))
        self._arrived.set()

    async def get(self) -> QueuedMessage:
        """The message that has waited longest, as soon as there is one."""
        while not self._waiting:
            self._arrived.clear()
            await self._arrived.wait()
        return self._waiting.popleft()


def _is_void(earlier: AnyMessage, rewind: Rewind) -> bool:
    """Whether nothing is left of a message once the rewind right behind it is done."""
    return isinstance(earlier, Step | Rewind) and earlier.position >= rewind.position


@dataclass(frozen=True, slots=True, eq=False)
class _RoomRequest:
    client: PeerId
    size_bytes: int
    admitted: asyncio.Future[None]


class InFlight:
    """Counts bodies. `total_bytes` is for all clients, and never less than the largest body takes."""

    def __init__(self, total_bytes: int, largest_body_bytes: int) -> None:
        self._total_bytes = max(total_bytes, COPIES * largest_body_bytes)
        self._share_bytes = max(self._total_bytes // SHARE, COPIES * largest_body_bytes)
        self._held: Counter[PeerId] = Counter()
        self._waiting: deque[_RoomRequest] = deque()

    @property
    def held_bytes(self) -> int:
        """What all clients hold."""
        return self._held.total()

    async def reserve(self, client: PeerId, body_bytes: int) -> None:
        """Wait until there is room for a body. Raises `SessionRefused` when there is none for long."""
        waiting = _RoomRequest(client, COPIES * body_bytes, asyncio.get_running_loop().create_future())
        self._waiting.append(waiting)
        self._admit()
        try:
            async with asyncio.timeout(WAIT_S):
                await waiting.admitted
        except BaseException as error:
            if waiting in self._waiting:
                self._waiting.remove(waiting)
            elif waiting.admitted.done() and not waiting.admitted.cancelled():
                self.release(client, body_bytes)  # it was let in while it was given up
            if isinstance(error, TimeoutError):
                raise SessionRefused("capacity", "This peer has no room for what it is sent.") from None
            raise

    def release(self, client: PeerId, body_bytes: int) -> None:
        """A body is done with."""
        self._held[client] -= COPIES * body_bytes
        if not self._held[client]:
            del self._held[client]
        self._admit()

    def _admit(self) -> None:
        for waiting in tuple(self._waiting):
            if waiting.admitted.done() or not self._fits(waiting):
                continue
            self._waiting.remove(waiting)
            self._held[waiting.client] += waiting.size_bytes
            waiting.admitted.set_result(None)

    def _fits(self, waiting: _RoomRequest) -> bool:
        return (
            self._held[waiting.client] + waiting.size_bytes <= self._share_bytes
            and self.held_bytes + waiting.size_bytes <= self._total_bytes
        )


@dataclass(slots=True)
class Room:
    """What one stream holds of it."""

    in_flight: InFlight
    client: PeerId
    _held_bytes: int = 0

    async def reserve(self, body_bytes: int) -> None:
        """As `InFlight.reserve`."""
        await self.in_flight.reserve(self.client, body_bytes)
        self._held_bytes += body_bytes

    def release(self, body_bytes: int) -> None:
        """A body of that stream is done with."""
        if body_bytes:
            self._held_bytes -= body_bytes
            self.in_flight.release(self.client, body_bytes)

    def close(self) -> None:
        """The stream is at its end."""
        self.release(self._held_bytes)
