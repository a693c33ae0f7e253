"""What can be done to the network in memory, under virtual time."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from swarm.errors import ChannelClosed, NetworkError, PeerUnreachable
from swarm.network.channel import Channel
from swarm.network.memory import LinkConditions, MemoryNetwork, MemorySwarm
from swarm.security.identity import Identity, new_identity
from swarm.testing.clock import run_virtual
from swarm.wire.messages import Ping
from swarm.wire.records import PeerRecord, seal

ECHO = "/test/echo/1"
KEY = f"peers/{'ab' * 32}/0"
SERVER, CLIENT = Identity(bytes(32)), Identity(bytes([1]) * 32)


class Scene:
    """A client with an open channel to an echo."""

    def __init__(self, seed: int) -> None:
        self.swarm = MemorySwarm(seed, now=lambda: 1e9 + asyncio.get_running_loop().time())
        self.server: MemoryNetwork = self.swarm.join(SERVER)
        self.client: MemoryNetwork = self.swarm.join(CLIENT)

    async def open(self) -> Channel:
        await self.server.serve(ECHO, echo)
        return await self.client.open_channel(SERVER.peer_id, ECHO, 10)

    async def round_trip_s(self, channel: Channel) -> float:
        started = asyncio.get_running_loop().time()
        await channel.send(Ping(id=1))
        await channel.receive()
        return asyncio.get_running_loop().time() - started


async def echo(channel: Channel) -> None:
    while True:
        message, body = await channel.receive()
        await channel.send(message, body)


def play(act: Callable[[Scene], Awaitable[None]], seed: int = 1) -> None:
    async def run() -> None:
        scene = Scene(seed)
        await act(scene)
        await scene.server.close()
        await scene.client.close()

    run_virtual(run())


async def silence(channel: Channel, for_s: float = 60) -> None:
    """Nothing comes within this time."""
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(for_s):
            await channel.receive()


def test_delay_is_added_in_each_direction() -> None:
    async def act(scene: Scene) -> None:
        scene.swarm.set_link(CLIENT.peer_id, SERVER.peer_id, LinkConditions(delay_s=0.03))
        scene.swarm.set_link(SERVER.peer_id, CLIENT.peer_id, LinkConditions(delay_s=0.01))
        channel = await scene.open()
        assert asyncio.get_running_loop().time() == pytest.approx(0.04)
        assert await scene.round_trip_s(channel) == pytest.approx(0.04)

    play(act)


def test_jitter_is_repeatable_and_never_reorders() -> None:
    async def arrivals(seed: int) -> list[tuple[float, object]]:
        scene = Scene(seed)
        scene.swarm.set_default_link(LinkConditions(delay_s=0.01, jitter_s=0.05))
        channel = await scene.open()
        for number in range(20):
            await channel.send(Ping(id=number))
        loop = asyncio.get_running_loop()
        seen = [((await channel.receive()).message, loop.time()) for _ in range(20)]
        await scene.server.close()
        return seen

    first = run_virtual(arrivals(1))
    assert [message for message, _ in first] == [Ping(id=number) for number in range(20)]
    assert run_virtual(arrivals(1)) == first
    assert run_virtual(arrivals(2)) != first


def test_cut_link_closes_channels_and_refuses_new_ones_until_it_is_mended() -> None:
    async def act(scene: Scene) -> None:
        channel = await scene.open()
        scene.swarm.set_links(CLIENT.peer_id, SERVER.peer_id, LinkConditions(cut=True))
        with pytest.raises(ChannelClosed):
            await channel.receive()
        with pytest.raises(PeerUnreachable, match="cut"):
            await scene.open()
        scene.swarm.set_links(CLIENT.peer_id, SERVER.peer_id, LinkConditions())
        await scene.round_trip_s(await scene.open())

    play(act)


def test_stalled_link_delivers_everything_when_it_is_over() -> None:
    async def act(scene: Scene) -> None:
        channel = await scene.open()
        scene.swarm.set_link(SERVER.peer_id, CLIENT.peer_id, LinkConditions(stalled=True))
        await channel.send(Ping(id=1))
        await silence(channel)
        scene.swarm.set_link(SERVER.peer_id, CLIENT.peer_id, LinkConditions())
        assert (await channel.receive()).message == Ping(id=1)

    play(act)


def test_black_hole_swallows_one_direction_for_good() -> None:
    async def act(scene: Scene) -> None:
        channel = await scene.open()
        scene.swarm.set_link(SERVER.peer_id, CLIENT.peer_id, LinkConditions(blackhole=True))
        await channel.send(Ping(id=1))
        await silence(channel)
        scene.swarm.set_link(SERVER.peer_id, CLIENT.peer_id, LinkConditions())
        await channel.send(Ping(id=2))
        await silence(channel)
        await scene.round_trip_s(await scene.open())

    play(act)


def test_death_behind_a_black_hole_is_not_noticed() -> None:
    async def act(scene: Scene) -> None:
        channel = await scene.open()
        scene.swarm.set_link(SERVER.peer_id, CLIENT.peer_id, LinkConditions(blackhole=True))
        await scene.swarm.kill(SERVER.peer_id)
        await silence(channel)

    play(act)


def test_opening_over_a_silent_link_ends_at_the_timeout() -> None:
    async def act(scene: Scene) -> None:
        scene.swarm.set_link(SERVER.peer_id, CLIENT.peer_id, LinkConditions(blackhole=True))
        with pytest.raises(PeerUnreachable, match="10 s"):
            await scene.open()
        assert asyncio.get_running_loop().time() == 10

    play(act)


def test_frozen_node_is_silent_and_goes_on_when_it_thaws() -> None:
    async def act(scene: Scene) -> None:
        channel = await scene.open()
        scene.swarm.freeze(SERVER.peer_id)
        await channel.send(Ping(id=1))
        await silence(channel)
        scene.swarm.thaw(SERVER.peer_id)
        assert (await channel.receive()).message == Ping(id=1)

    play(act)


def test_killed_node_closes_its_channels_at_once_and_its_handlers_end() -> None:
    ended: list[str] = []

    async def act(scene: Scene) -> None:
        async def note_the_end(channel: Channel) -> None:
            try:
                await asyncio.Event().wait()
            finally:
                ended.append("handler")

        await scene.server.serve("/note", note_the_end)
        channel = await scene.client.open_channel(SERVER.peer_id, "/note", 1)
        await asyncio.sleep(0)
        await scene.swarm.kill(SERVER.peer_id)
        with pytest.raises(ChannelClosed):
            await channel.receive()
        assert "killed" in str(await scene.server.wait_failed())
        with pytest.raises(PeerUnreachable):
            await scene.server.fetch(KEY)

    play(act)
    assert ended == ["handler"]


def test_a_node_killed_while_its_answer_is_under_way_serves_nobody() -> None:
    started: list[Channel] = []

    async def act(scene: Scene) -> None:
        async def note(channel: Channel) -> None:
            started.append(channel)

        await scene.server.serve("/note", note)
        scene.swarm.set_link(SERVER.peer_id, CLIENT.peer_id, LinkConditions(delay_s=1))
        opening = asyncio.create_task(scene.client.open_channel(SERVER.peer_id, "/note", 10))
        await asyncio.sleep(0.5)
        await scene.swarm.kill(SERVER.peer_id)
        scene.swarm.join(SERVER)  # of another life, which was not asked
        with pytest.raises(PeerUnreachable, match="since it answered"):
            await opening

    play(act)
    assert started == []


def test_killed_identity_can_join_again() -> None:
    async def act(scene: Scene) -> None:
        await scene.swarm.kill(SERVER.peer_id)
        scene.server = scene.swarm.join(SERVER)
        await scene.round_trip_s(await scene.open())

    play(act)


def test_one_identity_has_one_node() -> None:
    async def act(scene: Scene) -> None:
        with pytest.raises(NetworkError, match="already"):
            scene.swarm.join(SERVER)

    play(act)


def test_writer_waits_for_a_reader_that_does_not_read() -> None:
    async def act(scene: Scene) -> None:
        channel = await scene.open()
        scene.swarm.freeze(SERVER.peer_id)
        sending = asyncio.create_task(channel.send(Ping(id=1), bytes(4 * 1024 * 1024)))
        await asyncio.sleep(60)
        assert not sending.done()
        scene.swarm.thaw(SERVER.peer_id)
        await channel.receive()
        await sending

    play(act)


def test_records_of_a_killed_node_stay_until_they_expire(make_record: Callable[..., PeerRecord]) -> None:
    async def act(scene: Scene) -> None:
        record = make_record(SERVER, issued_at=scene.swarm.now())
        assert await scene.server.store(KEY, seal(record, SERVER.sign))
        await scene.swarm.kill(SERVER.peer_id)
        await asyncio.sleep(44)
        assert (await scene.client.fetch(KEY)).records == (record,)
        await asyncio.sleep(2)
        assert (await scene.client.fetch(KEY)).records == ()

    play(act)


def test_frozen_node_announces_nothing(make_record: Callable[..., PeerRecord]) -> None:
    async def act(scene: Scene) -> None:
        record = make_record(SERVER, issued_at=scene.swarm.now())
        scene.swarm.freeze(SERVER.peer_id)
        storing = asyncio.create_task(scene.server.store(KEY, seal(record, SERVER.sign)))
        await asyncio.sleep(5)
        assert (await scene.client.fetch(KEY)).records == ()
        scene.swarm.thaw(SERVER.peer_id)
        assert await storing

    play(act)


def test_strangers_do_not_share_a_network() -> None:
    async def act(scene: Scene) -> None:
        other = MemorySwarm(seed=1).join(new_identity())
        with pytest.raises(PeerUnreachable):
            await other.open_channel(SERVER.peer_id, ECHO, 1)

    play(act)
