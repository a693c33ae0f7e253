"""A reply over a swarm is the reply of the model in one piece, however the blocks are cut."""

import asyncio

import pytest

from swarm.client.client import ClientOptions
from swarm.errors import ContextOverflow, EmptyPrompt, NoRoute
from swarm.model.compute import InlineCompute
from swarm.model.sampling import Sampling
from swarm.testing.clock import run_virtual
from swarm.values import Span, parse_span

PROMPT = [72, 101, 108, 108, 111]
IGNORE_STOPS = {"stop_token_ids": frozenset()}


@pytest.mark.parametrize("cuts", ["0:6", "0:3 3:6", "0:1 1:5 5:6", "0:1 1:2 2:3 3:4 4:6", "0:4 2:6"])
def test_a_reply_does_not_depend_on_how_the_blocks_are_cut(virtual_swarm, reference, cuts):
    async def ask():
        async with virtual_swarm() as swarm:
            await swarm.add_peers([parse_span(cut) for cut in cuts.split()])
            return await swarm.client().generate(PROMPT, max_tokens=20, **IGNORE_STOPS)

    reply = run_virtual(ask())
    assert list(reply.token_ids) == reference.reply(PROMPT, 20)
    assert reply.finish_reason == "length"
    assert (reply.prompt_tokens, reply.completion_tokens, reply.resumes) == (5, 20, ())


def test_a_long_prompt_goes_through_all_hops_at_once(virtual_swarm, reference):
    prompt = [index % 250 for index in range(700)]

    async def ask():
        async with virtual_swarm() as swarm:
            await swarm.add_peers([Span(0, 2), Span(2, 4), Span(4, 6)])
            return await swarm.client().generate(prompt, max_tokens=4, **IGNORE_STOPS)

    assert list(run_virtual(ask()).token_ids) == reference.reply(prompt, 4)


def test_sampling_with_a_seed_gives_the_same_reply_everywhere(virtual_swarm, reference):
    sampling = Sampling(temperature=1.0, top_p=0.95, seed=7)

    async def ask():
        async with virtual_swarm() as swarm:
            await swarm.add_peers([Span(0, 2), Span(2, 6)])
            return await swarm.client().generate(PROMPT, sampling=sampling, max_tokens=20, **IGNORE_STOPS)

    assert list(run_virtual(ask()).token_ids) == reference.reply(PROMPT, 20, sampling)


def test_pieces_joined_are_the_reply(virtual_swarm):
    async def ask():
        async with virtual_swarm() as swarm:
            await swarm.add_peers([Span(0, 6)])
            generation = swarm.client().generate("héllo 🦊", max_tokens=30, **IGNORE_STOPS)
            pieces = [piece async for piece in generation]
            return pieces, generation.reply, swarm.model.tokenizer.decode(generation.reply.token_ids)

    pieces, reply, decoded = run_virtual(ask())
    assert "".join(piece.text for piece in pieces) == reply.text == decoded
    assert [piece.token_id for piece in pieces] == list(reply.token_ids)
    assert [piece.finish_reason for piece in pieces] == [None] * 29 + ["length"]


def test_twenty_chats_at_once_each_equal_their_solo_run(virtual_swarm, reference):
    prompts = [[index, *PROMPT, 200 - index][: 3 + index % 5] for index in range(20)]

    async def ask():
        async with virtual_swarm(compute=lambda: InlineCompute(0.01)) as swarm:
            await swarm.add_peers([Span(0, 3), Span(3, 6)])
            client = swarm.client()
            return await asyncio.gather(
                *(client.generate(prompt, max_tokens=12, **IGNORE_STOPS)._finish() for prompt in prompts)
            )

    replies = run_virtual(ask())
    assert [list(reply.token_ids) for reply in replies] == [reference.reply(prompt, 12) for prompt in prompts]


def test_a_reply_ends_at_a_stop_string_and_gives_the_session_back(virtual_swarm, reference):
    expected = reference.ends.tokenizer.decode(reference.reply(PROMPT, 30))
    stop = expected[10:12]

    async def ask():
        async with virtual_swarm() as swarm:
            [peer] = await swarm.add_peers([Span(0, 6)])
            reply = await swarm.client().generate(PROMPT, max_tokens=30, stop=(stop,), **IGNORE_STOPS)
            await asyncio.sleep(1)
            return reply, len(peer.peer.sessions)

    reply, sessions = run_virtual(ask())
    assert reply.text == expected[: expected.index(stop)]
    assert reply.finish_reason == "stop"
    assert sessions == 0


def test_a_conversation_pays_only_for_what_is_new(virtual_swarm):
    async def ask():
        async with virtual_swarm() as swarm:
            [peer] = await swarm.add_peers([Span(0, 6)])
            conversation = swarm.client().conversation()
            for text in ("Hello", "And again"):
                await conversation.say(text, max_tokens=5, **IGNORE_STOPS)
            hop = conversation.context.session.hops[0]
            sent, held = hop.stats.tokens, conversation.context.session.position
            await conversation.close()
            await asyncio.sleep(1)
            return sent, held, len(peer.peer.sessions), len(conversation.messages)

    sent, held, sessions, messages = run_virtual(ask())
    assert sent < held * 1.2  # without reuse the first turn would have been sent twice
    assert (sessions, messages) == (0, 4)


def test_a_hole_is_named_when_patience_ends(virtual_swarm):
    async def ask():
        async with virtual_swarm() as swarm:
            await swarm.add_peers([Span(0, 2), Span(4, 6)])
            waits = []
            client = swarm.client(ClientOptions(patience_s=5, on_wait=waits.append))
            started_at = asyncio.get_running_loop().time()
            with pytest.raises(NoRoute, match="blocks 2:4"):
                await client.generate(PROMPT, max_tokens=3)
            return waits, asyncio.get_running_loop().time() - started_at

    waits, waited_s = run_virtual(ask())
    assert waits
    assert 2 < waited_s <= 6


def test_a_peer_that_comes_in_time_ends_the_wait(virtual_swarm, reference):
    async def ask():
        async with virtual_swarm() as swarm:
            await swarm.add_peers([Span(0, 2), Span(4, 6)])
            asking = asyncio.ensure_future(
                swarm.client().generate(PROMPT, max_tokens=3, **IGNORE_STOPS)._finish()
            )
            await asyncio.sleep(4)
            await swarm.add_peer(Span(2, 4))
            return await asking

    assert list(run_virtual(ask()).token_ids) == reference.reply(PROMPT, 3)


def test_empty_and_oversized_prompts_are_refused_before_anything_is_sent(virtual_swarm):
    async def ask():
        async with virtual_swarm() as swarm:
            client = swarm.client()
            with pytest.raises(EmptyPrompt):
                client.generate("")
            with pytest.raises(ContextOverflow, match="the model's context holds"):
                client.generate([1] * 100_000)
            with pytest.raises(ContextOverflow, match="for the reply"):
                client.generate(PROMPT, max_tokens=100_000)

    run_virtual(ask())
