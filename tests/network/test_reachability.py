"""Whether others can dial a node: who is asked, what counts, and what nobody can be made to do."""

import asyncio
from collections.abc import AsyncIterator
from ipaddress import ip_interface

import pytest

from swarm.errors import ChannelClosed, MalformedMessage
from swarm.network.addresses import Endpoint, usable
from swarm.network.channel import Channel
from swarm.network.links import is_on_link
from swarm.network.memory import MemorySwarm
from swarm.network.probe import GREETING
from swarm.network.reachability import (
    MOST_AT_ONCE_EACH,
    ReachServer,
    Verdict,
    ask_to_dial_back,
    judge,
    locate,
    say_returned,
)
from swarm.security.identity import Identity, new_identity
from swarm.values import PeerId
from swarm.wire.reach import (
    MAX_PORTS,
    MAX_REACH_BYTES,
    DialBack,
    DialedBack,
    Locate,
    decode_dialed_back,
    decode_question,
    encode_reach,
)

OWN = frozenset({ip_interface("192.168.1.2/24"), ip_interface("2a00:77::2/64")})
A, B = PeerId("a"), PeerId("b")


def verdict(host: str = "192.0.2.1", reached: tuple[int, ...] = (), is_on_link: bool = False) -> Verdict:
    return Verdict(A, is_on_link, host, reached, relays=False)


@pytest.mark.parametrize(
    ("verdicts", "expected"),
    [
        ([], None),
        ([verdict(host="")], None),  # seen through a relay only
        ([verdict(reached=(1,))], True),
        ([verdict()], False),
        ([verdict(), verdict(reached=(1,))], True),
        ([verdict(reached=(1,), is_on_link=True)], True),  # all there is is this network
        ([verdict(reached=(1,), is_on_link=True), verdict()], False),  # others cannot
        ([verdict(reached=(1,), is_on_link=True), verdict(host="")], True),
    ],
)
def test_what_is_seen_from_outside_outranks_the_own_network(verdicts, expected) -> None:
    assert judge(verdicts) is expected


@pytest.mark.parametrize(
    ("host", "expected"),
    [("192.168.1.9", True), ("127.0.0.1", True), ("::1", True), ("192.168.2.9", False), ("2a00:77::9", True),
     ("2a00:78::9", False), ("a.name", False)],
)  # fmt: skip
def test_a_host_is_on_link_when_no_router_is_in_between(host: str, expected: bool) -> None:
    assert is_on_link(host, OWN) is expected


def test_the_relayed_address_comes_first_and_loopback_only_when_alone() -> None:
    loopback, lan = f"/ip4/127.0.0.1/tcp/1/p2p/{A}", f"/ip4/192.168.1.2/tcp/1/p2p/{A}"
    relayed = f"/ip4/192.0.2.1/tcp/1/p2p/{B}/p2p-circuit/p2p/{A}"
    assert usable([loopback, lan, relayed]) == (relayed, lan)
    assert usable([loopback]) == (loopback,)


class Node:
    """A node in memory as reachability sees it: channels, and whose key answers at which port."""

    def __init__(self, swarm: MemorySwarm, identity: Identity | None = None) -> None:
        self.network = swarm.join(identity or new_identity())
        self.peer = self.network.peer_id
        self.keys: dict[int, PeerId] = {}
        self.connections: dict[PeerId, int] = {}
        self.is_away = False
        self.dialed: list[Endpoint] = []

    async def open_channel(self, peer: PeerId, protocol: str) -> Channel:
        return await self.network.open_channel(peer, protocol, 5)

    async def whose_key(self, endpoint: Endpoint) -> PeerId | None:
        self.dialed.append(endpoint)
        return self.keys.get(endpoint.port)

    async def count_connections(self, peer: PeerId) -> int:
        return self.connections.get(peer, 0)

    async def hang_up(self, peer: PeerId, silent_s: float) -> None:
        self.connections.pop(peer, None)

    async def hang_up_dead(self, peer: PeerId, timeout_s: float) -> None:
        self.connections.pop(peer, None)

    async def addresses(self) -> tuple[str, ...]:
        return (f"/ip4/192.0.2.7/tcp/1/p2p/{self.peer}",)

    async def serve(self, came_from: str = "/ip4/127.0.0.1/tcp/50000", relays: bool = False) -> None:
        server = ReachServer(self.peer, lambda: self, lambda: self.is_away, lambda: relays)

        async def on_channel(channel: Channel) -> None:
            channel.came_from = came_from
            await server(channel)

        await self.network.serve("/swarm/reach/1", on_channel)


@pytest.fixture
def swarm() -> MemorySwarm:
    return MemorySwarm(seed=1)


@pytest.fixture
async def greeting() -> AsyncIterator[int]:
    """The port of somebody who greets as a libp2p listener does."""
    leave = asyncio.Event()

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(GREETING)
        await leave.wait()
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    async with server:
        yield server.sockets[0].getsockname()[1]
        leave.set()


async def test_a_neighbor_dials_back_and_says_whether_it_relays(swarm: MemorySwarm, greeting: int) -> None:
    asker, neighbor = Node(swarm), Node(swarm)
    neighbor.keys = {greeting: asker.peer}
    await neighbor.serve(relays=True)
    [found] = await ask_to_dial_back(asker, [(neighbor.peer, "192.0.2.1")], [greeting], OWN)
    assert found == Verdict(neighbor.peer, False, "127.0.0.1", (greeting,), relays=True)


async def test_a_port_where_another_node_answers_does_not_count(swarm: MemorySwarm, greeting: int) -> None:
    asker, neighbor = Node(swarm), Node(swarm)
    neighbor.keys = {greeting: B}  # forwarded to somebody else behind the same router
    await neighbor.serve()
    [found] = await ask_to_dial_back(asker, [(neighbor.peer, "192.0.2.1")], [greeting], OWN)
    assert found.reached == ()


async def test_only_the_host_that_asks_is_dialled(swarm: MemorySwarm, greeting: int) -> None:
    asker, neighbor = Node(swarm), Node(swarm)
    await neighbor.serve(came_from="/ip4/127.0.0.1/tcp/50000")
    await ask_to_dial_back(asker, [(neighbor.peer, "")], [greeting], OWN)
    assert {endpoint.host for endpoint in neighbor.dialed} == {"127.0.0.1"}


async def test_who_comes_through_a_relay_has_nobody_dialled(swarm: MemorySwarm, greeting: int) -> None:
    asker, neighbor = Node(swarm), Node(swarm)
    await neighbor.serve(came_from="/ip4/127.0.0.1/tcp/1/p2p/QmRelay/p2p-circuit")
    [found] = await ask_to_dial_back(asker, [(neighbor.peer, "")], [greeting], OWN)
    assert (found.host, neighbor.dialed) == ("", [])


async def test_who_asks_again_at_once_is_not_answered(swarm: MemorySwarm, greeting: int) -> None:
    asker, neighbor = Node(swarm), Node(swarm)
    await neighbor.serve()
    once = await ask_to_dial_back(asker, [(neighbor.peer, "")], [greeting], OWN)
    again = await ask_to_dial_back(asker, [(neighbor.peer, "")], [greeting], OWN)
    assert (len(once), again) == (1, [])


async def test_one_asker_takes_only_so_many_places(swarm: MemorySwarm) -> None:
    asker, other, neighbor, wanted = (Node(swarm) for _ in range(4))
    neighbor.connections[wanted.peer] = 1
    await neighbor.serve()
    await wanted.serve()
    held = [await asker.open_channel(neighbor.peer, "/swarm/reach/1") for _ in range(MOST_AT_ONCE_EACH)]
    await asyncio.sleep(0)
    assert await locate(asker, [neighbor.peer], wanted.peer) == ()
    assert await locate(other, [neighbor.peer], wanted.peer) == await wanted.addresses()
    for channel in held:
        channel.close()


async def test_a_peer_is_where_it_says_to_a_neighbor_that_has_it(swarm: MemorySwarm) -> None:
    asker, ignorant, knowing, wanted = (Node(swarm) for _ in range(4))
    knowing.connections[wanted.peer] = 1
    for node in (ignorant, knowing, wanted):
        await node.serve()
    assert await locate(asker, [ignorant.peer, knowing.peer], wanted.peer) == await wanted.addresses()
    assert await locate(asker, [ignorant.peer], wanted.peer) == ()


async def test_a_peer_on_its_way_back_says_nothing_of_where_it_was(swarm: MemorySwarm) -> None:
    asker, neighbor, wanted = (Node(swarm) for _ in range(3))
    neighbor.connections[wanted.peer] = 1
    wanted.is_away = True
    for node in (neighbor, wanted):
        await node.serve()
    assert await locate(asker, [neighbor.peer], wanted.peer) == ()
    assert neighbor.connections == {wanted.peer: 1}


async def test_a_peer_that_does_not_answer_a_neighbor_is_disconnected(swarm: MemorySwarm) -> None:
    asker, neighbor = Node(swarm), Node(swarm)
    gone = new_identity().peer_id
    neighbor.connections[gone] = 1
    await neighbor.serve()
    assert await locate(asker, [neighbor.peer], gone) == ()
    assert neighbor.connections == {}


async def test_who_is_back_has_all_connections_closed_unless_there_is_one(swarm: MemorySwarm) -> None:
    asker, neighbor = Node(swarm), Node(swarm)
    await neighbor.serve()
    neighbor.connections[asker.peer] = 2  # the old one, which is dead, and that of now
    assert not await say_returned(asker, neighbor.peer)
    assert neighbor.connections == {}
    neighbor.connections[asker.peer] = 1
    assert await say_returned(asker, neighbor.peer)


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"\xc1",
        b"\x91" * 3000,  # nested as deep as it is long
        encode_reach(DialBack(ports=(1,) * (MAX_PORTS + 1))),
        encode_reach(DialBack(ports=(0,))),
        encode_reach(DialBack(ports=(65536,))),
        encode_reach(Locate(peer="p" * 301)),
        encode_reach(Locate(peer="p" * MAX_REACH_BYTES)),
        encode_reach(DialedBack(host="")),
    ],
)
def test_what_is_no_question_is_refused(raw: bytes) -> None:
    with pytest.raises(MalformedMessage):
        decode_question(raw)


def test_an_answer_comes_back_as_it_was() -> None:
    answer = DialedBack(host="192.0.2.1", reached=(1, 2), relays=True)
    assert decode_dialed_back(encode_reach(answer)) == answer


async def test_a_frame_over_the_limit_is_not_read(swarm: MemorySwarm) -> None:
    asker, neighbor = Node(swarm), Node(swarm)
    await neighbor.serve()
    channel = await asker.open_channel(neighbor.peer, "/swarm/reach/1")
    await channel.send_frame(b"x" * (MAX_REACH_BYTES + 1))
    with pytest.raises(ChannelClosed):
        await asyncio.wait_for(channel.receive_frame(MAX_REACH_BYTES), 5)
