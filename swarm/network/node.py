"""One life of a libp2p node: hivemind's daemon client and DHT around a running p2pd.

The only file that imports hivemind (and with it torch), so it is itself imported only when a node
starts. It does not restart or rejoin anything; network/libp2p does. Every error of hivemind's, of
its daemon and of the sockets between ends here and goes on as a `SwarmError`.
"""

import asyncio
import contextlib
import re
import time
import weakref
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
from hivemind.dht.crypto import DHTRecord, RecordValidatorBase
from hivemind.dht.node import DHTNode
from hivemind.dht.protocol import ValidationError
from hivemind.dht.routing import DHTID
from hivemind.dht.storage import DHTLocalStorage
from hivemind.p2p import P2P, P2PDaemonError, P2PHandlerError, PeerID
from hivemind.p2p.p2p_daemon_bindings.control import ControlClient, DaemonConnector
from hivemind.p2p.p2p_daemon_bindings.datastructures import StreamInfo
from hivemind.p2p.p2p_daemon_bindings.utils import read_pbmsg_safe, write_pbmsg
from hivemind.proto import p2pd_pb2
from hivemind.utils.logging import use_hivemind_log_handler
from hivemind.utils.multiaddr import Multiaddr
from hivemind.utils.multiaddr.exceptions import Error as MultiaddrError

from swarm.errors import ClockSkew, InvalidRecord, NetworkError, PeerUnreachable
from swarm.network.addresses import Endpoint, JoinAddress
from swarm.network.admission import Entry, keys_of, open_entry, supersedes
from swarm.network.channel import Channel, Reader, Writer
from swarm.network.daemon import Daemon
from swarm.network.knock import Doors
from swarm.network.reachability import locate, say_returned
from swarm.security.identity import new_identity
from swarm.values import PeerId
from swarm.wire.records import MAX_CLOCK_SKEW_S, AnyRecord, PeerRecord

_FAILURES = (P2PDaemonError, P2PHandlerError, OSError, asyncio.IncompleteReadError)
_RPC_TIMEOUT_S = 3.0
_FIND_PEER_TIMEOUT_S = 1.0
_ALIVE_TIMEOUT_S = 1.0
_UNSPOKEN = "/swarm/nobody-speaks-this"
_CIRCUIT = "/p2p-circuit"
_P2P_CODE, _CIRCUIT_CODE = b"\xa5\x03", b"\xa2\x02"  # varints of the multiaddress table

OnChannel = Callable[[Channel], Awaitable[None]]


class _Storage(DHTLocalStorage):  # type: ignore[misc]  # hivemind is not typed
    """What this node keeps for the DHT: of two records of one peer, only the one of higher sequence."""

    def store_subkey(self, key: DHTID, subkey: str, value: bytes, expiration_time: float) -> bool:
        stored = self.get(key)
        present = stored.value.get(subkey) if stored is not None else None
        if present is not None and not _is_newer(subkey, (value, expiration_time), tuple(present)):
            return False
        return bool(super().store_subkey(key, subkey, value, expiration_time))


@dataclass(slots=True)
class Memory:
    """What outlives a restart of p2pd: what this node keeps for others in the DHT."""

    storage: _Storage = field(default_factory=_Storage)


class _P2P(P2P):  # type: ignore[misc]
    """What the DHT calls its neighbors through: it knocks before it lets p2pd dial."""

    doors: Doors

    async def call_protobuf_handler(self, peer_id: PeerID, *call: object) -> object:
        peer = PeerId(peer_id.to_base58())
        await self.doors.check(peer)
        answer = await super().call_protobuf_handler(peer_id, *call)
        await self.doors.met(peer)
        return answer


class Node:
    """A running p2pd with the DHT on top of it."""

    def __init__(self, daemon: Daemon, control: ControlClient, p2p: _P2P, dht: DHTNode) -> None:
        self.daemon = daemon
        self._control = control
        self._p2p = p2p
        self._dht = dht
        self._lifetime = contextlib.AsyncExitStack()
        self._opening: set[asyncio.Task[Any]] = set()
        self._channels: weakref.WeakSet[Channel] = weakref.WeakSet()
        p2p.doors.locate = self._locate

    @classmethod
    async def start(cls, daemon: Daemon, memory: Memory, client: bool) -> "Node":
        """Connect to a fresh p2pd and start the DHT, alone yet. Raises `NetworkError`."""
        use_hivemind_log_handler("nowhere")
        with _translated(NetworkError, "The network daemon p2pd does not answer"):
            connector = DaemonConnector(_unix(daemon.control_socket))
            control = await ControlClient.create(
                connector, _unix(daemon.callback_socket), use_persistent_conn=False
            )
            p2p = await _P2P.replicate(_unix(daemon.control_socket))
            p2p.doors = Doors(partial(_is_connected, control), partial(_addresses_of, control))
            # The place in the DHT follows from the key: a node that starts again is the same one there.
            dht_id = DHTID.generate(source=p2p.peer_id.to_bytes())
            dht = await DHTNode.create(
                p2p, dht_id, client_mode=client, record_validator=_Validator(p2p.doors),
                wait_timeout=_RPC_TIMEOUT_S,
                # A record lives for seconds and says how long; caches would only serve older ones.
                cache_locally=False, cache_nearest=0, cache_on_store=False,
            )  # fmt: skip
            dht.protocol.storage = memory.storage
            node = cls(daemon, control, p2p, dht)
            await node._lifetime.enter_async_context(control.listen())
        return node

    async def close(self) -> None:
        """End this life, also when p2pd is dead already."""
        self._dht.is_alive = False  # not shutdown(): that asks p2pd and would wait for the dead
        await self._p2p.shutdown()
        await self.daemon.stop()
        await self._lifetime.aclose()
        if self._opening:
            await asyncio.wait(self._opening)

    async def addresses(self) -> tuple[str, ...]:
        """Where others reach this node now, each ending in /p2p/<peer id>."""
        response = await _ask(self._control, p2pd_pb2.Request(type=p2pd_pb2.Request.IDENTIFY))
        peer = PeerID(response.identify.id).to_base58()
        routes = [readable(raw) for raw in response.identify.addrs]  # a relay may have any
        return tuple(f"{route}/p2p/{peer}" for route in routes if route)

    async def join(self, address: JoinAddress) -> None:
        """Meet one node of a swarm: connect, compare clocks, enter each other's routing table.

        Raises `PeerUnreachable` or `ClockSkew`.
        """
        peer = PeerID.from_base58(address.peer)
        with _translated(PeerUnreachable, f"{address} does not answer"):
            await self._p2p.doors.check_address(address)
            await self._control.connect(peer, [multiaddr(address.route)])
            try:
                answered = await self._dht.protocol.call_ping(peer, validate=True, strict=True)
            except ValidationError as error:
                if "local time" in str(error):
                    raise _clock_skew(address) from error
                # The other end cannot dial us (yet): a node behind a NAT waits for its relay.
                answered = await self._dht.protocol.call_ping(peer)
        if answered is None:
            raise PeerUnreachable(f"{address} answers, but it is not a node of a swarm, or not a serving one")

    async def return_to(self, address: JoinAddress, was_cut_off: bool) -> None:
        """Meet a node again that was lost: what is dead of before is closed at both ends.

        `was_cut_off`: everybody was lost, so it is dead for sure. Raises as `join`.
        """
        if was_cut_off:
            await self.hang_up(address.peer, 0.0)
        else:
            await self.hang_up_dead(address.peer, _ALIVE_TIMEOUT_S)
        await self.join(address)
        if not await say_returned(self, address.peer):
            await self.hang_up(address.peer, 0.0)
            await self.join(address)

    async def explore(self) -> None:
        """Find the nodes nearest to this one, and be found by them (Kademlia, section 2.3)."""
        await self._dht.find_nearest_nodes([self._dht.node_id])

    def neighbors(self) -> tuple[PeerId, ...]:
        """The nodes of the routing table."""
        return tuple(PeerId(peer.to_base58()) for peer in self._dht.protocol.routing_table.peer_id_to_uid)

    async def ping(self, peer: PeerId, timeout_s: float = _RPC_TIMEOUT_S) -> bool:
        """Ask a node for a sign of life; one that gives none leaves the routing table.

        It is disconnected, too, unless only its program is busy and the connection lives.
        """
        call = self._dht.protocol.call_ping(PeerID.from_base58(peer))
        closing = asyncio.create_task(self.hang_up_dead(peer, timeout_s))
        answer = None
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                answer = await call
        if answer is not None:
            closing.cancel()
        else:
            self._forget(peer)
        await asyncio.wait({closing})
        return answer is not None

    async def is_alive(self, peer: PeerId, timeout_s: float) -> bool:
        """Whether a peer is connected and answers."""
        return await _is_connected(self._control, peer) and await self.ping(peer, timeout_s)

    async def hang_up_dead(self, peer: PeerId, timeout_s: float) -> None:
        """Close the connection to a peer, if there is one and nothing comes back on it.

        libp2p itself answers for a protocol that nobody speaks, however busy the program above it is.
        """
        with contextlib.suppress(NetworkError):
            if not await _is_connected(self._control, peer):
                return
            try:
                async with asyncio.timeout(timeout_s):
                    await self._control.stream_open(PeerID.from_base58(peer), (_UNSPOKEN,))
            except _FAILURES as error:
                if not isinstance(error, TimeoutError):
                    return
            await self.hang_up(peer, timeout_s)

    def _forget(self, peer: PeerId) -> None:
        table = self._dht.protocol.routing_table
        place = table.get(peer_id=PeerID.from_base58(peer))
        if place is not None:
            del table[place]

    async def hang_up(self, peer: PeerId, silent_s: float) -> None:
        """Close the connection to a peer, so that it is dialled anew; not when one of its channels has
        heard the peer within that time."""
        channels = [channel for channel in self._channels if channel.peer == peer]
        if any(_now() - channel.heard_at < silent_s for channel in channels):
            return
        with contextlib.suppress(*_FAILURES):  # there is none, or p2pd has just ended
            await self._control.disconnect(PeerID.from_base58(peer))

    async def count_connections(self, peer: PeerId) -> int:
        """How many connections there are to a peer, dead ones included."""
        response = await _ask(self._control, p2pd_pb2.Request(type=p2pd_pb2.Request.LIST_PEERS))
        wanted = PeerID.from_base58(peer).to_bytes()
        return sum(info.id == wanted for info in response.peers)

    async def connections(self) -> dict[PeerId, str]:
        """Whom this node is connected to, and the multiaddress of the other end."""
        response = await _ask(self._control, p2pd_pb2.Request(type=p2pd_pb2.Request.LIST_PEERS))
        return {
            PeerId(PeerID(info.id).to_base58()): (readable(info.addrs[0]) if info.addrs else None) or ""
            for info in response.peers
        }

    async def whose_key(self, endpoint: Endpoint) -> PeerId | None:
        """Whose node answers at an endpoint; None when none does. Raises `NetworkError`.

        libp2p is asked to dial somebody that cannot be there, and says whose key it met instead.
        """
        decoy = new_identity().peer_id
        try:
            await self._control.connect(PeerID.from_base58(decoy), [Multiaddr(str(endpoint))])
        except _FAILURES as error:
            met = re.search(r"remote key matches (\w+)", str(error))
            return PeerId(met[1]) if met else None
        return None

    async def addresses_of(self, peer: PeerId) -> tuple[str, ...]:
        """Where a peer can be reached, as far as libp2p knows; empty when it does not."""
        return tuple(address for address in await _addresses_of(self._control, peer) if address)

    async def open_channel(self, peer: PeerId, protocol: str) -> Channel:
        """Open a stream. Raises `PeerUnreachable`; when cancelled, a late stream is closed again."""
        routes = await self._p2p.doors.find(peer)
        opening = asyncio.create_task(self._open_stream(peer, protocol, routes))
        self._opening.add(opening)
        opening.add_done_callback(self._opening.discard)
        try:
            with _translated(PeerUnreachable, f"No stream to peer {peer}"):
                reader, writer = await asyncio.shield(opening)
        except asyncio.CancelledError:
            opening.add_done_callback(_close_late)
            raise
        return self._channel(peer, reader, writer)

    def _channel(self, peer: PeerId, reader: Reader, writer: Writer, came_from: str = "") -> Channel:
        channel = Channel(peer, reader, writer, came_from)
        self._channels.add(channel)
        return channel

    async def _locate(self, peer: PeerId) -> tuple[str, ...]:
        """Where neighbors say that a peer is now; only those that this node is connected to are asked."""
        connected = await self.connections()
        neighbors = [neighbor for neighbor in self.neighbors() if neighbor in connected]
        return await locate(self, neighbors, peer)

    async def _open_stream(
        self, peer: PeerId, protocol: str, routes: tuple[str, ...]
    ) -> tuple[Reader, Writer]:
        if routes:
            await self._control.connect(PeerID.from_base58(peer), [multiaddr(route) for route in routes])
        _, reader, writer = await self._control.stream_open(PeerID.from_base58(peer), (protocol,))
        await self._p2p.doors.met(peer)
        return reader, writer

    async def serve(self, protocol: str, on_channel: OnChannel) -> None:
        """Answer streams of a protocol. Raises `NetworkError`."""

        async def on_stream(info: StreamInfo, reader: Reader, writer: Writer) -> None:
            peer = PeerId(info.peer_id.to_base58())
            await on_channel(self._channel(peer, reader, writer, str(info.addr)))

        with _translated(NetworkError, "The network daemon p2pd does not answer"):
            await self._control.stream_handler(protocol, on_stream)

    async def store(self, key: str, entry: Entry) -> bool:
        """Keep an entry on the nodes nearest to its key; whether any of them took it."""
        is_client = self._dht.protocol.client_mode
        stored = await self._dht.store(
            key, entry.sealed, entry.expires_at, subkey=entry.subkey, exclude_self=is_client
        )
        return bool(stored)

    async def fetch(self, key: str) -> tuple[Entry, ...]:
        """All entries under a key that the nodes nearest to it know."""
        found = await self._dht.get(key, latest=True)
        if found is None or not isinstance(found.value, dict):
            return ()
        return tuple(
            Entry(subkey, value, expires_at)
            for subkey, (value, expires_at) in found.value.items()
            if isinstance(subkey, str) and isinstance(value, bytes)
        )


class _Validator(RecordValidatorBase):  # type: ignore[misc]  # hivemind is not typed
    """Refuses what network/admission refuses. Asked before anything is kept, and for all that is found.

    hivemind throws a whole answer away for one refused record, so clocks are judged with grace here,
    and exactly where records are read.
    """

    def __init__(self, doors: Doors) -> None:
        self._doors = doors

    def validate(self, record: DHTRecord) -> bool:
        try:
            subkey = msgspec.msgpack.decode(record.subkey, type=str)
            opened = _open(subkey, record.value, record.expiration_time)
        except (InvalidRecord, msgspec.DecodeError):
            return False
        if all(DHTID.generate(source=key).to_bytes() != record.key for key in keys_of(opened)):
            return False
        if isinstance(opened, PeerRecord):
            self._doors.heard_of(opened)
        return True


async def _is_connected(control: ControlClient, peer: PeerId) -> bool:
    """Whether p2pd has a connection to a peer. The answer is searched raw: it may name thousands."""
    response = await _ask(control, p2pd_pb2.Request(type=p2pd_pb2.Request.LIST_PEERS))
    wanted = PeerID.from_base58(peer).to_bytes()
    return any(info.id == wanted for info in response.peers)


async def _addresses_of(control: ControlClient, peer: PeerId) -> tuple[str | None, ...]:
    """Where a peer listens, as far as libp2p knows; None for what it accepts and hivemind cannot read."""
    query = p2pd_pb2.DHTRequest(
        type=p2pd_pb2.DHTRequest.FIND_PEER,
        peer=PeerID.from_base58(peer).to_bytes(),
        timeout=int(_FIND_PEER_TIMEOUT_S * 1e9),
    )
    response = await _ask(control, p2pd_pb2.Request(type=p2pd_pb2.Request.DHT, dht=query))
    if response.type == p2pd_pb2.Response.ERROR:
        return ()
    routes = [readable(raw) for raw in response.dht.peer.addrs]
    return tuple(f"{route}/p2p/{peer}" if route else None for route in routes)


async def _ask(control: ControlClient, request: p2pd_pb2.Request) -> p2pd_pb2.Response:
    """One question to p2pd. Raises `PeerUnreachable`."""
    response = p2pd_pb2.Response()
    with _translated(PeerUnreachable, "The network daemon p2pd does not answer"):
        reader, writer = await control.daemon_connector.open_connection()
        with contextlib.closing(writer):
            await write_pbmsg(writer, request)
            await read_pbmsg_safe(reader, response)
    return response


def multiaddr(route: str) -> Multiaddr:
    """A route as p2pd reads it: hivemind writes the id of a relay in a form that go-libp2p refuses."""
    if not route.endswith(_CIRCUIT):
        return Multiaddr(route)
    direct, _, relay = route.removesuffix(_CIRCUIT).rpartition("/p2p/")
    peer_id = PeerID.from_base58(relay).to_bytes()
    return Multiaddr(
        Multiaddr(direct).to_bytes() + _P2P_CODE + bytes([len(peer_id)]) + peer_id + _CIRCUIT_CODE
    )


def readable(raw: bytes) -> str | None:
    """A multiaddress as text; None for one that hivemind does not understand."""
    try:
        return str(Multiaddr(raw))
    except (ValueError, TypeError, LookupError, MultiaddrError):  # it fails in all these ways
        return None


def _open(subkey: str, value: bytes, expires_at: float) -> AnyRecord:
    sealed = msgspec.msgpack.decode(value, type=bytes)
    return open_entry(Entry(subkey, sealed, expires_at), time.time(), grace_s=MAX_CLOCK_SKEW_S)


def _is_newer(subkey: str, offered: tuple[bytes, float], present: tuple[bytes, float]) -> bool:
    try:
        older = _open(subkey, *present)
    except InvalidRecord:  # it has expired
        return True
    return supersedes(_open(subkey, *offered), older)


def _clock_skew(address: JoinAddress) -> ClockSkew:
    return ClockSkew(
        f"The clocks of this machine and of {address} differ by more than {MAX_CLOCK_SKEW_S:.0f} s",
        "Let the operating system set the time (on Linux: timedatectl set-ntp true) and try again.",
    )


def _now() -> float:
    return asyncio.get_running_loop().time()


def _unix(path: Path) -> Multiaddr:
    return Multiaddr(f"/unix{path}")


def _close_late(opening: "asyncio.Task[Any]") -> None:
    if not opening.cancelled() and opening.exception() is None:
        opening.result()[1].close()


@contextlib.contextmanager
def _translated(kind: type[NetworkError], what: str) -> Iterator[None]:
    try:
        yield
    except _FAILURES as error:
        raise kind(f"{what}: {_reason(error)}") from error


def _reason(error: Exception) -> str:
    """One line of what p2pd says: of a dial to several addresses, how the last one ended."""
    lines = str(error).removeprefix("Connect failed. msg=").strip().splitlines()
    return re.sub(r"^\s*\* \[\S*\] ", "", lines[-1]) if lines else type(error).__name__
