"""Strangers at a peer's door: what they send, hold or leave unread costs themselves."""

import asyncio

import pytest
from msgspec import structs
from peer_scene import HIDDEN, KEY, Scene, Stream, rows

from swarm.errors import ChannelClosed
from swarm.network.channel import CHATTER, PATIENCE_S
from swarm.peer.handler import IN_FLIGHT_PART, SILENCE_S
from swarm.peer.inbox import COPIES
from swarm.peer.sessions import SessionLimits
from swarm.security.identity import new_identity
from swarm.security.session_key import SessionKey
from swarm.testing.swarm import CACHE_BYTES
from swarm.values import PeerId, Span
from swarm.wire.messages import MAX_STEP_TOKENS, Fault, Message, Opened, Output, Ping, Rewind, Step

LARGEST_BYTES = MAX_STEP_TOKENS * HIDDEN * 4
EVE = SessionKey(bytes(range(32)))


async def opened_and_stepped(s: Scene) -> Stream:
    """A session of somebody honest that holds five rows."""
    stream = await s.session()
    await stream.push(1, 0, rows(5))
    return stream


async def how_it_stands(s: Scene, stream: Stream) -> tuple[int, Message]:
    """Where the honest session stands, and what its next step is answered with."""
    return s.hosted.peer.sessions.all()[0].position, (await stream.push(2, 5, rows(1)))[0]


def test_a_stranger_who_knows_its_id_cannot_take_a_session_over(play):
    async def scene(s):
        honest = await opened_and_stepped(s)
        refused, _ = await (await s.stream(EVE)).ask(s.open(epoch=9))
        return refused, await how_it_stands(s, honest)

    refused, (position, answer) = play(scene)
    assert (refused.code, refused.retryable, position) == ("owner", False, 5)
    assert not isinstance(answer, Fault)


@pytest.mark.parametrize(
    "forged",
    [
        {"proof": b"\x01" * 64},
        {"owner": KEY.owner, "proof": EVE.claim("s", 9, "peer", "client")},
        {"owner": "12D3KooW", "proof": b"\x01" * 64},
    ],
    ids=["no signature", "another key's signature", "no key"],
)
def test_an_open_that_its_owner_did_not_sign_is_refused(play, forged):
    async def scene(s):
        honest = await opened_and_stepped(s)
        refused, _ = await (await s.stream()).ask(s.open(epoch=9, **forged))
        return refused.code, await how_it_stands(s, honest)

    code, (position, answer) = play(scene)
    assert (code, position) == ("owner", 5)
    assert not isinstance(answer, Fault)


def test_an_open_that_somebody_else_overheard_opens_nothing(play):
    async def scene(s):
        honest, eve = await opened_and_stepped(s), await s.stream()
        overheard = honest.signed(s.open(epoch=9))
        refused, _ = await eve.ask(overheard)
        return refused.code

    assert play(scene) == "owner"


def test_the_owner_takes_its_session_up_from_another_node(play):
    async def scene(s):
        honest = await opened_and_stepped(s)
        honest.channel.close()
        return (await (await s.stream()).ask(s.open(epoch=1)))[0]

    answer = play(scene)
    assert isinstance(answer, Opened)
    assert answer.position == 5


def test_a_body_before_the_session_stands_is_refused_unread(play):
    async def scene(s):
        stream = await s.stream()
        return (await stream.ask(s.open(), b"x"))[0].code

    assert play(scene) == "frame_too_large"


@pytest.mark.parametrize("size", [LARGEST_BYTES + 1, 64 * 2**20])
def test_a_body_is_no_larger_than_a_step_of_this_model(play, size):
    async def scene(s):
        stream = await s.session()
        stream.channel._writer.write((20).to_bytes(4, "little") + size.to_bytes(4, "little"))
        return (await stream.channel.receive())[0].code, s.hosted.peer.handler.in_flight_bytes

    assert play(scene) == ("frame_too_large", 0)


@pytest.mark.parametrize("flood", [Ping(id=1), Rewind(position=0)])
def test_a_client_that_says_too_much_beside_the_work_is_ended(play, flood):
    async def scene(s):
        honest, stream = await opened_and_stepped(s), await s.session(session="flood")
        standing = []
        for _ in range(2):
            for _ in range(CHATTER.burst // 2 + 100):
                await stream.channel.send(flood)
            await asyncio.sleep(0.1)
            standing.append(s.hosted.peer.handler.open_streams)
        return standing, await how_it_stands(s, honest)

    standing, (position, answer) = play(scene)
    assert (standing, position) == ([2, 1], 5)
    assert not isinstance(answer, Fault)


def test_bodies_that_never_come_to_an_end_are_bounded_and_given_up(play):
    async def scene(s):
        prefix = (20).to_bytes(4, "little") + LARGEST_BYTES.to_bytes(4, "little")
        streams = [await s.session(session=f"{number}") for number in range(30)]
        for stream in streams:
            stream.channel._writer.write(prefix)
        await asyncio.sleep(1)
        meanwhile = s.hosted.peer.handler.in_flight_bytes
        await asyncio.sleep(SILENCE_S)
        return meanwhile, s.hosted.peer.handler.in_flight_bytes, s.hosted.peer.handler.open_streams

    meanwhile, afterwards, open_streams = play(scene)
    assert 0 < meanwhile <= CACHE_BYTES // IN_FLIGHT_PART
    assert (afterwards, open_streams) == (0, 0)


def test_what_a_step_took_is_given_back(play):
    async def scene(s):
        stream = await s.session()
        for number in range(3):
            await stream.push(number, number, rows(1))
        await stream.send(Rewind(position=0))
        await stream.push(9, 0, rows(5))
        return s.hosted.peer.handler.in_flight_bytes

    assert play(scene) == 0


def test_pings_whose_answers_nobody_reads_end_the_stream(play):
    async def scene(s):
        stream = await s.session()

        async def ping_for_ever():
            for number in range(100_000):
                await stream.send(Ping(id=number))

        with pytest.raises(ChannelClosed):
            await ping_for_ever()
        await asyncio.sleep(2 * PATIENCE_S)
        return s.hosted.peer.handler.open_streams

    assert play(scene) == 0


def test_one_ping_and_then_silence_holds_a_stream_for_a_minute(play):
    async def scene(s):
        stream = await s.session()
        await stream.send(Ping(id=1))
        await asyncio.sleep(SILENCE_S + 1)
        return s.hosted.peer.handler.open_streams

    assert play(scene) == 0


def test_a_name_tells_nothing_of_the_same_session_elsewhere():
    one, other = new_identity().peer_id, new_identity().peer_id
    names = {KEY.id_at(one, 0), KEY.id_at(one, 2), KEY.id_at(other, 0), EVE.id_at(one, 0)}
    assert len(names) == 4
    assert KEY.id_at(one, 0) == SessionKey(bytes(32)).id_at(one, 0)
    assert repr(KEY.seed) not in repr(KEY)


def test_a_claim_that_is_changed_anywhere_does_not_hold(play):
    async def scene(s):
        stream = await s.stream()
        signed = stream.signed(s.open())
        codes = []
        for changes in ({"session": "t"}, {"epoch": 1}, {"owner": EVE.owner}):
            stream = await s.stream()
            await stream.channel.send(structs.replace(signed, **changes))
            codes.append((await stream.channel.receive())[0].code)
        return codes

    assert play(scene) == ["owner"] * 3


def test_who_came_last_is_told_at_once_that_there_is_no_room_for_it(play):
    async def scene(s):
        table, per_token = s.hosted.peer.sessions, s.hosted.peer.sessions._token_bytes(Span(1, 4))
        table._limits = SessionLimits(cache_bytes=4 * 64 * per_token, context_tokens=256)
        early, late = await s.session(max_tokens=256), await s.session(session="late", max_tokens=256)
        await early.push(1, 0, rows(60))
        await late.push(1, 0, rows(100))
        grown, _ = await early.push(2, 60, rows(40))
        grown_again, _ = await early.push(3, 100, rows(60))
        told, _ = await late.channel.receive()
        return type(grown), type(grown_again), told.code, told.retryable, len(table)

    assert play(scene) == (Output, Output, "capacity", True, 1)


def test_a_client_whose_step_waits_for_room_hears_that_the_peer_lives(play):
    async def scene(s):
        in_flight = s.hosted.peer.handler._in_flight
        greedy, waiting = in_flight._total_bytes // COPIES, await s.session(max_tokens=256)
        for taker in (PeerId("a"), PeerId("b")):
            await in_flight.reserve(taker, greedy // 2)
        begun = asyncio.get_running_loop().time()
        await waiting.send(Step(id=1, position=0, tokens=5, reply_tokens=5), bytes(5 * HIDDEN * 4))
        heard = [(await waiting.channel.receive())[0] for _ in range(4)]
        waited_s = asyncio.get_running_loop().time() - begun
        in_flight.release(PeerId("a"), greedy // 2)
        return heard, waited_s, (await waiting.channel.receive())[0]

    heard, waited_s, answer = play(scene)
    assert {message.id for message in heard} == {-1}
    assert waited_s == pytest.approx(2.0)  # the lease: four beats
    assert isinstance(answer, Output)
