"""Knocking: who counts as being there, what is learned of whom, and when libp2p may dial after all."""

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator

import pytest

from swarm.errors import NetworkError, PeerUnreachable
from swarm.network import knock as knocking
from swarm.network.addresses import Endpoint, JoinAddress, endpoint_of
from swarm.network.knock import GREETING, MOST_DOORS, Doors, knock
from swarm.values import PeerId

A = PeerId("a")
HOST = "127.0.0.1"


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
            assert await knock([there]) is None
            assert await knock([gone, there]) is None


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
        assert await knock([there], timeout_s=0.1) == reason


async def test_a_port_that_refuses_is_not_there() -> None:
    with closed_port() as gone:
        assert await knock([gone]) == "Connection refused"


class P2pd:
    """What p2pd knows: whom it is connected to, and where they listen."""

    def __init__(self, *addresses: str) -> None:
        self.addresses = addresses
        self.connected = {A}
        self.dead = False
        self.asked = 0

    async def list_connected(self) -> set[PeerId]:
        return self.connected

    async def addresses_of(self, peer: PeerId) -> tuple[str, ...]:
        self.asked += 1
        if self.dead:
            raise NetworkError("p2pd is dead")
        return tuple(f"{address}/p2p/{peer}" for address in self.addresses)

    def doors(self) -> Doors:
        return Doors(self.list_connected, self.addresses_of)


async def test_a_peer_is_knocked_for_only_while_there_is_no_connection_to_it() -> None:
    with closed_port() as gone:
        p2pd = P2pd(str(gone))
        doors = p2pd.doors()
        await doors.check(A)  # never met: libp2p is to find it
        await doors.met(A)
        await doors.check(A)
        p2pd.connected.clear()
        with pytest.raises(PeerUnreachable, match="Peer a does not answer"):
            await doors.check(A)


async def test_a_peer_that_is_back_is_let_through_at_once() -> None:
    async with listening(GREETING) as there:
        p2pd = P2pd(str(there))
        doors = p2pd.doors()
        await doors.met(A)
        p2pd.connected.clear()
        await doors.check(A)


@pytest.mark.parametrize(
    "other", ["/ip4/127.0.0.1/udp/4001/quic-v1", "/ip4/192.0.2.1/tcp/1/p2p/QmRelay/p2p-circuit"]
)
async def test_a_peer_with_ways_in_that_cannot_be_knocked_at_is_left_to_libp2p(other: str) -> None:
    with closed_port() as gone:
        p2pd = P2pd(str(gone), other)
        doors = p2pd.doors()
        await doors.met(A)
        p2pd.connected.clear()
        await doors.check(A)


async def test_libp2p_may_look_for_a_silent_peer_now_and_then(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(knocking, "LET_LIBP2P_TRY_EVERY_S", 0.1)
    with closed_port() as gone:
        p2pd = P2pd(str(gone))
        doors = p2pd.doors()
        await doors.met(A)
        p2pd.connected.clear()
        with pytest.raises(PeerUnreachable):
            await doors.check(A)
        await asyncio.sleep(0.12)
        await doors.check(A)
        with pytest.raises(PeerUnreachable):
            await doors.check(A)


async def test_where_a_peer_listens_is_learned_once_and_again_when_it_could_not_be() -> None:
    p2pd = P2pd("/ip4/127.0.0.1/tcp/1")
    doors = p2pd.doors()
    p2pd.dead = True
    await doors.met(A)
    p2pd.dead = False
    await doors.met(A)
    await doors.met(A)
    assert p2pd.asked == 2


async def test_only_so_many_peers_are_remembered_and_the_oldest_is_forgotten_first() -> None:
    with closed_port() as gone:
        p2pd = P2pd(str(gone))
        doors = p2pd.doors()
        names = [PeerId(str(number)) for number in range(MOST_DOORS + 1)]
        for name in names:
            await doors.met(name)
        p2pd.connected.clear()
        await doors.check(names[0])
        with pytest.raises(PeerUnreachable):
            await doors.check(names[1])


async def test_an_address_that_was_given_is_knocked_at_unless_it_cannot_be() -> None:
    with closed_port() as gone:
        p2pd = P2pd()
        doors = p2pd.doors()
        await doors.check_address(JoinAddress(A, str(gone)))  # connected already
        p2pd.connected.clear()
        with pytest.raises(PeerUnreachable, match=f"^/ip4/127.0.0.1/tcp/{gone.port}/p2p/a does not answer"):
            await doors.check_address(JoinAddress(A, str(gone)))
        await doors.check_address(JoinAddress(A, "/ip4/127.0.0.1/udp/4001/quic-v1"))


def test_the_endpoint_of_a_route_is_known_only_without_a_relay() -> None:
    assert endpoint_of("/ip4/127.0.0.1/tcp/5") == endpoint(5)
    assert endpoint_of("/ip4/127.0.0.1/tcp/5/p2p/QmRelay/p2p-circuit") is None
    assert endpoint_of("127.0.0.1:5") is None
