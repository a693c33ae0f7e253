"""The client's end of a stream, against a scripted peer: what it takes for an answer, and what for a loss."""

import asyncio
import contextlib
import math

import msgspec
import pytest
import torch

from swarm.errors import ChannelClosed, HopLost, NetworkError, PeerUnreachable, ProtocolError, SessionRefused
from swarm.network.channel import CHATTER
from swarm.network.memory import MemorySwarm
from swarm.security.identity import new_identity
from swarm.security.session_key import SessionKey
from swarm.session.hop import HopSettings
from swarm.session.plan import Numerics, PlannedHop
from swarm.session.remote_hop import (
    DEADLINE_FACTOR,
    DEADLINE_FLOOR_S,
    DEEPEST_QUEUE,
    LONGEST_DEADLINE_S,
    SLOWER_FACTOR,
    RemoteHop,
    open_hop,
)
from swarm.testing.clock import run_virtual
from swarm.values import ModelDigest, Span
from swarm.wire.messages import (
    SESSION_PROTOCOL,
    WIRE_VERSION,
    Close,
    Fault,
    Leaving,
    Open,
    Opened,
    Output,
    Ping,
    Pong,
    Rewind,
    Step,
)

HIDDEN, LEASE_S = 4, 2.0
KEY, SERVER, CLIENT = SessionKey(bytes(32)), new_identity(), new_identity()
OPENED = Opened(position=0, max_tokens=100, lease_s=LEASE_S)
ROW = torch.ones(1, HIDDEN)


def answer(step: Step, **changes) -> Output:
    fields = {
        "id": step.id,
        "position": step.position,
        "tokens": step.reply_tokens,
        "compute_ms": 1,
        "queue_ms": 2,
    }
    return Output(**(fields | changes))


async def opened(peer):
    """Take the Open and answer it rightly."""
    request, _ = await peer.receive()
    await peer.send(OPENED)
    return request


async def echo(peer) -> None:
    """A peer whose blocks change nothing."""
    await opened(peer)
    while True:
        message, body = await peer.receive()
        if isinstance(message, Close):
            return
        if isinstance(message, Step):
            size = message.reply_tokens * HIDDEN * 4
            await peer.send(answer(message), body[len(body) - size :])


def meet(script, client):
    """Run `client(open)` against a peer that follows `script(channel)`; `open()` gives a hop."""

    async def main():
        swarm = MemorySwarm(0)
        serving = swarm.join(SERVER)
        await serving.serve(SESSION_PROTOCOL, script)
        network = swarm.join(CLIENT)
        planned = PlannedHop(SERVER.peer_id, Span(2, 5), Numerics("fp32", "none"), expected_ms=10.0)
        settings = HopSettings(KEY, 3, ModelDigest("d" * 64), "fp32", HIDDEN, 100, LEASE_S, 5.0, trace="t")

        async def open_it(**options) -> RemoteHop:
            return await open_hop(network, planned, settings, **options)

        try:
            return await client(open_it)
        finally:
            await network.close()
            await serving.close()

    return run_virtual(main())


def now() -> float:
    return asyncio.get_running_loop().time()


def test_open_says_all_that_a_peer_compares():
    seen = []

    async def peer(channel):
        seen.append(await opened(channel))

    async def client(open_it):
        await (await open_it()).drop()

    meet(peer, client)
    assert seen == [
        Open(
            wire_version=WIRE_VERSION, session=KEY.id_at(SERVER.peer_id, 2), epoch=3, owner=KEY.owner,
            proof=KEY.claim(KEY.id_at(SERVER.peer_id, 2), 3, SERVER.peer_id, CLIENT.peer_id),
            manifest="d" * 64, start=2, end=5,
            dtype="fp32", quantization="none", codec="fp32", max_tokens=100, lease_s=LEASE_S, trace="t",
        )
    ]  # fmt: skip


def test_a_fault_in_answer_to_open_is_raised_with_its_code_and_field():
    async def peer(channel):
        await channel.receive()
        await channel.send(
            Fault(code="dtype", text="This peer has dtype fp32.", retryable=False, field="dtype")
        )

    async def client(open_it):
        with pytest.raises(SessionRefused, match="This peer has dtype fp32") as refused:
            await open_it()
        return refused.value.fault_code, refused.value.field

    assert meet(peer, client) == ("dtype", "dtype")


def test_another_answer_to_open_breaks_the_protocol():
    async def peer(channel):
        await channel.receive()
        await channel.send(Pong(id=1, queue_depth=0))

    async def client(open_it):
        with pytest.raises(ProtocolError, match="answered Open with Pong"):
            await open_it()

    meet(peer, client)


@pytest.mark.parametrize(
    "changes", [{"position": -1}, {"lease_s": 0.0}, {"lease_s": -1.0}, {"lease_s": math.nan}]
)
def test_an_opened_that_cannot_be_breaks_the_protocol(changes):
    ended = []

    async def peer(channel):
        await channel.receive()
        await channel.send(msgspec.structs.replace(OPENED, **changes))
        with pytest.raises(ChannelClosed):
            await channel.receive()
        ended.append(True)

    async def client(open_it):
        with pytest.raises(ProtocolError, match="Not a message"):
            await open_it()
        await asyncio.sleep(0.1)

    meet(peer, client)
    assert ended == [True]


def test_a_peer_that_does_not_answer_open_is_given_up_in_time():
    async def peer(channel):
        await asyncio.sleep(3600)

    async def client(open_it):
        with pytest.raises(NetworkError, match=r"did not answer within 2.0 s"):
            await open_it()
        waited_s = now()
        with pytest.raises(NetworkError, match=r"did not answer within 5.0 s"):
            await open_it(may_wait=True)
        return waited_s, now() - waited_s

    assert meet(peer, client) == pytest.approx((LEASE_S, 5.0))


@pytest.mark.parametrize(("may_wait", "said"), [(False, [Open, Close]), (True, [Open])])
def test_an_opening_that_is_given_up_leaves_no_new_session_behind(may_wait, said):
    heard = []

    async def peer(channel):
        with contextlib.suppress(ChannelClosed):
            while True:
                heard.append(type((await channel.receive()).message))

    async def client(open_it):
        opening = asyncio.create_task(open_it(may_wait=may_wait))
        await asyncio.sleep(0.5)
        opening.cancel()
        await asyncio.wait({opening})
        await asyncio.sleep(0.5)

    meet(peer, client)
    assert heard == said


def test_a_peer_that_closes_instead_of_answering_is_a_network_error():
    async def peer(channel):
        channel.close()

    async def client(open_it):
        with pytest.raises(NetworkError) as error:
            await open_it()
        assert not isinstance(error.value, PeerUnreachable)

    meet(peer, client)


def test_a_step_gives_the_rows_asked_for_and_counts_what_it_cost():
    async def client(open_it):
        hop = await open_it()
        rows = torch.arange(12.0).view(3, HIDDEN)
        result = await hop.step(rows, 2)
        stats = hop.stats
        return torch.equal(result, rows[1:]), hop.position, (stats.steps, stats.tokens, stats.compute_ms)

    assert meet(echo, client) == (True, 3, (1, 3, 1.0))


@pytest.mark.parametrize(
    ("reply", "reason"),
    [
        (lambda step: (answer(step, tokens=2), bytes(2 * HIDDEN * 4)), "it answered 2 rows instead of 1"),
        (lambda step: (answer(step), bytes(3)), "3 bytes are not 1 rows of 4 fp32 values"),
        (
            lambda step: (Opened(position=0, max_tokens=1, lease_s=1), b""),
            "it sent Opened, which is not for a client",
        ),
        (
            lambda step: (Fault(code="position", text="Elsewhere.", retryable=True), b""),
            r"it refused \(position\): Elsewhere",
        ),
    ],
)
def test_an_answer_that_is_none_is_a_loss_with_its_reason(reply, reason):
    async def peer(channel):
        await opened(channel)
        step, _ = await channel.receive()
        message, body = reply(step)
        await channel.send(message, body)
        await channel.receive()

    async def client(open_it):
        hop = await open_it()
        with pytest.raises(HopLost, match=reason):
            await hop.step(ROW, 1)
        assert hop.lost is not None
        with pytest.raises(HopLost, match=reason):
            await hop.step(ROW, 1)

    meet(peer, client)


def test_an_answer_that_cannot_be_decoded_does_not_count_as_held():
    async def peer(channel):
        await opened(channel)
        step, _ = await channel.receive()
        await channel.send(answer(step), bytes(3))
        await channel.receive()

    async def client(open_it):
        hop = await open_it()
        with pytest.raises(HopLost, match="3 bytes are not"):
            await hop.step(ROW, 1)
        return hop.position, hop.stats.steps

    assert meet(peer, client) == (0, 0)


def test_bytes_that_are_no_message_are_a_loss():
    async def peer(channel):
        await opened(channel)
        await channel.receive()
        channel._writer.write(b"\x04\x00\x00\x00\x00\x00\x00\x00\xff\xfe\xfd\xfc")
        await channel.receive()

    async def client(open_it):
        with pytest.raises(HopLost, match="Not a message"):
            await (await open_it()).step(ROW, 1)

    meet(peer, client)


def test_a_stream_that_breaks_is_a_loss_at_once():
    async def peer(channel):
        await opened(channel)
        await channel.receive()
        await asyncio.sleep(0.5)
        channel.close()

    async def client(open_it):
        with pytest.raises(HopLost, match="the stream broke"):
            await (await open_it()).step(ROW, 1)
        return now()

    assert meet(peer, client) == pytest.approx(0.5)


def test_silence_for_the_lease_is_a_loss():
    async def peer(channel):
        await opened(channel)
        await asyncio.sleep(3600)

    async def client(open_it):
        with pytest.raises(HopLost, match=r"silent for 2.0 s"):
            await (await open_it()).step(ROW, 1)
        return now()

    assert meet(peer, client) == pytest.approx(LEASE_S, abs=0.01)


@pytest.mark.parametrize(("tokens", "reason"), [(1, "silent for 2.0 s"), (80_000, "the link is stalled")])
def test_a_link_on_which_nothing_comes_through_is_taken_for_slower(tokens, reason):
    async def peer(channel):
        await opened(channel)
        await asyncio.sleep(3600)

    async def client(open_it):
        hop = await open_it()
        before = hop.bytes_per_s
        with pytest.raises(HopLost, match=reason):
            await hop.step(torch.ones(tokens, HIDDEN), 0)
        return hop.bytes_per_s / before

    assert meet(peer, client) == 1 / SLOWER_FACTOR


def test_a_peer_lends_no_longer_lease_than_it_was_asked_for():
    async def peer(channel):
        await channel.receive()
        await channel.send(msgspec.structs.replace(OPENED, lease_s=1e6))
        await asyncio.sleep(3600)

    async def client(open_it):
        with pytest.raises(HopLost, match=r"silent for 2.0 s"):
            await (await open_it()).step(ROW, 1)

    meet(peer, client)


def beating(seconds: float, queue_depth: int = 0):
    """A peer that computes so long, and beats meanwhile."""

    async def peer(channel):
        await opened(channel)
        step, body = await channel.receive()
        ends_at = now() + seconds
        while now() < ends_at:
            await asyncio.sleep(LEASE_S / 4)
            await channel.send(Pong(id=-1, queue_depth=queue_depth))
        await channel.send(answer(step), body)
        await channel.receive()

    return peer


def test_a_peer_that_beats_is_waited_for_beyond_the_lease():
    async def client(open_it):
        await (await open_it()).step(ROW, 1)
        return now()

    assert meet(beating(10.0), client) == pytest.approx(10.0)


def test_a_peer_is_not_late_because_this_machine_slept():
    async def peer(channel):
        await opened(channel)
        while True:
            await channel.send(Pong(id=-1, queue_depth=1))
            await asyncio.sleep(0.5)

    async def client(open_it):
        hop = await open_it()
        step = asyncio.create_task(hop.step(ROW, 1))
        await asyncio.sleep(1)
        asyncio.get_running_loop()._now_s += 90
        await asyncio.sleep(0.1)
        late = hop.is_late
        step.cancel()
        await asyncio.wait({step})
        await hop.close()
        return late

    assert not meet(peer, client)


@pytest.mark.parametrize("flood", [Pong(id=-1, queue_depth=1), Leaving(seconds=0.0)])
def test_a_peer_that_says_too_much_is_lost(flood):
    said = []

    async def peer(channel):
        await opened(channel)
        with contextlib.suppress(ChannelClosed):
            while len(said) < 10 * CHATTER.burst:
                said.append(flood)
                await channel.send(flood)
        await asyncio.sleep(3600)

    async def client(open_it):
        hop = await open_it()
        with pytest.raises(HopLost, match="says too much") as lost:
            await hop.step(ROW, 1)
        return lost.value.kind

    assert meet(peer, client) == "nonsense"


def test_answers_to_no_step_are_chatter_too():
    async def peer(channel):
        await opened(channel)
        step, _ = await channel.receive()
        for stray in range(CHATTER.burst + 100):
            await channel.send(answer(step, id=step.id + 1 + stray, tokens=0))
        await asyncio.sleep(3600)

    async def client(open_it):
        hop = await open_it()
        with pytest.raises(HopLost, match="says too much"):
            await hop.step(ROW, 1)

    meet(peer, client)


def test_a_queue_that_a_peer_only_claims_does_not_put_off_its_replacement():
    async def peer(channel):
        await opened(channel)
        step, body = await channel.receive()
        await asyncio.sleep(1)
        await channel.send(answer(step), body)
        while True:
            await channel.send(Pong(id=-1, queue_depth=10**9))
            await asyncio.sleep(0.5)

    async def client(open_it):
        hop = await open_it()
        await hop.step(ROW, 1)
        step = asyncio.create_task(hop.step(ROW, 1))
        await asyncio.sleep(15)
        late = hop.is_late
        step.cancel()
        await asyncio.wait({step})
        return late

    assert meet(peer, client)


def test_beats_do_not_save_a_peer_that_never_answers():
    async def client(open_it):
        with pytest.raises(HopLost, match="no answer within 20 s"):
            await (await open_it()).step(ROW, 1)
        return now()

    assert meet(beating(3600.0), client) == pytest.approx(DEADLINE_FLOOR_S)


@pytest.mark.parametrize("tokens", [1, 20, 512])
def test_no_queue_puts_the_deadline_off_without_end(tokens):
    async def client(open_it):
        hop = await open_it()
        with pytest.raises(HopLost, match="no answer within"):
            await hop.step(torch.ones(tokens, HIDDEN), 0)
        return now()

    expected_s = 0.01 * tokens * (1 + DEEPEST_QUEUE)
    deadline_s = min(LONGEST_DEADLINE_S, max(DEADLINE_FLOOR_S, DEADLINE_FACTOR * expected_s))
    assert meet(beating(3600.0, queue_depth=10**9), client) == pytest.approx(deadline_s, abs=1.0)


def test_the_answer_to_a_cancelled_step_is_ignored_and_its_rows_are_taken_back():
    seen = []

    async def peer(channel):
        await opened(channel)
        while True:
            message, body = await channel.receive()
            seen.append(message)
            if isinstance(message, Step):
                await asyncio.sleep(0.5)
                await channel.send(answer(message), body)

    async def client(open_it):
        hop = await open_it()
        await hop.step(ROW, 1)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.2):
                await hop.step(2 * ROW, 1)
        return (await hop.step(3 * ROW, 1)).tolist(), hop.position

    assert meet(peer, client) == ([[3.0] * HIDDEN], 2)
    assert [type(message) for message in seen] == [Step, Step, Rewind, Step]
    assert (seen[2].position, seen[3].position) == (1, 1)


def test_a_peer_that_says_it_leaves_is_remembered_as_leaving():
    async def peer(channel):
        await opened(channel)
        await channel.send(Leaving(seconds=7.0))
        await channel.receive()

    async def client(open_it):
        hop = await open_it()
        await asyncio.sleep(0.1)
        return hop.leaving_in_s, hop.lost

    assert meet(peer, client) == (7.0, None)


@pytest.mark.parametrize(("wait_s", "waited_s"), [(0.0, 0.0), (1.0, 1.0), (5.0, 1.5)])
def test_close_waits_for_the_peer_to_have_freed_the_session_as_long_as_it_is_told(wait_s, waited_s):
    closed = []

    async def peer(channel):
        await opened(channel)
        message, _ = await channel.receive()
        closed.append(message)
        await asyncio.sleep(1.5)

    async def client(open_it):
        hop = await open_it()
        await hop.close(wait_s)
        ended_at = now()
        await asyncio.sleep(0.1)
        return ended_at

    assert meet(peer, client) == pytest.approx(waited_s, abs=0.01)
    assert closed == [Close()]


def test_a_long_silence_of_ours_is_broken_by_a_ping():
    seen = []

    async def peer(channel):
        await opened(channel)
        while True:
            seen.append((await channel.receive()).message)

    async def client(open_it):
        hop = await open_it()
        await hop.keep_alive()
        await asyncio.sleep(20)
        await hop.keep_alive()
        await asyncio.sleep(0.1)

    meet(peer, client)
    assert [type(message) for message in seen] == [Ping]
