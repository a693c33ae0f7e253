"""Reachability probes: who counts as there, what is learned of whom, and when libp2p may dial after all."""

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator

import pytest

from swarm.errors import NetworkError, PeerUnreachable
from swarm.network.addresses import Endpoint, JoinAddress, endpoint_of
from swarm.network.probe import GREETING, MOST_ENDPOINTS, MOST_KNOWN, SEARCH_EVERY_S, AddressBook, probe
from swarm.values import PeerId
from swarm.wire.records import PeerRecord

A = PeerId("a")
HOST = "127.0.0.1"
NOW = 1e9


def endpoint(port: int) -> Endpoint:
    return Endpoint("ip4", HOST, "tcp", port)


@contextlib.asynccontextmanager
async def listening(says: bytes, stays: bool = True) -> AsyncIterator[Endpoint]:
    """Somebody who says this to whoever connects."""
    leave = asyncio.Event()

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(says)
        if stays:
            await leave.wait()
        writer.close()

    server = await asyncio.start_server(answer, HOST, 0)
    async with server:
        yield endpoint(server.sockets[0].getsockname()[1])
        leave.set()


@contextlib.contextmanager
def closed_port() -> "contextlib.AbstractContextManager[Endpoint]":
    """A port that refuses connections and that nobody else gets meanwhile."""
    with socket.socket() as holder:
        holder.bind((HOST, 0))
        yield endpoint(holder.getsockname()[1])


async def test_a_libp2p_listener_answers_and_one_of_several_addresses_is_enough() -> None:
    async with listening(GREETING) as there:
        with closed_port() as gone:
            assert await probe([there]) is None
            assert await probe([gone, there]) is None


@pytest.mark.parametrize(
    ("says", "stays", "reason"),
    [
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", True, "no libp2p node listens there"),
        (b"hi", False, "no libp2p node listens there"),
        (b"", False, "it closes the connection"),
        (b"", True, "silent for 0.1 s"),  # a machine that sleeps: the kernel still accepts
    ],
)
async def test_whoever_does_not_greet_is_not_there(says: bytes, stays: bool, reason: str) -> None:
    async with listening(says, stays) as there:
        assert await probe([there], timeout_s=0.1) == reason


async def test_a_name_that_is_none_is_not_there() -> None:
    assert await probe([Endpoint("dns4", "a..b", "tcp", 1)]) == "its name is no host name"


async def test_a_port_that_refuses_is_not_there() -> None:
    with closed_port() as gone:
        assert await probe([gone]) == "connection refused"


class P2pd:
    """What p2pd knows: whom it is connected to, and where they listen."""

    def __init__(self, *addresses: str | None) -> None:
        self.addresses = addresses
        self.now = NOW
        self.connected = {A}
        self.dead = False
        self.asked = 0

    async def is_connected(self, peer: PeerId) -> bool:
        return peer in self.connected

    async def addresses_of(self, peer: PeerId) -> tuple[str | None, ...]:
        self.asked += 1
        if self.dead:
            raise NetworkError("p2pd is dead")
        return tuple(address and f"{address}/p2p/{peer}" for address in self.addresses)

    def address_book(self) -> AddressBook:
        return AddressBook(self.is_connected, self.addresses_of, lambda: self.now)


async def test_a_peer_is_probed_only_while_there_is_no_connection_to_it() -> None:
    with closed_port() as gone:
        p2pd = P2pd(str(gone))
        book = p2pd.address_book()
        await book.check(A)  # never met: libp2p is to find it
        await book.met(A)
        await book.check(A)
        p2pd.connected.clear()
        with pytest.raises(PeerUnreachable, match="Peer a does not answer"):
            await book.check(A)


async def test_a_peer_that_is_back_is_let_through_at_once() -> None:
    async with listening(GREETING) as there:
        p2pd = P2pd(str(there))
        book = p2pd.address_book()
        await book.met(A)
        p2pd.connected.clear()
        await book.check(A)


@pytest.mark.parametrize(
    "others",
    [
        ["/ip4/127.0.0.1/udp/4001/quic-v1"],
        ["/ip4/192.0.2.1/tcp/1/p2p/QmRelay/p2p-circuit"],
        [None],  # libp2p can read it, hivemind cannot
        [f"/ip4/192.0.2.{number}/tcp/1" for number in range(MOST_ENDPOINTS)],
    ],
)
async def test_a_peer_that_cannot_be_probed_is_left_to_libp2p(others: list[str | None]) -> None:
    with closed_port() as gone:
        p2pd = P2pd(str(gone), *others)
        book = p2pd.address_book()
        await book.met(A)
        p2pd.connected.clear()
        await book.check(A)


async def silent_peer(stack: contextlib.ExitStack) -> tuple[P2pd, AddressBook]:
    """A peer that was met, said something of itself, and has gone silent."""
    p2pd = P2pd(str(stack.enter_context(closed_port())))
    book = p2pd.address_book()
    await book.met(A)
    book.heard_of(record())
    p2pd.connected.clear()
    with pytest.raises(PeerUnreachable):
        await book.find(A)
    return p2pd, book


def record(**changes: float) -> PeerRecord:
    fields = {
        "peer": "a", "model": "0" * 64, "issued_at": NOW, "expires_at": NOW + 30, "sequence": 1, "start": 0,
        "end": 3, "state": "online", "dtype": "fp32", "quantization": "none", "decode_tokens_per_s": 1.0,
        "prefill_tokens_per_s": 1.0, "free_tokens": 1, "queue_depth": 0, "wire_version": 1, "software": "0",
        "started_at": NOW - 100,
    }  # fmt: skip
    return PeerRecord(**(fields | changes))


async def test_a_peer_that_started_again_is_looked_for_at_once() -> None:
    with contextlib.ExitStack() as stack:
        _, book = await silent_peer(stack)
        book.heard_of(record(started_at=NOW - 200))  # an old word that somebody has kept
        with pytest.raises(PeerUnreachable):
            await book.find(A)
        book.heard_of(record(started_at=NOW + 1))
        await book.check(A)


async def test_a_word_that_a_clock_ahead_may_have_dated_is_no_sign_of_life() -> None:
    with contextlib.ExitStack() as stack:
        _, book = await silent_peer(stack)
        book.heard_of(record(issued_at=NOW + 1))
        with pytest.raises(PeerUnreachable):
            await book.find(A)


@pytest.mark.parametrize("reason", ["it goes on speaking in the DHT", "it has been silent for long"])
async def test_a_silent_peer_is_looked_for_once_for_each_reason(reason: str) -> None:
    with contextlib.ExitStack() as stack:
        p2pd, book = await silent_peer(stack)
        if reason == "it goes on speaking in the DHT":
            book.heard_of(record(issued_at=NOW + 4))
        else:
            p2pd.now += SEARCH_EVERY_S + 1
        with pytest.raises(PeerUnreachable):
            await book.check(A)
        await book.find(A)
        with pytest.raises(PeerUnreachable):
            await book.find(A)


async def test_a_peer_that_is_connected_again_has_a_clean_slate() -> None:
    with contextlib.ExitStack() as stack:
        p2pd, book = await silent_peer(stack)
        p2pd.connected.add(A)
        await book.check(A)
        p2pd.connected.clear()
        p2pd.now += SEARCH_EVERY_S + 1
        with pytest.raises(PeerUnreachable):
            await book.find(A)


async def test_where_a_peer_listens_is_learned_once_and_again_when_it_could_not_be() -> None:
    p2pd = P2pd("/ip4/127.0.0.1/tcp/1")
    book = p2pd.address_book()
    p2pd.dead = True
    await book.met(A)
    p2pd.dead = False
    await book.met(A)
    await book.met(A)
    assert p2pd.asked == 2


async def test_only_so_many_peers_are_remembered_and_the_oldest_is_forgotten_first() -> None:
    with closed_port() as gone:
        p2pd = P2pd(str(gone))
        book = p2pd.address_book()
        names = [PeerId(str(number)) for number in range(MOST_KNOWN + 1)]
        for name in names:
            await book.met(name)
        p2pd.connected.clear()
        await book.check(names[0])
        with pytest.raises(PeerUnreachable):
            await book.check(names[1])


async def test_an_address_that_was_given_is_probed_unless_it_cannot_be() -> None:
    with closed_port() as gone:
        p2pd = P2pd()
        book = p2pd.address_book()
        await book.check_address(JoinAddress(A, str(gone)))  # connected already
        p2pd.connected.clear()
        with pytest.raises(PeerUnreachable, match=f"^/ip4/127.0.0.1/tcp/{gone.port}/p2p/a does not answer"):
            await book.check_address(JoinAddress(A, str(gone)))
        await book.check_address(JoinAddress(A, "/ip4/127.0.0.1/udp/4001/quic-v1"))


def test_the_endpoint_of_a_route_is_known_only_without_a_relay() -> None:
    assert endpoint_of("/ip4/127.0.0.1/tcp/5") == endpoint(5)
    assert endpoint_of("/ip4/127.0.0.1/tcp/5/p2p/QmRelay/p2p-circuit") is None
    assert endpoint_of("127.0.0.1:5") is None
