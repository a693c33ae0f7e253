"""A conversation that was resumed from what peers still held is one like any other afterwards."""

import asyncio

import pytest
import torch

from swarm.client.chat import ConversationState
from swarm.client.client import ClientOptions
from swarm.errors import NoRoute
from swarm.model.compute import InlineCompute
from swarm.network.memory import LinkConditions
from swarm.testing.clock import run_virtual
from swarm.values import Span

STORY = "Hello there, tell me a very long story please"
OPTIONS = {"max_tokens": 20, "stop_token_ids": frozenset()}
LONG = {"max_tokens": 200, "stop_token_ids": frozenset()}
NO_SPARES = ClientOptions(spares="off")


async def broken_off(swarm, at_token: int, **options) -> ConversationState:
    """What is kept of a conversation whose client dies in mid-reply."""
    client = swarm.client(NO_SPARES)
    conversation, count, state = client.conversation(), 0, None
    async for _ in conversation.say(STORY, **options):
        count += 1
        if count == at_token:
            state = conversation.state()
            break
    await client.network.close()
    await asyncio.sleep(0.5)
    return ConversationState.from_bytes(state.to_bytes())


def test_another_prompt_may_share_less_than_what_the_peers_hold(virtual_swarm, reference):
    async def run():
        async with virtual_swarm(compute=lambda: InlineCompute(0.01)) as swarm:
            await swarm.add_peers([Span(0, 6)])
            state = await broken_off(swarm, 3, **OPTIONS)
            conversation = await swarm.client(NO_SPARES).resume(state)
            held = conversation.context.session.position
            generation = conversation.say("Other" + 46 * "x", **OPTIONS)
            reply = await generation
            prompt = list(generation.request.prompt_ids)
            await conversation.close()
            return held, len(state.ids), prompt, reply

    held, known, prompt, reply = run_virtual(run())
    assert held == known - 1
    assert list(reply.token_ids) == reference.reply(prompt, 20)
    assert reply.resumes == ()


def test_the_first_hop_can_still_leave_without_being_noticed(virtual_swarm, reference):
    async def run():
        async with virtual_swarm(compute=lambda: InlineCompute(0.05)) as swarm:
            await swarm.add_peers([Span(0, 3), Span(3, 6)])
            state = await broken_off(swarm, 10, **LONG)
            conversation = await swarm.client(NO_SPARES).resume(state)
            generation = conversation.go_on(state.unfinished)
            await swarm.add_peers([Span(0, 3), Span(3, 6)])
            leaving = None
            async for _ in generation:
                leaving = leaving or asyncio.create_task(swarm.peers[0].leave(30.0))
            await leaving
            await conversation.close()
            return list(state.unfinished.prompt_ids), generation.reply

    prompt, reply = run_virtual(run())
    assert list(reply.token_ids) == reference.reply(prompt, 200)
    assert [resume.reason for resume in reply.resumes] == ["it is leaving"]


def test_it_goes_on_in_another_number_format_when_nobody_has_its_own_any_more(virtual_swarm):
    async def run():
        async with virtual_swarm(compute=lambda: InlineCompute(0.01)) as swarm:
            assert swarm.model is not None  # loaded in fp32
            swarm.dtype = "bf16"
            [peer] = await swarm.add_peers([Span(0, 6)])
            conversation = swarm.client(NO_SPARES).conversation()
            await conversation.say(STORY, **OPTIONS)
            state = conversation.state()
            await peer.kill()
            await asyncio.sleep(60)
            swarm.dtype = "fp32"
            await swarm.add_peers([Span(0, 6)])
            conversation = await swarm.client(NO_SPARES).resume(state)
            reply = await conversation.say("And?", **OPTIONS)
            await conversation.close()
            return reply

    assert len(run_virtual(run()).token_ids) == 20


def test_it_prefers_its_own_number_format_when_its_peers_are_gone(virtual_swarm):
    async def run():
        async with virtual_swarm(compute=lambda: InlineCompute(0.01)) as swarm:
            assert swarm.model is not None
            swarm.dtype = "bf16"
            await swarm.add_peers([Span(0, 6), Span(0, 6)])
            conversation = swarm.client(NO_SPARES).conversation()
            await conversation.say(STORY, **OPTIONS)
            state = conversation.state()
            for hosted in swarm.peers:
                if hosted.id == state.session.hops[0].peer:
                    await hosted.kill()
            swarm.dtype = "fp32"
            await swarm.add_peers([Span(0, 6)] * 3)
            kinds = set()
            for _ in range(5):
                resumed = await swarm.client(NO_SPARES).resume(state)
                await resumed.say("And?", **OPTIONS)
                kinds |= {hop.planned.numerics.dtype for hop in resumed.context.session.hops}
                await resumed.close()
            return kinds

    assert run_virtual(run()) == {"bf16"}


def test_a_state_older_than_a_cut_does_not_take_the_session_for_its_own(virtual_swarm, reference):
    async def run():
        async with virtual_swarm(compute=lambda: InlineCompute(0.01)) as swarm:
            await swarm.add_peers([Span(0, 3), Span(3, 6)])
            client = swarm.client(NO_SPARES)
            conversation = client.conversation()
            await conversation.say(STORY, **OPTIONS)
            state = conversation.state()
            shared = list(state.ids[:20])
            await conversation.context.move_to([*shared, *range(3, 100)])
            await client.network.close()
            await asyncio.sleep(0.5)
            resumed = await swarm.client(NO_SPARES).resume(ConversationState.from_bytes(state.to_bytes()))
            held = resumed.context.session.position
            logits = await resumed.context.move_to(state.ids)
            await resumed.close()
            return held, list(state.ids), int(logits.argmax())

    held, ids, token = run_virtual(run())
    assert held == 0
    assert token == reference.reply(ids, 1)[0]


def test_what_some_peers_have_not_got_yet_is_not_taken_for_held(virtual_swarm):
    async def run():
        async with virtual_swarm(compute=lambda: InlineCompute(0.01)) as swarm:
            [_, last] = await swarm.add_peers([Span(0, 3), Span(3, 6)])
            client = swarm.client(ClientOptions(spares="off", patience_s=3.0))
            conversation = client.conversation()
            context = conversation.context
            await context.move_to(list(range(3, 100)))
            swarm.net.set_links(client.network.peer_id, last.id, LinkConditions(cut=True))
            other = [*range(3, 20), *range(40, 120)]
            with pytest.raises(NoRoute):
                await context.move_to(other)
            state = conversation.state()
            await client.network.close()
            resumed = await swarm.client(NO_SPARES).resume(ConversationState.from_bytes(state.to_bytes()))
            fresh = swarm.client(NO_SPARES).conversation()
            logits = [await each.context.move_to(other) for each in (resumed, fresh)]
            await asyncio.gather(resumed.close(), fresh.close())
            return list(state.ids), other, logits

    ids, other, (logits, expected) = run_virtual(run())
    assert ids == other[: len(ids)]
    assert torch.allclose(logits, expected, atol=1e-4)
