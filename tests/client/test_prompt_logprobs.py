"""How likely each token of a prompt was: transformers' value, whatever happens to the peers meanwhile."""

import asyncio

import pytest
import torch
import transformers

from swarm.client.batched_head import MAX_SCORED_ROWS, BatchedHead
from swarm.errors import ContextOverflow, ModelError
from swarm.model.compute import InlineCompute
from swarm.model.sampling import Sampling
from swarm.testing.clock import run_virtual

PROMPT = [72, 101, 108, 108, 111, 32, 119, 111, 114, 108, 100]
LONG = [(index * 37) % 250 for index in range(200)]
FREE = {"stop_token_ids": frozenset(), "sampling": Sampling()}


@pytest.fixture(scope="module")
def right(tiny_directory):
    """transformers' log probabilities [tokens, vocab] of what follows each of the given ids."""
    model = transformers.AutoModelForCausalLM.from_pretrained(tiny_directory, dtype=torch.float32)

    def of(ids):
        with torch.inference_mode():
            return model(torch.tensor([ids])).logits[0].log_softmax(-1)

    return of


def assert_right(scored, ids, logprobs, top):
    assert [each.token_id for each in scored] == ids[1:]
    for each, row in zip(scored, logprobs[:-1], strict=True):
        assert each.logprob == pytest.approx(float(row[each.token_id]), abs=2e-5)
        assert each.rank == 1 + int((row > row[each.token_id]).sum())
        values, likeliest = row.topk(top)
        assert [token_id for token_id, _ in each.top_logprobs] == likeliest.tolist()
        assert [value for _, value in each.top_logprobs] == pytest.approx(values.tolist(), abs=2e-5)


@pytest.mark.parametrize("spans", ["0:6", "0:2 2:4 4:6"])
@pytest.mark.parametrize("ids", [PROMPT, LONG])
def test_log_probabilities_of_a_prompt_are_those_of_transformers(play, right, spans, ids):
    async def scene(swarm):
        return await swarm.client().generate(ids, prompt_logprobs=3, max_tokens=0, **FREE)

    reply = play(scene, spans)
    assert_right(reply.prompt_logprobs, ids, right(ids), 3)
    assert (reply.token_ids, reply.text, reply.finish_reason) == ((), "", "length")


def test_scoring_a_prompt_does_not_change_its_reply(play):
    async def scene(swarm):
        client = swarm.client()
        scored = client.generate(PROMPT, prompt_logprobs=0, max_tokens=8, **FREE)
        piece = await anext(aiter(scored))
        early = scored.prompt_logprobs
        return await client.generate(PROMPT, max_tokens=8, **FREE), await scored, piece, early

    plain, scored, piece, early = play(scene, "0:3 3:6")
    assert (scored.token_ids, plain.prompt_logprobs) == (plain.token_ids, ())
    assert piece.token_id == plain.token_ids[0]
    assert early == scored.prompt_logprobs
    assert all(each.top_logprobs == () for each in early)


@pytest.mark.parametrize("lost", [0, 1, 2])
@pytest.mark.parametrize("after_s", [0.001, 0.015, 0.035])
def test_a_peer_lost_while_a_prompt_is_scored_changes_no_number(play, right, lost, after_s):
    async def scene(swarm):
        generation = swarm.client().generate(LONG, prompt_logprobs=2, max_tokens=4, **FREE)
        reading = asyncio.create_task(generation._finish())
        while not generation.hops:  # noqa: ASYNC110 - virtual time
            await asyncio.sleep(0.001)
        await asyncio.sleep(after_s)
        chain = [hop.peer for hop in generation.hops]
        await next(hosted for hosted in swarm.peers if hosted.id == chain[lost]).kill()
        return await reading

    reply = play(scene, "0:2 2:4 4:6 0:2 2:4 4:6", cost_s=0.02)
    assert_right(reply.prompt_logprobs, LONG, right(LONG), 2)
    assert reply.resumes


def test_a_reply_that_goes_on_can_be_asked_for_its_prompt(play, right):
    async def scene(swarm):
        client = swarm.client()
        begun = await client.generate(PROMPT, max_tokens=3, **FREE)
        whole = await client.generate(PROMPT, max_tokens=9, **FREE)
        rest = client.generate(PROMPT, max_tokens=9, output_ids=begun.token_ids, prompt_logprobs=1, **FREE)
        return whole, await rest

    whole, rest = play(scene)
    assert rest.token_ids == whole.token_ids
    assert_right(rest.prompt_logprobs, PROMPT, right(PROMPT), 1)


def test_a_conversation_that_holds_the_prompt_scores_all_of_it(play, right):
    async def scene(swarm):
        conversation = swarm.client().conversation()
        await conversation.say("Hello", max_tokens=4, **FREE)
        reply = await conversation.say("Again", max_tokens=4, prompt_logprobs=1, **FREE)
        held = list(conversation.context.ids)
        await conversation.close()
        return held[: reply.prompt_tokens], reply

    ids, reply = play(scene)
    assert_right(reply.prompt_logprobs, ids, right(ids), 1)


def test_a_prompt_may_fill_the_context_when_no_token_is_asked_for(play):
    async def scene(swarm):
        client = swarm.client()
        with pytest.raises(ContextOverflow):
            client.generate([65] * 256, prompt_logprobs=0, max_tokens=1, **FREE)
        scored = await client.generate([65] * 256, prompt_logprobs=0, max_tokens=0, **FREE)
        single = await client.generate([65], prompt_logprobs=0, max_tokens=0, **FREE)
        return len(scored.prompt_logprobs), len(single.prompt_logprobs)

    assert play(scene) == (255, 0)


def test_nothing_is_computed_for_no_token_and_no_score(play):
    async def scene(swarm):
        reply = await swarm.client().generate(PROMPT, max_tokens=0)
        return reply.finish_reason, reply.hops, reply.completion_tokens

    assert play(scene) == ("length", (), 0)


class SlowHead:
    """Notes the rows of every pass."""

    def __init__(self):
        self.passes = []

    def logits(self, hidden):
        self.passes.append(("next", len(hidden)))
        return hidden

    def score(self, hidden, following, top):
        self.passes.append(("score", len(hidden)))
        return list(following)


def test_a_long_prompt_lets_the_next_tokens_of_others_pass():
    async def run():
        head = SlowHead()
        batched = BatchedHead(head, InlineCompute(1.0))
        rows = torch.zeros(10 * MAX_SCORED_ROWS + 3, 4)
        ids = list(range(len(rows)))
        scoring = [asyncio.create_task(batched.score(rows, ids, 0)) for _ in range(3)]
        await asyncio.sleep(3.5)
        clock = asyncio.get_running_loop().time
        before = clock()
        await batched.logits(torch.zeros(1, 4))
        waited_s = clock() - before
        scoring[0].cancel()
        assert await scoring[1] == ids
        assert await scoring[2] == ids
        return waited_s, head.passes

    waited_s, passes = run_virtual(run())
    assert waited_s <= 1.0
    assert max(rows for kind, rows in passes if kind == "score") == MAX_SCORED_ROWS
    assert len([kind for kind, _ in passes if kind == "score"]) < 30


def test_hidden_states_that_are_no_numbers_give_no_scores(play):
    async def scene(swarm):
        head = swarm.client().model.head
        hidden = torch.full((2, head.config.hidden_size), float("nan"))
        with pytest.raises(ModelError, match="not numbers"):
            head.score(hidden, [1, 2], 1)

    play(scene)
