"""Whatever happens to peers and links, the reply goes on with the tokens it would have had."""

import asyncio

import pytest

from swarm.client.client import ClientOptions
from swarm.errors import NoRoute
from swarm.model.compute import InlineCompute
from swarm.network.memory import LinkConditions
from swarm.testing.clock import run_virtual
from swarm.values import Span

PROMPT = list(b"Once upon a time there was a swarm.")
COUNT = 40
LEASE_S = 2.0
NO_SPARES = ClientOptions(spares="off")


def slow_compute():
    return InlineCompute(0.02)


async def read(generation, upto: int) -> list[int]:
    """The ids of the next pieces of a reply."""
    ids = []
    async for piece in generation:
        ids.append(piece.token_id)
        if len(ids) == upto:
            break
    return ids


def ask_and_disturb(virtual_swarm, spans, disturb, *, at_token=10, options=None, cost_s=0.02):
    """A reply during which `disturb(swarm, client, chain)` happens; gives ids, reply and elapsed seconds."""

    async def run():
        async with virtual_swarm(compute=lambda: InlineCompute(cost_s)) as swarm:
            await swarm.add_peers([Span(*span) for span in spans])
            client = swarm.client(options or ClientOptions(lease_s=LEASE_S, spares="off"))
            generation = client.generate(PROMPT, max_tokens=COUNT, stop_token_ids=frozenset())
            started_at = asyncio.get_running_loop().time()
            ids = await read(generation, at_token)
            await disturb(swarm, client)
            ids += await read(generation, COUNT)
            return ids, generation.reply, asyncio.get_running_loop().time() - started_at

    return run_virtual(run())


def serving(swarm, span):
    """The peer that serves a session on the span."""
    return next(
        hosted
        for hosted in swarm.peers
        if hosted.peer.handler.open_streams and hosted.peer.announcer.profile.span == Span(*span)
    )


REPLICATED = [(0, 2), (0, 2), (2, 4), (2, 4), (4, 6), (4, 6)]


@pytest.mark.parametrize("span", [(0, 2), (2, 4), (4, 6)])
def test_a_killed_hop_is_replaced_and_no_token_changes(virtual_swarm, reference, span):
    async def kill(swarm, client):
        await serving(swarm, span).kill()

    ids, reply, _ = ask_and_disturb(virtual_swarm, REPLICATED, kill)
    assert ids == reference.reply(PROMPT, COUNT)
    [resume] = reply.resumes
    assert resume.replayed_tokens == len(PROMPT) + 10
    assert resume.stall_s < 0.5


def test_all_hops_killed_at_once_are_replaced(virtual_swarm, reference):
    async def kill(swarm, client):
        for span in ((0, 2), (2, 4), (4, 6)):
            await serving(swarm, span).kill()

    ids, reply, _ = ask_and_disturb(virtual_swarm, REPLICATED, kill)
    assert ids == reference.reply(PROMPT, COUNT)
    assert len(reply.resumes) == 3


def test_a_lost_span_is_covered_by_several_peers_with_other_cuts(virtual_swarm, reference):
    async def kill(swarm, client):
        await serving(swarm, (1, 5)).kill()

    spans = [(0, 1), (1, 5), (5, 6)]

    async def run():
        async with virtual_swarm(compute=slow_compute) as swarm:
            await swarm.add_peers([Span(*span) for span in spans])
            generation = swarm.client(NO_SPARES).generate(
                PROMPT, max_tokens=COUNT, stop_token_ids=frozenset()
            )
            ids = await read(generation, 10)
            await swarm.add_peers([Span(0, 3), Span(2, 4), Span(4, 6)])
            await kill(swarm, None)
            ids += await read(generation, COUNT)
            return ids, generation.reply

    ids, reply = run_virtual(run())
    assert ids == reference.reply(PROMPT, COUNT)
    assert len(reply.hops) > 3


def test_a_frozen_hop_is_found_within_the_lease(virtual_swarm, reference):
    async def freeze(swarm, client):
        swarm.net.freeze(serving(swarm, (2, 4)).id)

    ids, reply, _ = ask_and_disturb(virtual_swarm, REPLICATED, freeze)
    assert ids == reference.reply(PROMPT, COUNT)
    [resume] = reply.resumes
    assert LEASE_S <= resume.stall_s < LEASE_S + 1
    assert "silent" in resume.reason


@pytest.mark.parametrize("direction", ["to the peer", "from the peer", "both ways"])
@pytest.mark.parametrize("link", [LinkConditions(blackhole=True), LinkConditions(stalled=True)])
def test_a_link_that_swallows_bytes_is_found_within_the_lease(virtual_swarm, reference, direction, link):
    async def break_link(swarm, client):
        peer, own = serving(swarm, (0, 2)).id, client.network.peer_id
        if direction != "from the peer":
            swarm.net.set_link(own, peer, link)
        if direction != "to the peer":
            swarm.net.set_link(peer, own, link)

    ids, reply, _ = ask_and_disturb(virtual_swarm, REPLICATED, break_link)
    assert ids == reference.reply(PROMPT, COUNT)
    assert LEASE_S <= reply.resumes[0].stall_s < LEASE_S + 1


def test_a_cut_link_to_the_only_peer_is_taken_up_again_without_computing_anew(virtual_swarm, reference):
    async def cut(swarm, client):
        peer, own = serving(swarm, (2, 4)).id, client.network.peer_id
        swarm.net.set_links(own, peer, LinkConditions(cut=True))
        asyncio.get_running_loop().call_later(3, swarm.net.set_links, own, peer, LinkConditions())

    ids, reply, _ = ask_and_disturb(virtual_swarm, [(0, 2), (2, 4), (4, 6)], cut)
    assert ids == reference.reply(PROMPT, COUNT)
    [resume] = reply.resumes
    assert resume.replayed_tokens <= 1
    assert 3 <= resume.stall_s < 7


def test_a_long_computation_is_not_taken_for_a_loss(virtual_swarm, reference):
    async def nothing(swarm, client):
        pass

    ids, reply, _ = ask_and_disturb(virtual_swarm, [(0, 6)], nothing, cost_s=3 * LEASE_S)
    assert ids == reference.reply(PROMPT, COUNT)
    assert reply.resumes == ()


def test_a_replacement_that_dies_during_the_replay_is_replaced_itself(virtual_swarm, reference):
    spans = [(0, 2), (2, 4), (2, 4), (2, 4), (4, 6)]
    tasks = []

    async def kill_two(swarm, client):
        first = serving(swarm, (2, 4))
        await first.kill()

        async def kill_next():
            while not any(p is not first and p.peer.handler.open_streams for p in middle):  # noqa: ASYNC110
                await asyncio.sleep(0.001)
            await serving(swarm, (2, 4)).kill()

        middle = [p for p in swarm.peers if p.peer.announcer.profile.span == Span(2, 4)]
        tasks.append(asyncio.create_task(kill_next()))

    ids, reply, _ = ask_and_disturb(virtual_swarm, spans, kill_two)
    assert ids == reference.reply(PROMPT, COUNT)
    assert len(reply.resumes) == 2


def test_a_loss_during_the_prompt_changes_nothing(virtual_swarm, reference):
    prompt = [index % 250 for index in range(900)]

    async def run():
        async with virtual_swarm(compute=lambda: InlineCompute(0.2)) as swarm:
            await swarm.add_peers([Span(*span) for span in REPLICATED])
            asking = asyncio.ensure_future(
                swarm.client(NO_SPARES).generate(prompt, max_tokens=3, stop_token_ids=frozenset())._finish()
            )
            await asyncio.sleep(0.9)
            await serving(swarm, (2, 4)).kill()
            return await asking

    reply = run_virtual(run())
    assert list(reply.token_ids) == reference.reply(prompt, 3)
    assert len(reply.resumes) == 1


def test_when_nobody_is_left_the_error_names_the_blocks_and_the_reply_can_go_on_later(
    virtual_swarm, reference
):
    async def run():
        async with virtual_swarm(compute=slow_compute) as swarm:
            await swarm.add_peers([Span(0, 3), Span(3, 6)])
            client = swarm.client(ClientOptions(patience_s=3, spares="off"))
            conversation = client.conversation()
            context = conversation.context
            await context.move_to(PROMPT)
            await serving(swarm, (3, 6)).kill()
            with pytest.raises(NoRoute, match="blocks 3:6"):
                await context.feed([1])
            await swarm.add_peer(Span(3, 6))
            logits = await context.move_to([*PROMPT, 1])
            await conversation.close()
            return int(logits.argmax())

    assert run_virtual(run()) == reference.reply([*PROMPT, 1], 1)[0]


def test_a_reply_that_is_stopped_leaves_no_session_behind(virtual_swarm):
    async def run():
        async with virtual_swarm(compute=slow_compute) as swarm:
            peers = await swarm.add_peers([Span(0, 3), Span(3, 6)])
            client = swarm.client(NO_SPARES)
            for moment_s in (0.0, 0.001, 0.03, 0.5):
                asking = asyncio.ensure_future(
                    client.generate(PROMPT, max_tokens=COUNT, stop_token_ids=frozenset())._finish()
                )
                await asyncio.sleep(moment_s)
                asking.cancel()
                await asyncio.gather(asking, return_exceptions=True)
            await asyncio.sleep(1)
            return [len(peer.peer.sessions) for peer in peers]

    assert run_virtual(run()) == [0, 0]


def test_a_leaving_peer_takes_no_new_sessions(virtual_swarm, reference):
    async def run():
        async with virtual_swarm(compute=slow_compute) as swarm:
            first, second = await swarm.add_peers([Span(0, 6), Span(0, 6)])
            leaving = asyncio.create_task(first.leave(5))
            await asyncio.sleep(0.1)
            reply = await swarm.client(NO_SPARES).generate(PROMPT, max_tokens=3, stop_token_ids=frozenset())
            await leaving
            return reply.hops[0].peer == second.id, list(reply.token_ids)

    assert run_virtual(run()) == (True, reference.reply(PROMPT, 3))
