"""Spares, planned leaves and slow peers: what is known in time costs the reader nothing."""

import asyncio
from itertools import pairwise
from statistics import median

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swarm.client.client import ClientOptions
from swarm.model.compute import InlineCompute
from swarm.session.rules import is_worth_a_spare
from swarm.testing.clock import run_virtual
from swarm.values import Span
from swarm.wire.records import PeerRecord

PROMPT = list(b"Once upon a time there was a swarm.")
COUNT = 120
TWICE = [Span(0, 3), Span(0, 3), Span(3, 6), Span(3, 6)]


def active_on(swarm, span):
    """The peer whose session on the span is the active one."""
    return next(
        hosted
        for hosted in swarm.peers
        if hosted.peer.announcer.profile.span == span
        and any(not session.spare for session in hosted.peer.sessions.all())
    )


def disturbed_reply(virtual_swarm, options, disturb, *, after_s=2.0, spans=TWICE, cost=None):
    """A reply disturbed after some seconds; gives ids, reply, and the gaps between tokens in seconds."""

    async def run():
        loop = asyncio.get_running_loop()
        async with virtual_swarm(compute=cost or (lambda: InlineCompute(0.02))) as swarm:
            await swarm.add_peers(spans)
            generation = swarm.client(options).generate(PROMPT, max_tokens=COUNT, stop_token_ids=frozenset())
            started_at, task, times, ids = loop.time(), None, [], []
            async for piece in generation:
                ids.append(piece.token_id)
                times.append(loop.time())
                if task is None and loop.time() - started_at > after_s:
                    task = asyncio.create_task(disturb(swarm))
            await task
            await asyncio.sleep(1)
            left = [len(hosted.peer.sessions) for hosted in swarm.living]
            return ids, generation.reply, [b - a for a, b in pairwise(times)], left

    return run_virtual(run())


def test_a_warm_spare_takes_over_at_the_cost_of_its_lag(virtual_swarm, reference):
    async def kill(swarm):
        await active_on(swarm, Span(0, 3)).kill()

    ids, reply, gaps, left = disturbed_reply(virtual_swarm, ClientOptions(spares="always"), kill)
    assert ids == reference.reply(PROMPT, COUNT)
    [resume] = reply.resumes
    assert resume.replayed_tokens <= 9
    assert max(gaps) < 5 * median(gaps)
    assert sum(left) == 0


def test_without_spares_everything_is_replayed(virtual_swarm, reference):
    async def kill(swarm):
        await active_on(swarm, Span(0, 3)).kill()

    ids, reply, _, _ = disturbed_reply(virtual_swarm, ClientOptions(spares="off"), kill)
    assert ids == reference.reply(PROMPT, COUNT)
    assert reply.resumes[0].replayed_tokens > len(PROMPT)


def test_a_spare_that_dies_is_replaced_and_the_reply_does_not_notice(virtual_swarm, reference):
    async def kill_spares(swarm):
        for hosted in list(swarm.peers):
            if any(session.spare for session in hosted.peer.sessions.all()):
                await hosted.kill()
        await swarm.add_peers([Span(0, 6)])

    ids, reply, gaps, left = disturbed_reply(virtual_swarm, ClientOptions(spares="always"), kill_spares)
    assert ids == reference.reply(PROMPT, COUNT)
    assert reply.resumes == ()
    assert max(gaps) < 3 * median(gaps)
    assert sum(left) == 0


def test_rewinding_takes_the_spare_along(virtual_swarm, reference):
    async def run():
        async with virtual_swarm(compute=lambda: InlineCompute(0.02)) as swarm:
            await swarm.add_peers(TWICE)
            context = swarm.client(ClientOptions(spares="always")).conversation().context
            await context.move_to(PROMPT)
            await asyncio.sleep(3)
            edited = [*PROMPT[:20], *b"another ending"]
            await context.move_to(edited)
            await asyncio.sleep(3)
            await active_on(swarm, Span(0, 3)).kill()
            logits = await context.move_to([*edited, 7])
            replayed = context.session.resumes[0].replayed_tokens
            await context.close()
            return int(logits.argmax()), replayed

    token, replayed = run_virtual(run())
    assert token == reference.reply([*PROMPT[:20], *b"another ending", 7], 1)[0]
    assert replayed <= 9


def test_a_planned_leave_is_not_seen_by_the_reader(virtual_swarm, reference):
    async def leave(swarm):
        await active_on(swarm, Span(0, 3)).leave(20)

    ids, reply, gaps, left = disturbed_reply(virtual_swarm, ClientOptions(spares="off"), leave)
    assert ids == reference.reply(PROMPT, COUNT)
    assert max(gaps) <= 3 * median(gaps)
    assert [resume.reason for resume in reply.resumes] == ["it is leaving"]
    assert sum(left) == 0


def test_a_peer_leaves_as_soon_as_its_last_session_has_moved(virtual_swarm):
    took = []

    async def leave(swarm):
        loop = asyncio.get_running_loop()
        started_at = loop.time()
        await active_on(swarm, Span(0, 3)).leave(60)
        took.append(loop.time() - started_at)

    disturbed_reply(virtual_swarm, ClientOptions(spares="off"), leave)
    assert took[0] < 10


def test_an_idle_conversation_moves_before_its_peer_is_gone(virtual_swarm, reference):
    async def run():
        async with virtual_swarm() as swarm:
            await swarm.add_peers(TWICE)
            context = swarm.client(ClientOptions(spares="off")).conversation().context
            await context.move_to(PROMPT)
            leaving = active_on(swarm, Span(3, 6))
            await leaving.leave(20)
            logits = await context.move_to([*PROMPT, 7])
            await context.close()
            return int(logits.argmax()), context.session.resumes[0].reason

    token, reason = run_virtual(run())
    assert token == reference.reply([*PROMPT, 7], 1)[0]
    assert reason == "it is leaving"


def test_a_peer_that_becomes_slow_is_left_without_losing_its_work(virtual_swarm, reference):
    costs = []

    def cost():
        costs.append(InlineCompute(0.02))
        return costs[-1]

    async def slow_down(swarm):
        slow = swarm.peers.index(active_on(swarm, Span(0, 3)))
        swarm.peers[slow].peer.executor._compute._cost_s = 0.5

    ids, reply, gaps, _ = disturbed_reply(virtual_swarm, ClientOptions(spares="off"), slow_down, cost=cost)
    assert ids == reference.reply(PROMPT, COUNT)
    assert [resume.reason for resume in reply.resumes] == ["it is slow"]
    assert max(gaps) < 1
    assert median(gaps[-20:]) < 0.1


def record(**changes) -> PeerRecord:
    fields = {
        "peer": "p", "model": "0" * 64, "issued_at": 0.0, "expires_at": 30.0, "sequence": 1, "start": 0,
        "end": 3, "state": "online", "dtype": "fp32", "quantization": "none", "decode_tokens_per_s": 100.0,
        "prefill_tokens_per_s": 500.0, "free_tokens": 1, "queue_depth": 0, "wire_version": 1, "software": "0",
        "started_at": 0.0,
    }  # fmt: skip
    return PeerRecord(**(fields | changes))


@pytest.mark.parametrize(
    ("uptime_s", "history", "changes", "worth"),
    [
        (30, 2000, {}, True),
        (30, 10, {}, False),
        (86_400, 800, {}, False),
        (86_400, 800, {"on_battery": True}, True),
        (86_400, 8000, {}, True),
    ],
)
def test_a_spare_is_kept_where_hazard_times_replay_is_worth_a_spare(uptime_s, history, changes, worth):
    assert is_worth_a_spare(record(**changes), history, losses=0, now=uptime_s) is worth


@given(st.floats(1, 1e6), st.integers(0, 100_000), st.integers(0, 5))
def test_more_hazard_never_makes_a_spare_less_worth(uptime_s, history, losses):
    calm = is_worth_a_spare(record(), history, losses, uptime_s)
    for changes, more in (({"reachable": "relayed"}, 0), ({"on_battery": True}, 0), ({}, 1)):
        assert is_worth_a_spare(record(**changes), history, losses + more, uptime_s) or not calm
