"""The network in memory: the contract of network/transport between nodes of one process.

Links can be slow, uneven, stalled, cut or one-way black holes; nodes can freeze (a sleeping machine)
and die. All timing goes through the running loop's clock and all chance through the seed, so under a
virtual-time loop the same program always takes the same course. Ships for tests and simulations.
"""

import asyncio
import math
import random
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace

from swarm.errors import InvalidRecord, NetworkError, PeerUnreachable, SwarmError
from swarm.network.admission import RecordCheck, newest
from swarm.network.channel import Channel
from swarm.network.handlers import HandlerTasks
from swarm.network.storage import RecordStorage
from swarm.network.transport import Handler, Reach
from swarm.security.identity import Identity
from swarm.values import PeerId
from swarm.wire.records import AnyRecord, LookUp

_WINDOW_BYTES = 1024 * 1024  # under way or unread before a writer has to wait, as a socket would


@dataclass(frozen=True, slots=True)
class LinkConditions:
    """What one direction between two nodes does to what is sent on it."""

    delay_s: float = 0.0
    jitter_s: float = 0.0  # up to this much more, evenly; never reorders
    rate_bytes_per_s: float = math.inf
    stalled: bool = False  # bytes wait until it is over
    blackhole: bool = False  # bytes vanish, and what was lost is never made up for
    cut: bool = False  # channels close at once, new ones are refused


class MemorySwarm:
    """All nodes, links and records of one network in memory."""

    def __init__(self, seed: int, now: Callable[[], float] = time.time) -> None:
        self.now = now
        self._random = random.Random(seed)  # noqa: S311 - repeatable on purpose
        self._default_link = LinkConditions()
        self._links: dict[tuple[PeerId, PeerId], LinkConditions] = {}
        self._frozen: dict[PeerId, asyncio.Event] = {}  # set when it thaws
        self._nodes: dict[PeerId, MemoryNetwork] = {}
        self._pipes: set[_Pipe] = set()
        self._admission = RecordCheck()
        self._storage = RecordStorage(self._random)

    def join(self, identity: Identity) -> "MemoryNetwork":
        """A new node. One identity has at most one live node."""
        if identity.peer_id in self._nodes:
            raise NetworkError(f"A node of {identity.peer_id} is in this network already")
        node = MemoryNetwork(self, identity.peer_id)
        self._nodes[identity.peer_id] = node
        return node

    def set_default_link(self, link: LinkConditions) -> None:
        """The link between any two nodes that have none of their own."""
        self._default_link = link
        self._apply()

    def set_link(self, source: PeerId, target: PeerId, link: LinkConditions) -> None:
        """Change one direction between two nodes."""
        self._links[source, target] = link
        self._apply()

    def set_links(self, one: PeerId, other: PeerId, link: LinkConditions) -> None:
        """Change both directions between two nodes."""
        self._links[one, other] = self._links[other, one] = link
        self._apply()

    def freeze(self, peer: PeerId) -> None:
        """The node falls silent, like a machine put to sleep: nothing leaves it, nothing arrives."""
        self._frozen.setdefault(peer, asyncio.Event())

    def thaw(self, peer: PeerId) -> None:
        """A frozen node goes on; what waited arrives."""
        thawed = self._frozen.pop(peer, None)
        if thawed is not None:
            thawed.set()
            self._apply()

    async def kill(self, peer: PeerId) -> None:
        """The node dies as a killed process does; its records stay until they expire."""
        await self._nodes[peer].kill()

    def link(self, source: PeerId, target: PeerId) -> LinkConditions:
        """How one direction is now; a frozen end stalls it."""
        link = self._links.get((source, target), self._default_link)
        return replace(link, stalled=True) if source in self._frozen or target in self._frozen else link

    async def thawed(self, peer: PeerId) -> None:
        """Return when the node does not sleep."""
        if peer in self._frozen:
            await self._frozen[peer].wait()

    def delay_s(self, link: LinkConditions) -> float:
        """How long the next bytes take over a link."""
        return link.delay_s + link.jitter_s * self._random.random()

    def node(self, peer: PeerId) -> "MemoryNetwork | None":
        """A live node."""
        return self._nodes.get(peer)

    def connect(self, source: PeerId, target: PeerId) -> tuple[Channel, Channel]:
        """The two ends of a new channel."""
        there, back = _Pipe(self, source, target), _Pipe(self, target, source)
        self._pipes |= {there, back}
        return Channel(target, back, _PipeWriter(there, back)), Channel(
            source, there, _PipeWriter(back, there)
        )

    def store(self, key: str, sealed: bytes, sender: PeerId) -> bool:
        """Keep a record, if the rules of the directory let it stand there."""
        try:
            record = self._admission.admit(key, sealed, self.now())
        except InvalidRecord:
            return False
        return record.peer == sender and self._storage.put(key, record, sealed, self.now())

    def fetch(self, key: str) -> tuple[AnyRecord, ...]:
        """The live records under a key."""
        now = self.now()
        return newest(self._admission.admit(key, sealed, now) for sealed in self._storage.get(key, now))

    def remove(self, peer: PeerId) -> None:
        """Take a node out and break its pipes."""
        self._nodes.pop(peer, None)
        for pipe in tuple(self._pipes):
            if peer in (pipe.source, pipe.target):
                pipe.break_off()

    def forget(self, pipe: "_Pipe") -> None:
        """A pipe has come to its end."""
        self._pipes.discard(pipe)

    def _apply(self) -> None:
        for pipe in tuple(self._pipes):
            pipe.link_changed()


class MemoryNetwork:
    """One node in memory; see network/transport.Network for the contract of each method."""

    def __init__(self, swarm: MemorySwarm, peer_id: PeerId) -> None:
        self._swarm = swarm
        self._peer_id = peer_id
        self._handlers: dict[str, Handler] = {}
        self._tasks = HandlerTasks()
        self._killed = asyncio.Event()
        self._closed = False

    @property
    def peer_id(self) -> PeerId:
        return self._peer_id

    @property
    def addresses(self) -> tuple[str, ...]:
        return (f"/memory/0/p2p/{self._peer_id}",)

    @property
    def behind_s(self) -> float:
        return 0.0

    async def open_channel(self, peer: PeerId, protocol: str, timeout_s: float) -> Channel:
        self._check_open()
        try:
            async with asyncio.timeout(timeout_s):
                await self._travel(self._peer_id, peer)
                handler, target = self._handler_of(peer, protocol)
                await self._travel(peer, self._peer_id)
        except TimeoutError:
            raise PeerUnreachable(f"Peer {peer} did not answer within {timeout_s:g} s") from None
        self._check_open()
        if target._closed:
            raise PeerUnreachable(f"No stream to peer {peer}: it has left the network since it answered")
        ours, theirs = self._swarm.connect(self._peer_id, peer)
        target._tasks.start(handler, theirs)
        return ours

    async def hang_up(self, peer: PeerId, silent_s: float) -> None:
        """There are no connections in memory, only channels."""

    @property
    def reach(self) -> Reach:
        return "direct"

    @property
    def why_unreachable(self) -> str:
        return ""

    async def wait_reachable(self) -> None:
        return

    async def wait_changed(self) -> None:
        await asyncio.get_running_loop().create_future()  # nothing ever does

    async def serve(self, protocol: str, handler: Handler) -> None:
        self._check_open()
        self._handlers[protocol] = handler

    async def store(self, key: str, sealed: bytes) -> bool:
        await self._awake()
        return self._swarm.store(key, sealed, self._peer_id)

    async def fetch(self, key: str) -> LookUp:
        await self._awake()
        return LookUp(self._swarm.fetch(key))

    async def wait_failed(self) -> SwarmError:
        await self._killed.wait()
        return NetworkError(f"Node {self._peer_id} was killed")

    async def close(self) -> None:
        if not self._closed:
            self._closed = True
            self._swarm.remove(self._peer_id)
            await self._tasks.close()

    async def kill(self) -> None:
        """End as a killed process does: channels close at both ends, handlers are gone."""
        self._killed.set()
        await self.close()

    def _check_open(self) -> None:
        if self._closed:
            raise PeerUnreachable("This node has left the network")

    def _handler_of(self, peer: PeerId, protocol: str) -> "tuple[Handler, MemoryNetwork]":
        target = self._swarm.node(peer)
        if target is None or target is self:
            raise PeerUnreachable(f"No stream to peer {peer}: it is not in this network")
        if protocol not in target._handlers:
            raise PeerUnreachable(f"No stream to peer {peer}: it does not speak {protocol}")
        return target._handlers[protocol], target

    async def _travel(self, source: PeerId, target: PeerId) -> None:
        """Let a request take its time over a link; for ever, where it would never arrive."""
        link = self._swarm.link(source, target)
        if link.cut:
            raise PeerUnreachable(f"No stream to peer {target}: the link is cut")
        if link.stalled or link.blackhole:
            await asyncio.get_running_loop().create_future()
        await asyncio.sleep(self._swarm.delay_s(link))

    async def _awake(self) -> None:
        self._check_open()
        await self._swarm.thawed(self._peer_id)
        self._check_open()


class _Pipe:
    """One direction of a channel: bytes under way, in order, and what has arrived. Is the `Reader`."""

    def __init__(self, swarm: MemorySwarm, source: PeerId, target: PeerId) -> None:
        self.source = source
        self.target = target
        self._swarm = swarm
        self._loop = asyncio.get_running_loop()
        self._under_way: deque[tuple[float, bytes | None]] = deque()  # (arrival, bytes or the end)
        self._arrived = bytearray()
        self._size_bytes = 0  # under way and arrived
        self._last_arrival = 0.0
        self._free_at = 0.0  # when the last byte so far has left the sender
        self._ended = False  # for the reader: nothing more will arrive
        self._lost = False  # something fell into a black hole; nothing after it arrives either
        self._changed = asyncio.Event()

    @property
    def ended(self) -> bool:
        return self._ended

    async def readexactly(self, n: int) -> bytes:
        while len(self._arrived) < n:
            if self._ended:
                raise asyncio.IncompleteReadError(bytes(self._arrived), n)
            await self._wait()
        data = bytes(self._arrived[:n])
        del self._arrived[:n]
        self._size_bytes -= n
        self._notify()
        return data

    def push(self, data: bytes | None) -> None:
        """Send bytes on their way, or None as the end."""
        link = self._swarm.link(self.source, self.target)
        self._lost = self._lost or link.blackhole
        if self._lost or self._ended:
            return
        self._size_bytes += len(data or b"")
        self._free_at = max(self._free_at, self._loop.time()) + len(data or b"") / link.rate_bytes_per_s
        self._last_arrival = max(self._last_arrival, self._free_at + self._swarm.delay_s(link))
        self._under_way.append((self._last_arrival, data))
        self._deliver()

    async def drained(self) -> None:
        """Wait until the other end has taken most of it."""
        while self._size_bytes > _WINDOW_BYTES and not self._ended:
            await self._wait()

    def end(self) -> None:
        """Nothing more arrives, from this moment."""
        self._ended = True
        self._under_way.clear()
        self._swarm.forget(self)
        self._notify()

    def break_off(self) -> None:
        """A node at one end is gone; over a black hole not even that arrives."""
        if not (self._lost or self._swarm.link(self.source, self.target).blackhole):
            self.end()

    def link_changed(self) -> None:
        if self._swarm.link(self.source, self.target).cut:
            self.end()
        else:
            self._deliver()

    def _deliver(self) -> None:
        if self._swarm.link(self.source, self.target).stalled:
            return
        while self._under_way and self._under_way[0][0] <= self._loop.time():
            data = self._under_way.popleft()[1]
            if data is None:
                self.end()
                return
            self._arrived += data
            self._notify()
        if self._under_way:
            self._loop.call_at(self._under_way[0][0], self._deliver)

    async def _wait(self) -> None:
        self._changed.clear()
        await self._changed.wait()

    def _notify(self) -> None:
        self._changed.set()


class _PipeWriter:
    """The writing half of a channel's end. Closing it ends both directions, as a socket's does."""

    def __init__(self, out: _Pipe, back: _Pipe) -> None:
        self._out = out
        self._back = back
        self._closed = False

    def write(self, data: bytes) -> None:
        if self._closed or self._back.ended:
            raise ConnectionResetError("The stream is closed")
        self._out.push(data)

    async def drain(self) -> None:
        await self._out.drained()

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            self._out.push(None)
            self._back.end()

    def abort(self) -> None:
        self.close()
        self._out.break_off()
