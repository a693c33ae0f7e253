"""What every network keeps to, in memory and over libp2p."""

import asyncio
import time
from collections.abc import Callable

import pytest

from swarm.errors import ChannelClosed, PeerUnreachable
from swarm.network.channel import Channel
from swarm.network.transport import Network
from swarm.security.identity import new_identity
from swarm.wire.messages import Ping, Pong
from swarm.wire.records import PeerRecord, seal

ECHO = "/test/echo/1"
KEY = f"peers/{'ab' * 32}/0"
OPEN_S, SOON_S = 30.0, 60.0  # no machine is so slow that what works takes longer


async def echo(channel: Channel) -> None:
    while True:
        message, body = await channel.receive()
        await channel.send(message, body)


@pytest.fixture
async def pair(nodes: object) -> tuple[Network, Network]:
    """Two nodes; the first serves an echo."""
    server = await nodes.add()
    await server.serve(ECHO, echo)
    return server, await nodes.add()


async def test_channel_carries_messages_and_bodies_both_ways(pair: tuple[Network, Network]) -> None:
    server, client = pair
    channel = await client.open_channel(server.peer_id, ECHO, OPEN_S)
    for number in range(3):
        await channel.send(Ping(id=number), bytes([number]) * 10)
        assert await channel.receive() == (Ping(id=number), bytes([number]) * 10)


async def test_handler_knows_who_opened_the_channel(nodes: object) -> None:
    server, client = await nodes.add(), await nodes.add()
    opened_by = asyncio.get_running_loop().create_future()

    async def note(channel: Channel) -> None:
        opened_by.set_result(channel.peer)

    await server.serve(ECHO, note)
    channel = await client.open_channel(server.peer_id, ECHO, OPEN_S)
    assert await asyncio.wait_for(opened_by, SOON_S) == client.peer_id
    assert channel.peer == server.peer_id


async def test_body_of_eight_mebibytes_arrives_whole(pair: tuple[Network, Network]) -> None:
    server, client = pair
    body = bytes(range(256)) * (8 * 1024 * 4)
    channel = await client.open_channel(server.peer_id, ECHO, OPEN_S)
    _, answer = await asyncio.gather(channel.send(Ping(id=1), body), channel.receive())
    assert answer.body == body


async def test_many_channels_at_once_do_not_mix(pair: tuple[Network, Network]) -> None:
    server, client = pair

    async def talk(number: int) -> bool:
        channel = await client.open_channel(server.peer_id, ECHO, OPEN_S)
        body = bytes([number]) * 1000
        await channel.send(Pong(id=number, queue_depth=0), body)
        answer = await channel.receive()
        channel.close()
        return answer == (Pong(id=number, queue_depth=0), body)

    assert all(await asyncio.gather(*(talk(number) for number in range(20))))


async def test_end_of_the_handler_closes_the_channel(nodes: object) -> None:
    server, client = await nodes.add(), await nodes.add()

    async def answer_once(channel: Channel) -> None:
        await channel.send((await channel.receive()).message)

    await server.serve(ECHO, answer_once)
    channel = await client.open_channel(server.peer_id, ECHO, OPEN_S)
    await channel.send(Ping(id=1))
    assert (await channel.receive()).message == Ping(id=1)
    with pytest.raises(ChannelClosed):
        await asyncio.wait_for(channel.receive(), SOON_S)


async def test_closing_a_channel_ends_it_at_both_ends(nodes: object) -> None:
    server, client = await nodes.add(), await nodes.add()
    ended = asyncio.Event()

    async def wait_for_the_end(channel: Channel) -> None:
        try:
            await channel.receive()
        except ChannelClosed:
            ended.set()

    await server.serve(ECHO, wait_for_the_end)
    channel = await client.open_channel(server.peer_id, ECHO, OPEN_S)
    receiving = asyncio.create_task(channel.receive())
    await asyncio.sleep(0.05)
    channel.close()
    with pytest.raises(ChannelClosed):
        await asyncio.wait_for(receiving, SOON_S)
    with pytest.raises(ChannelClosed):
        await channel.send(Ping(id=1))
    await asyncio.wait_for(ended.wait(), SOON_S)


async def test_failing_handler_harms_no_other_channel(nodes: object) -> None:
    server, client = await nodes.add(), await nodes.add()

    async def fail_on_demand(channel: Channel) -> None:
        while True:
            message = (await channel.receive()).message
            if message == Ping(id=13):
                raise ChannelClosed("on demand")
            await channel.send(message)

    await server.serve(ECHO, fail_on_demand)
    good = await client.open_channel(server.peer_id, ECHO, OPEN_S)
    bad = await client.open_channel(server.peer_id, ECHO, OPEN_S)
    await bad.send(Ping(id=13))
    with pytest.raises(ChannelClosed):
        await asyncio.wait_for(bad.receive(), SOON_S)
    await good.send(Ping(id=1))
    assert (await asyncio.wait_for(good.receive(), SOON_S)).message == Ping(id=1)


async def test_unknown_peer_is_unreachable(pair: tuple[Network, Network]) -> None:
    _, client = pair
    async with asyncio.timeout(SOON_S):
        with pytest.raises(PeerUnreachable):
            await client.open_channel(new_identity().peer_id, ECHO, 3)


async def test_own_peer_id_is_unreachable(pair: tuple[Network, Network]) -> None:
    server, _ = pair
    with pytest.raises(PeerUnreachable):
        await server.open_channel(server.peer_id, ECHO, 3)


async def test_protocol_that_nobody_serves_is_unreachable(pair: tuple[Network, Network]) -> None:
    server, client = pair
    with pytest.raises(PeerUnreachable):
        await client.open_channel(server.peer_id, "/test/other/1", 3)


async def test_closing_a_node_closes_its_channels(pair: tuple[Network, Network]) -> None:
    server, client = pair
    channel = await client.open_channel(server.peer_id, ECHO, OPEN_S)
    await server.close()
    with pytest.raises(ChannelClosed):
        await asyncio.wait_for(channel.receive(), SOON_S)
    with pytest.raises(PeerUnreachable):
        await client.open_channel(server.peer_id, ECHO, 3)


async def test_closed_node_opens_nothing(pair: tuple[Network, Network]) -> None:
    server, client = pair
    await client.close()
    await client.close()
    with pytest.raises(PeerUnreachable):
        await client.open_channel(server.peer_id, ECHO, 3)


async def test_address_ends_in_the_peer_id(pair: tuple[Network, Network]) -> None:
    server, _ = pair
    assert server.addresses
    assert all(address.endswith(f"/p2p/{server.peer_id}") for address in server.addresses)


async def test_stored_record_is_found_by_others_until_it_expires(
    nodes: object, make_record: Callable[..., PeerRecord]
) -> None:
    owner = new_identity()
    first, second = await nodes.add(owner), await nodes.add()
    for life_s in (1.5, 5.0, 20.0):  # on a slow machine a short life is over before the record is looked for
        record = make_record(owner, expires_at=time.time() + life_s, sequence=int(life_s * 10))
        stored, found = await first.store(KEY, seal(record, owner.sign)), (await second.fetch(KEY)).records
        if time.time() < record.expires_at:
            break
    assert (stored, found) == (True, (record,))
    await asyncio.sleep(record.expires_at + 0.1 - time.time())
    assert (await second.fetch(KEY)).records == ()
    assert (await first.fetch(KEY)).records == ()


async def test_records_of_several_peers_stand_side_by_side(
    nodes: object, make_record: Callable[..., PeerRecord]
) -> None:
    owners = [new_identity() for _ in range(3)]
    networks = [await nodes.add(owner) for owner in owners]
    for owner, network in zip(owners, networks, strict=True):
        assert await network.store(KEY, seal(make_record(owner), owner.sign))
    assert {record.peer for record in (await networks[0].fetch(KEY)).records} == {
        owner.peer_id for owner in owners
    }


async def test_nothing_is_found_under_a_key_without_records(pair: tuple[Network, Network]) -> None:
    assert (await pair[1].fetch(KEY)).records == ()


@pytest.mark.parametrize("forgery", ["other owner", "own, by another", "long life", "wrong key", "garbage"])
async def test_forged_record_is_refused(
    nodes: object, make_record: Callable[..., PeerRecord], forgery: str
) -> None:
    owner, forger = new_identity(), new_identity()
    victim, network = await nodes.add(owner), await nodes.add(forger)
    record = make_record(owner if "own" in forgery else forger)
    key, signer = KEY, owner if "by" in forgery else forger
    if forgery == "long life":
        record = make_record(forger, expires_at=record.issued_at + 3600)
    if forgery == "wrong key":
        key = f"peers/{'ab' * 32}/1"
    sealed = b"\x92garbage" if forgery == "garbage" else seal(record, signer.sign)
    assert not await network.store(key, sealed)
    assert (await victim.fetch(key)).records == ()


async def test_older_sequence_does_not_replace_a_newer_one(
    nodes: object, make_record: Callable[..., PeerRecord]
) -> None:
    owner = new_identity()
    first, second = await nodes.add(owner), await nodes.add()
    newer, older = make_record(owner, sequence=2), make_record(owner, sequence=1)
    assert await first.store(KEY, seal(newer, owner.sign))
    assert not await first.store(KEY, seal(older, owner.sign))
    assert (await second.fetch(KEY)).records == (newer,)


async def test_newer_record_replaces_an_older_one(
    nodes: object, make_record: Callable[..., PeerRecord]
) -> None:
    owner = new_identity()
    first, second = await nodes.add(owner), await nodes.add()
    older, newer = make_record(owner, sequence=1), make_record(owner, sequence=2)
    for record in (older, newer):
        assert await first.store(KEY, seal(record, owner.sign))
    assert (await second.fetch(KEY)).records == (newer,)


async def test_waiting_for_failure_outlasts_healthy_times(pair: tuple[Network, Network]) -> None:
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(pair[0].wait_failed(), 0.05)
