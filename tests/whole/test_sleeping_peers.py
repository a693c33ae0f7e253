"""A peer whose machine goes to sleep hands its sessions over, and takes sessions again after waking."""

import asyncio
from itertools import pairwise
from statistics import median

import pytest

from swarm.client.client import ClientOptions
from swarm.model.compute import InlineCompute
from swarm.testing.clock import run_virtual
from swarm.values import Span

PROMPT = list(b"Once upon a time there was a swarm.")
OPTIONS = {"max_tokens": 150, "stop_token_ids": frozenset()}
NO_SPARES = ClientOptions(spares="off")
PAUSE_S = 4.0


def slow_compute() -> InlineCompute:
    return InlineCompute(0.02)


async def sleep(hosted, seconds: float) -> float:
    """Put the machine of a peer to sleep and wake it; gives how long the sleep was put off."""
    loop = asyncio.get_running_loop()
    started_at = loop.time()
    await hosted.peer.pause(PAUSE_S)
    took = loop.time() - started_at
    hosted.net.freeze(hosted.id)
    await asyncio.sleep(seconds)
    hosted.net.thaw(hosted.id)
    await hosted.peer.resume()
    return took


def reply_through_a_sleep(virtual_swarm, spans, sleep_s=60.0):
    """A reply whose first hop falls asleep; gives its ids, the gaps, the resumes and the time put off."""

    async def run():
        loop = asyncio.get_running_loop()
        async with virtual_swarm(compute=slow_compute) as swarm:
            await swarm.add_peers(spans)
            generation, ids, times, sleeping = (
                swarm.client(NO_SPARES).generate(PROMPT, **OPTIONS),
                [],
                [],
                None,
            )
            async for piece in generation:
                ids.append(piece.token_id)
                times.append(loop.time())
                if len(ids) == 40:
                    sleeper = next(peer for peer in swarm.peers if len(peer.peer.sessions))
                    sleeping = asyncio.create_task(sleep(sleeper, sleep_s))
            put_off_s = await sleeping
            return ids, [b - a for a, b in pairwise(times)], generation.reply.resumes, put_off_s

    return run_virtual(run())


def test_a_reply_goes_on_without_a_stall_while_its_peer_goes_to_sleep(virtual_swarm, reference):
    spans = [Span(0, 3), Span(0, 3), Span(3, 6)]
    ids, gaps, resumes, put_off_s = reply_through_a_sleep(virtual_swarm, spans)
    assert ids == reference.reply(PROMPT, OPTIONS["max_tokens"])
    assert [resume.reason for resume in resumes] == ["it is leaving"]
    assert max(gaps) <= 3 * median(gaps)
    assert put_off_s < PAUSE_S


def test_a_session_without_another_peer_goes_on_where_it_was_after_the_sleep(virtual_swarm, reference):
    ids, gaps, resumes, put_off_s = reply_through_a_sleep(virtual_swarm, [Span(0, 6)], sleep_s=20.0)
    assert ids == reference.reply(PROMPT, OPTIONS["max_tokens"])
    assert put_off_s == pytest.approx(PAUSE_S)
    assert 20 <= max(gaps) <= 20 + 10
    assert resumes[-1].replayed_tokens <= 1


def test_a_sleeping_peer_is_out_of_the_routes_and_in_them_again_after_waking(virtual_swarm):
    async def run():
        async with virtual_swarm(compute=slow_compute) as swarm:
            sleeper, other = await swarm.add_peers([Span(0, 6), Span(0, 6)])
            sleeping = asyncio.create_task(sleep(sleeper, 60.0))
            await asyncio.sleep(1)
            asleep = await swarm.client(NO_SPARES).generate(PROMPT, max_tokens=3)
            await sleeping
            await other.kill()
            awake = await swarm.client(NO_SPARES).generate(PROMPT, max_tokens=3)
            return [asleep.hops[0].peer, awake.hops[0].peer] == [other.id, sleeper.id]

    assert run_virtual(run())


def test_a_spare_does_not_put_the_sleep_off(virtual_swarm):
    async def run():
        async with virtual_swarm(compute=slow_compute) as swarm:
            await swarm.add_peers([Span(0, 6), Span(0, 6)])
            context = swarm.client(ClientOptions(spares="always")).conversation().context
            await context.move_to(PROMPT)
            await asyncio.sleep(3)
            [follower] = [p for p in swarm.peers if any(session.spare for session in p.peer.sessions.all())]
            put_off_s = await sleep(follower, 1.0)
            await context.close()
            return put_off_s

    assert run_virtual(run()) < 0.1
