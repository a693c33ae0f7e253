"""Room for what strangers send: bytes that are on their way through this peer, for each client and in all.

A body is read only when there is room for it, so what a peer lends to sessions bounds this, too. Who waits
is served in order, but nobody waits behind a client that has its share.
"""

import asyncio
from collections import Counter, deque
from dataclasses import dataclass

from swarm.errors import SessionRefused
from swarm.values import PeerId

COPIES = 4  # of a body: as it came, its rows, what comes out, and the answer
SHARE = 2  # a client has this part of all
WAIT_S = 45.0  # a busy peer works through its queue meanwhile


@dataclass(frozen=True, slots=True, eq=False)
class _Waiting:
    client: PeerId
    size_bytes: int
    admitted: asyncio.Future[None]


class InFlight:
    """Counts bodies. `total_bytes` is for all clients, and never less than the largest body takes."""

    def __init__(self, total_bytes: int, largest_body_bytes: int) -> None:
        self._total_bytes = max(total_bytes, COPIES * largest_body_bytes)
        self._share_bytes = max(self._total_bytes // SHARE, COPIES * largest_body_bytes)
        self._held: Counter[PeerId] = Counter()
        self._waiting: deque[_Waiting] = deque()

    @property
    def held_bytes(self) -> int:
        """What all clients hold."""
        return self._held.total()

    async def reserve(self, client: PeerId, body_bytes: int) -> None:
        """Wait until there is room for a body. Raises `SessionRefused` when there is none for long."""
        waiting = _Waiting(client, COPIES * body_bytes, asyncio.get_running_loop().create_future())
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

    def _fits(self, waiting: _Waiting) -> bool:
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
