"""A link emulator: a TCP proxy in front of a peer that announces only the proxy's address.

Delay, jitter, bandwidth, stall, cut and one-way blackhole, each direction for itself, changeable at
any time and with seeded chance. The same `LinkConditions` describes a link in memory. Knows bytes and
connections, nothing of what they mean. What the peer itself dials does not pass through it.
"""

import asyncio
import random
import socket
import struct
from dataclasses import dataclass, field
from typing import Self

from swarm.network.memory import LinkConditions

CLEAR = LinkConditions()
HOST = "127.0.0.1"

_CHUNK_BYTES = 64 * 1024
_WINDOW_CHUNKS = 16  # under way in one direction before the sender has to wait, as a socket would


class LinkEmulator:
    """Carries every connection to `port` on to the peer's own port. `close` it at the end."""

    def __init__(self, target_port: int, seed: int = 0) -> None:
        self.port = 0
        self._target_port = target_port
        self._to_peer = _Direction(random.Random(f"{seed} to"))  # noqa: S311 - repeatable on purpose
        self._from_peer = _Direction(random.Random(f"{seed} from"))  # noqa: S311
        self._connections: set[_Connection] = set()
        self._carrying: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None

    @classmethod
    async def start(cls, target_port: int, seed: int = 0) -> Self:
        """Listen on a free port of the loopback."""
        emulator = cls(target_port, seed)
        emulator._server = await asyncio.start_server(emulator._accept, HOST, 0)
        emulator.port = int(emulator._server.sockets[0].getsockname()[1])
        return emulator

    @property
    def address(self) -> str:
        """What the peer is to announce: HOST:PORT."""
        return f"{HOST}:{self.port}"

    @property
    def connections(self) -> int:
        """How many are open through it now."""
        return len(self._connections)

    def set_link(self, to_peer: LinkConditions = CLEAR, from_peer: LinkConditions = CLEAR) -> None:
        """Change both directions. A connection that lost bytes does not survive the end of the loss."""
        healed = (self._to_peer.link.blackhole and not to_peer.blackhole) or (
            self._from_peer.link.blackhole and not from_peer.blackhole
        )
        self._to_peer.change(to_peer)
        self._from_peer.change(from_peer)
        for connection in tuple(self._connections):
            if self.is_cut or (healed and connection.lost_bytes):
                connection.abort()

    @property
    def is_cut(self) -> bool:
        """Whether no connection can stand."""
        return self._to_peer.link.cut or self._from_peer.link.cut

    async def close(self) -> None:
        """Stop listening and break every connection."""
        if self._server is not None:
            self._server.close()
        for connection in tuple(self._connections):
            connection.abort()
        if self._carrying:
            await asyncio.wait(self._carrying)

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        carrying = asyncio.create_task(self._carry(reader, writer))
        self._carrying.add(carrying)
        carrying.add_done_callback(self._carrying.discard)

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        onward = await self._open_onward()
        if onward is None or self.is_cut:
            _reset(writer)
            return
        connection = _Connection(
            _Flow(self._to_peer, reader, onward[1]), _Flow(self._from_peer, onward[0], writer)
        )
        self._connections.add(connection)
        try:
            await connection.run()
        finally:
            self._connections.discard(connection)

    async def _open_onward(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter] | None:
        try:
            return await asyncio.open_connection(HOST, self._target_port)
        except OSError:  # the peer is down
            return None


class _Direction:
    """One direction of the link, for all connections."""

    def __init__(self, chance: random.Random) -> None:
        self.link = CLEAR
        self._chance = chance
        self._flowing = asyncio.Event()
        self._flowing.set()

    def change(self, link: LinkConditions) -> None:
        self.link = link
        if link.stalled:
            self._flowing.clear()
        else:
            self._flowing.set()

    def delay_s(self) -> float:
        return self.link.delay_s + self.link.jitter_s * self._chance.random()

    async def flowing(self) -> None:
        """Return when bytes may arrive."""
        await self._flowing.wait()


@dataclass(slots=True)
class _Flow:
    """One direction of one connection: bytes under way, in order."""

    direction: _Direction
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    lost_bytes: bool = False
    _under_way: asyncio.Queue[tuple[float, bytes]] = field(
        default_factory=lambda: asyncio.Queue(_WINDOW_CHUNKS)
    )
    _free_at: float = 0.0
    _last_arrival: float = 0.0

    async def run(self) -> None:
        """Carry bytes until the sender ends, and the end itself unless it is lost, too."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._take())
            group.create_task(self._deliver())

    async def _take(self) -> None:
        while True:
            data = await self.reader.read(_CHUNK_BYTES)
            link = self.direction.link
            self.lost_bytes = self.lost_bytes or link.blackhole
            if not self.lost_bytes:
                self._free_at = max(self._free_at, _now()) + len(data) / link.rate_bytes_per_s
                self._last_arrival = max(self._last_arrival, self._free_at + self.direction.delay_s())
                await self._under_way.put((self._last_arrival, data))
            if not data:
                return

    async def _deliver(self) -> None:
        while True:
            arrival, data = await self._under_way.get()
            await asyncio.sleep(arrival - _now())
            await self.direction.flowing()
            if not data:
                self.writer.write_eof()
                return
            self.writer.write(data)
            await self.writer.drain()


@dataclass(slots=True, eq=False)
class _Connection:
    """Both directions of one connection, until both have ended or one breaks."""

    to_peer: _Flow
    from_peer: _Flow
    _aborted: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def lost_bytes(self) -> bool:
        return self.to_peer.lost_bytes or self.from_peer.lost_bytes

    async def run(self) -> None:
        """Carry both directions until they have ended, or until `abort`."""
        tasks = [asyncio.create_task(self._carry()), asyncio.create_task(self._aborted.wait())]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            self.to_peer.writer.close()
            self.from_peer.writer.close()

    def abort(self) -> None:
        """Reset it towards both ends."""
        self._aborted.set()
        _reset(self.to_peer.writer)
        _reset(self.from_peer.writer)

    async def _carry(self) -> None:
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self.to_peer.run())
                group.create_task(self.from_peer.run())
        except* OSError:
            self.abort()  # what one end broke is broken for the other


def _reset(writer: asyncio.StreamWriter) -> None:
    if not writer.transport.is_closing():
        at_once = struct.pack("ii", 1, 0)  # without it the other end would see an orderly end
        writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, at_once)
        writer.transport.abort()


def _now() -> float:
    return asyncio.get_running_loop().time()
