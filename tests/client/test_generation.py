"""One reply: when it ends, what it counts, how it is resumed and stopped."""

import asyncio

import pytest

from swarm.client.generation import Request, check_request
from swarm.errors import ContextOverflow, EmptyPrompt, RequestError
from swarm.model.sampling import Sampling

PROMPT = [72, 101, 108, 108, 111]


def ids_of(play, **limits) -> list[int]:
    return list(reply_of(play, **limits).token_ids)


def reply_of(play, **limits):
    async def scene(swarm):
        return await swarm.client().generate(PROMPT, **({"stop_token_ids": frozenset()} | limits))

    return play(scene)


def test_the_token_that_stops_a_reply_is_in_its_ids_and_not_in_its_text(play):
    free = reply_of(play, max_tokens=8)
    stop = free.token_ids[4]
    assert stop not in free.token_ids[:4]
    reply = reply_of(play, max_tokens=8, stop_token_ids=frozenset({stop}))
    assert (reply.token_ids, reply.finish_reason) == (free.token_ids[:5], "stop")
    assert (reply.completion_tokens, reply.prompt_tokens) == (5, 5)


def test_a_minimum_of_tokens_forbids_stopping_before(play):
    stop = ids_of(play, max_tokens=8)[2]
    limits = {"max_tokens": 12, "stop_token_ids": frozenset({stop})}
    assert len(ids_of(play, **limits)) == 3
    longer = ids_of(play, min_tokens=6, **limits)
    assert len(longer) >= 6
    assert stop not in longer[:6]


def test_a_reply_that_was_begun_before_goes_on_as_it_would_have(play):
    sampling = Sampling(temperature=1.0, seed=5)
    whole = reply_of(play, max_tokens=12, sampling=sampling)
    rest = reply_of(play, max_tokens=12, sampling=sampling, output_ids=whole.token_ids[:5])
    assert rest.token_ids == whole.token_ids
    assert rest.text == whole.text


@pytest.mark.parametrize("ended_by", ["stop token", "stop text", "limit", "context"])
def test_a_reply_that_had_ended_before_is_complete_without_a_step(play, ended_by):
    free = reply_of(play, max_tokens=8)
    prompt, limits = {
        "stop token": (PROMPT, {"stop_token_ids": frozenset({free.token_ids[4]})}),
        "stop text": (PROMPT, {"stop": (free.text[2:4],), "include_stop": True}),
        "limit": (PROMPT, {"max_tokens": 6}),
        "context": ([65] * 240, {}),
    }[ended_by]
    limits = {"stop_token_ids": frozenset()} | limits

    async def scene(swarm):
        client = swarm.client()
        whole = await client.generate(prompt, **limits)
        again = client.generate(prompt, output_ids=whole.token_ids, **limits)
        pieces = [piece async for piece in again]
        return whole, again.reply, pieces

    whole, again, pieces = play(scene)
    assert (pieces, again.hops) == ([], ())
    assert (again.token_ids, again.text) == (whole.token_ids, whole.text)
    assert again.finish_reason == whole.finish_reason


def test_the_likeliest_alternatives_come_with_each_piece(play):
    async def scene(swarm):
        generation = swarm.client().generate(
            PROMPT, max_tokens=4, top_logprobs=3, stop_token_ids=frozenset(), sampling=Sampling()
        )
        return [piece async for piece in generation]

    for piece in play(scene):
        assert len(piece.top_logprobs) == 3
        assert piece.top_logprobs[0] == (piece.token_id, pytest.approx(piece.logprob))


def test_a_reply_is_not_to_be_had_before_it_is_complete(play):
    async def scene(swarm):
        generation = swarm.client().generate(PROMPT, max_tokens=4)
        with pytest.raises(RuntimeError, match="not complete yet"):
            _ = generation.reply
        await generation
        return generation.reply.completion_tokens

    assert play(scene) >= 1


def test_a_reply_that_is_closed_early_frees_its_session(play):
    async def scene(swarm):
        generation = swarm.client().generate(PROMPT, max_tokens=50, stop_token_ids=frozenset())
        await anext(aiter(generation))
        held = [len(peer.peer.sessions) for peer in swarm.peers]
        await generation.aclose()
        return held, [len(peer.peer.sessions) for peer in swarm.peers]

    assert play(scene, "0:3 3:6") == ([1, 1], [0, 0])


def test_nothing_is_sent_before_a_reply_is_awaited(play):
    async def scene(swarm):
        generation = swarm.client().generate(PROMPT, max_tokens=4)
        await asyncio.sleep(1)
        return [len(peer.peer.sessions) for peer in swarm.peers], generation.hops

    assert play(scene) == ([0], ())


def test_a_token_id_that_the_model_does_not_have_is_refused(play):
    async def scene(swarm):
        with pytest.raises(RequestError, match="5000"):
            await swarm.client().generate([72, 5000], max_tokens=2)

    play(scene)


@pytest.mark.parametrize(
    ("prompt", "max_tokens", "error", "sentence"),
    [
        ((), None, EmptyPrompt, "The prompt is empty. Give at least one token to continue from."),
        (
            (1,) * 256, None, ContextOverflow,
            "The prompt has 256 tokens; the model's context holds 256. "
            "Shorten the prompt or ask for fewer tokens.",
        ),
        (
            (1,) * 200, 57, ContextOverflow,
            "The prompt has 200 tokens and 57 for the reply; the model's context holds 256. "
            "Shorten the prompt or ask for fewer tokens.",
        ),
    ],
)  # fmt: skip
def test_a_request_that_cannot_fit_says_so_in_a_sentence(play, prompt, max_tokens, error, sentence):
    async def scene(swarm):
        with pytest.raises(error) as refused:
            check_request(Request(prompt, max_tokens=max_tokens), swarm.client().voice)
        return str(refused.value)

    assert play(scene) == sentence


def test_a_reply_without_a_limit_ends_where_the_context_does(play):
    async def scene(swarm):
        return await swarm.client().generate([65] * 240, stop_token_ids=frozenset())

    reply = play(scene)
    assert (reply.completion_tokens, reply.finish_reason) == (16, "length")
