"""One life of a libp2p node: hivemind's daemon client around a running p2pd, and the DHT on top of it.

With network/dht the only file that imports hivemind (and with it torch), so both are imported only when
a node starts. It does not restart or rejoin anything; network/libp2p does. Every error of hivemind's, of
its daemon and of the sockets between ends here and goes on as a `SwarmError`.
"""

import asyncio
import contextlib
import re
import time
import weakref
from collections.abc import Awaitable, Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Literal
from uuid import uuid4

from hivemind.p2p import P2PDaemonError, P2PHandlerError, PeerID
from hivemind.p2p.p2p_daemon_bindings.control import ControlClient, DaemonConnector
from hivemind.p2p.p2p_daemon_bindings.datastructures import StreamInfo
from hivemind.p2p.p2p_daemon_bindings.utils import raise_if_failed, read_pbmsg_safe, write_pbmsg
from hivemind.proto import p2pd_pb2
from hivemind.utils.logging import use_hivemind_log_handler
from hivemind.utils.multiaddr import Multiaddr
from hivemind.utils.multiaddr.exceptions import Error as MultiaddrError

from swarm import open_files
from swarm.errors import CLOCK_FIX, ClockSkew, NetworkError, PeerUnreachable, ProtocolError
from swarm.network.addresses import Endpoint, JoinAddress
from swarm.network.channel import Channel, Reader, Writer
from swarm.network.daemon import Daemon
from swarm.network.dht import CALL_TIMEOUT_S, Dht, Surroundings
from swarm.network.incoming import Incoming, room_for_streams
from swarm.network.probe import AddressBook
from swarm.network.reachability import locate, say_returned
from swarm.network.storage import RecordStorage
from swarm.security.identity import new_identity
from swarm.values import PeerId
from swarm.wire.directory import DIRECTORY_PROTOCOL, Busy, encode
from swarm.wire.records import MAX_CLOCK_SKEW_S, AnyRecord, LookUp, PeerRecord

_FAILURES = (P2PDaemonError, P2PHandlerError, OSError, asyncio.IncompleteReadError)
_FIND_PEER_TIMEOUT_S = 1.0
_MAX_UNSENT_ANSWERS = 64
_ALIVE_TIMEOUT_S = 1.0
_LEAVE_TIMEOUT_S = 0.5
_UNSPOKEN = "/swarm/nobody-speaks-this"
_CIRCUIT = "/p2p-circuit"
_P2P_CODE, _CIRCUIT_CODE = b"\xa5\x03", b"\xa2\x02"  # varints of the multiaddress table

OnChannel = Callable[[Channel], Awaitable[None]]
OwnConnection = Literal["none", "dead", "unknown"]  # what this end has to a neighbor of before a cut


class _Control(ControlClient):  # type: ignore[misc]  # hivemind is not typed
    """hivemind's client of p2pd, which goes deaf when an answer meets a call that is being cancelled."""

    async def call_unary_handler(self, peer_id: PeerID, proto: str, data: bytes) -> bytes:
        """As hivemind's, but an answer that meets a cancelled call finds its future whole."""
        call_id = uuid4()
        call = p2pd_pb2.CallUnaryRequest(peer=peer_id.to_bytes(), proto=proto, data=data)
        answer: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        answer.add_done_callback(lambda each: each.cancelled() or each.exception())  # seen, also if too late
        self._pending_calls[call_id] = answer
        try:
            await self._pending_messages.put(
                p2pd_pb2.PersistentConnectionRequest(callId=call_id.bytes, callUnary=call)
            )
            return await asyncio.shield(answer)
        except asyncio.CancelledError:
            await self._cancel_unary_call(call_id)
            raise
        finally:
            self._pending_calls.pop(call_id, None)

    async def stream_open(
        self, peer_id: PeerID, protocols: Sequence[str]
    ) -> tuple[StreamInfo, asyncio.StreamReader, asyncio.StreamWriter]:
        """As hivemind's, which leaves the connection to p2pd open when no stream comes about."""
        request = p2pd_pb2.StreamOpenRequest(peer=peer_id.to_bytes(), proto=list(protocols))
        reader, writer = await self.daemon_connector.open_connection()
        try:
            await write_pbmsg(writer, p2pd_pb2.Request(type=p2pd_pb2.Request.STREAM_OPEN, streamOpen=request))
            response = p2pd_pb2.Response()
            await read_pbmsg_safe(reader, response)
            raise_if_failed(response)
        except BaseException:
            writer.close()
            raise
        return StreamInfo.from_protobuf(response.streamInfo), reader, writer

    @property
    def is_behind(self) -> bool:
        """Whether p2pd takes in answers more slowly than they are made."""
        return bool(self._pending_messages.qsize() > _MAX_UNSENT_ANSWERS)


class _StreamEnd:
    """This end of a stream, as network/channel writes to it. `on_stuck`: the other end takes nothing in."""

    def __init__(self, writer: asyncio.StreamWriter, on_stuck: Callable[[], None]) -> None:
        self._writer = writer
        self._on_stuck = on_stuck

    def write(self, data: bytes) -> None:
        self._writer.write(data)

    async def drain(self) -> None:
        await self._writer.drain()

    def close(self) -> None:
        self._writer.close()

    def abort(self) -> None:
        if self._writer.transport.get_write_buffer_size():
            self._on_stuck()
        self._writer.transport.abort()


class Node:
    """A running p2pd with the DHT on top of it."""

    def __init__(
        self, daemon: Daemon, control: _Control, own: PeerId, storage: RecordStorage, client: bool
    ) -> None:
        self.daemon = daemon
        self._control = control
        self._address_book = AddressBook(partial(_is_connected, control), partial(_addresses_of, control))
        around = Surroundings(self._call, self._heard_of, time.time)
        self._dht = Dht(own, not client, storage, around)
        self._lifetime = contextlib.AsyncExitStack()
        self._pending: set[asyncio.Task[Any]] = set()
        self._incoming: Incoming[Channel] = Incoming(room_for_streams(open_files.limit()))
        self._hanging_up: dict[PeerId, asyncio.Task[None]] = {}
        self.was_hung_up_on = False  # a neighbor closed all that it had to this node, new and old
        self._channels: weakref.WeakSet[Channel] = weakref.WeakSet()
        self._address_book.locate = self._locate

    @classmethod
    async def start(cls, daemon: Daemon, storage: RecordStorage, client: bool) -> "Node":
        """Connect to a fresh p2pd and start the DHT, alone yet. Raises `NetworkError`.

        `storage`, what this node keeps for others, outlives the node. A `client` keeps nothing.
        """
        use_hivemind_log_handler("nowhere")
        with _translated(NetworkError, "The network daemon p2pd does not answer"):
            connector = DaemonConnector(_unix(daemon.control_socket))
            control = await _Control.create(connector, _unix(daemon.callback_socket))
            peer, _ = await control.identify()
            node = cls(daemon, control, PeerId(peer.to_base58()), storage, client)
            await node._lifetime.enter_async_context(control.listen())
            if not client:
                await control.add_unary_handler(DIRECTORY_PROTOCOL, node._on_request)
        return node

    async def close(self) -> None:
        """End this life, also when p2pd is dead already."""
        await self._dht.close()
        self._control.close()
        await self.daemon.stop()
        await self._lifetime.aclose()
        for task in self._hanging_up.values():
            task.cancel()
        ending = {*self._pending, *self._hanging_up.values()}
        if ending:
            await asyncio.wait(ending)

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
        await self._connect(address)
        asked_at = time.time()
        try:
            welcome = await self._dht.introduce(address.peer)
        except (NetworkError, ProtocolError) as error:
            raise PeerUnreachable(
                f"{address} answers, but it is not a node of a swarm, or not a serving one"
            ) from error
        if not asked_at - MAX_CLOCK_SKEW_S <= welcome.time <= time.time() + MAX_CLOCK_SKEW_S:
            raise _clock_skew(address)

    async def return_to(self, address: JoinAddress, own_connection: OwnConnection) -> None:
        """Meet a node again after this one was cut off: what is dead of before is closed, at both ends.

        `own_connection` tells of the one at this end. Raises as `join`.
        """
        if own_connection == "dead":
            await self.hang_up(address.peer, 0.0)
        elif own_connection == "unknown":
            await self.hang_up_dead(address.peer, _ALIVE_TIMEOUT_S)
        await self._connect(address)
        if not await say_returned(self, address.peer):
            self.was_hung_up_on = True
            await self.hang_up(address.peer, 0.0)
        await self.join(address)

    async def _connect(self, address: JoinAddress) -> None:
        with _translated(PeerUnreachable, f"{address} does not answer"):
            await self._address_book.check_address(address)
            await self._control.connect(PeerID.from_base58(address.peer), [multiaddr(address.route)])

    @property
    def behind_s(self) -> float:
        """How far the clocks of most neighbors are ahead of this one; 0 where that matters to nobody."""
        return self._dht.behind_s

    async def explore(self) -> None:
        """Find the nodes nearest to this one, and be found by them."""
        await self._dht.explore()

    def neighbors(self) -> tuple[PeerId, ...]:
        """The nodes of the routing table."""
        return self._dht.neighbors()

    async def ping(self, peer: PeerId, timeout_s: float = CALL_TIMEOUT_S) -> bool:
        """Ask a node for a sign of life; one that gives none leaves the routing table.

        It is disconnected, too, unless only its program is busy and the connection lives.
        """
        closing = asyncio.create_task(self.hang_up_dead(peer, timeout_s))
        answered = False
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                answered = await self._dht.ping(peer)
        if answered:
            closing.cancel()
        else:
            self._dht.forget(peer)
        await asyncio.wait({closing})
        return answered

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

    async def hang_up(self, peer: PeerId, silent_s: float) -> None:
        """Close the connection to a peer, so that it is dialled anew; not when one of its channels has
        heard the peer within that time."""
        channels = [channel for channel in self._channels if channel.peer == peer]
        if any(_now() - channel.heard_at < silent_s for channel in channels):
            return
        await self._disconnect(peer)

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
        routes = await self._address_book.find(peer)
        opening = asyncio.create_task(self._open_stream(peer, protocol, routes))
        self._pending.add(opening)
        opening.add_done_callback(self._pending.discard)
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
        await self._address_book.met(peer)
        return reader, self._end(peer, writer)

    def _end(self, peer: PeerId, writer: asyncio.StreamWriter) -> _StreamEnd:
        return _StreamEnd(writer, partial(self._hang_up, peer))

    async def serve(self, protocol: str, on_channel: OnChannel) -> None:
        """Answer streams of a protocol. Raises `NetworkError`."""

        async def on_stream(
            info: StreamInfo, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
        ) -> None:
            peer = PeerId(info.peer_id.to_base58())
            channel = self._channel(peer, reader, self._end(peer, writer), str(info.addr))
            ended = self._incoming.admit(peer, channel)
            for each in ended:
                each.abort()
            try:
                if channel not in ended:
                    await on_channel(channel)
            finally:
                self._incoming.forget(peer, channel)

        with _translated(NetworkError, "The network daemon p2pd does not answer"):
            await self._control.stream_handler(protocol, on_stream)

    async def store(self, key: str, sealed: bytes) -> bool:
        """Have a record of this node's own kept; whether any other node does."""
        return await self._dht.store(key, sealed)

    async def fetch(self, key: str) -> LookUp:
        """All records under a key that the nodes nearest to it know. Raises `NetworkError`."""
        return await self._dht.fetch(key)

    async def _call(self, peer: PeerId, request: bytes) -> bytes:
        """Ask a node of the directory, which is probed before p2pd may dial it."""
        await self._address_book.check(peer)
        with _translated(PeerUnreachable, f"Peer {peer} does not answer"):
            answer: bytes = await self._control.call_unary_handler(
                PeerID.from_base58(peer), DIRECTORY_PROTOCOL, request
            )
        await self._address_book.met(peer)
        return answer

    async def _on_request(self, raw: bytes, peer: PeerID) -> bytes:
        """Another node asks; what is raised it is told."""
        if self._control.is_behind:
            return encode(Busy())
        return self._dht.answer(raw, PeerId(peer.to_base58()))

    def _hang_up(self, peer: PeerId) -> None:
        """Drop the connection to a peer that takes nothing in: p2pd holds on to its streams otherwise."""
        if peer not in self._hanging_up:
            self._hanging_up[peer] = hanging_up = asyncio.create_task(self._disconnect(peer))
            hanging_up.add_done_callback(lambda _: self._hanging_up.pop(peer, None))

    async def _disconnect(self, peer: PeerId) -> None:
        """A connection is out of use at once; of one that is dead p2pd takes leave for ten seconds more."""
        closing = asyncio.create_task(self._control.disconnect(PeerID.from_base58(peer)))
        self._pending.add(closing)
        closing.add_done_callback(self._pending.discard)
        closing.add_done_callback(_without_failure)
        await asyncio.wait({closing}, timeout=_LEAVE_TIMEOUT_S)

    def _heard_of(self, record: AnyRecord) -> None:
        if isinstance(record, PeerRecord):
            self._address_book.heard_of(record)


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


def _clock_skew(address: JoinAddress) -> ClockSkew:
    return ClockSkew(
        f"The clocks of this machine and of {address} differ by more than {MAX_CLOCK_SKEW_S:.0f} s",
        CLOCK_FIX,
    )


def _now() -> float:
    return asyncio.get_running_loop().time()


def _unix(path: Path) -> Multiaddr:
    return Multiaddr(f"/unix{path}")


def _without_failure(closing: "asyncio.Task[None]") -> None:
    """There was no connection, or p2pd has just ended: nothing else is expected."""
    error = None if closing.cancelled() else closing.exception()
    if error is not None and not isinstance(error, _FAILURES):
        raise error


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
