"""Log probabilities of prompts: as OpenAI tells them with echo, as vLLM does, and transformers' values."""

import pytest
import torch
import transformers

from swarm.gateway import translate
from tests.gateway.conftest import CHAT, HELLO, MODEL

PATH = "/v1/completions"
TEXT = "Hello wörld 🦊!"


@pytest.fixture(scope="module")
def logprobs_of(tiny):
    """transformers' log probabilities [tokens, vocab] of what follows each of the given ids."""
    model = transformers.AutoModelForCausalLM.from_pretrained(tiny, dtype=torch.float32)

    def of(ids):
        with torch.inference_mode():
            return model(torch.tensor([ids])).logits[0].log_softmax(-1)

    return of


async def ask(served, path=PATH, **fields):
    status, body, _ = await served.post(path, {"model": MODEL, **fields})
    assert status == 200, body
    return body


def values_of(ids, rows):
    return [float(row[token_id]) for token_id, row in zip(ids[1:], rows[:-1], strict=True)]


@pytest.mark.parametrize("form", ["text", "ids", "lists"])
async def test_echo_tells_transformers_log_probabilities_of_the_prompt(serve, logprobs_of, form):
    async with serve() as served:
        ids = served.swarm.model.tokenizer.encode(TEXT)
        prompt = {"text": TEXT, "ids": ids, "lists": [ids, ids[:5]]}[form]
        body = await ask(served, prompt=prompt, echo=True, logprobs=2, max_tokens=0)
    rows = logprobs_of(ids)
    told = body["choices"][0]["logprobs"]
    assert told["token_logprobs"][0] is told["top_logprobs"][0] is None
    assert told["token_logprobs"][1:] == pytest.approx(values_of(ids, rows), abs=2e-5)
    assert body["choices"][0]["text"] == TEXT
    assert len({len(each) for each in told.values()}) == 1
    for row, own, top in zip(rows, told["token_logprobs"][1:], told["top_logprobs"][1:], strict=False):
        best = row.topk(2).values.tolist()
        assert sorted(top.values(), reverse=True) == pytest.approx(
            sorted({*best, own}, reverse=True)[: len(top)], abs=2e-5
        )
        assert own in top.values()
    if form == "lists":
        assert body["choices"][1]["logprobs"]["token_logprobs"] == pytest.approx(
            told["token_logprobs"][:5], abs=2e-5
        )
    assert body["usage"]["completion_tokens"] == 0
    assert body["choices"][0]["finish_reason"] == "length"


async def test_offsets_cut_the_repeated_text_into_its_tokens(serve):
    async with serve() as served:
        body = await ask(
            served, prompt="a ö<|im_end|>b", echo=True, logprobs=0, max_tokens=4, logit_bias={"66": 100}
        )
    choice = body["choices"][0]
    offsets = choice["logprobs"]["text_offset"]
    assert choice["text"].startswith("a öb")
    #                       a, space, two bytes of ö, the end token, b, and the reply
    assert offsets[:6] == [0, 1, 2, 2, 3, 3]
    assert offsets[6:] == [4, 5, 6, 7]
    assert [choice["text"][at] for at in offsets[6:]] == choice["logprobs"]["tokens"][6:]


async def test_a_stream_tells_the_log_probabilities_that_the_whole_has(serve):
    form = {"prompt": "abc", "echo": True, "logprobs": 1, "max_tokens": 5, "ignore_eos": True}
    async with serve() as served:
        whole = (await ask(served, **form))["choices"][0]
        for fields in (form, form | {"max_tokens": 0}):
            events = [event["choices"][0] for event in await served.stream(PATH, **fields)]
            told = [event["logprobs"] for event in events if event["logprobs"]]
            count = 3 + fields["max_tokens"]
            for name, values in whole["logprobs"].items():
                assert [value for each in told for value in each[name]] == values[:count]
            assert "".join(event["text"] for event in events)[:3] == "abc"
            assert events[-1]["finish_reason"] == "length"


@pytest.mark.parametrize("path", [PATH, CHAT])
async def test_prompt_logprobs_are_told_as_vllm_tells_them(serve, logprobs_of, path):
    asked = {"prompt": TEXT} if path == PATH else {"messages": HELLO}
    async with serve() as served:
        model = served.swarm.model
        ids = model.tokenizer.encode(TEXT) if path == PATH else model.tokenizer.encode_chat(HELLO)
        body = await ask(served, path, prompt_logprobs=1, max_tokens=3, **asked)
        none = await ask(served, path, max_tokens=3, **asked)
        two = await ask(served, path, prompt_logprobs=1, max_tokens=3, n=2, **asked)
    told = (body["choices"][0] if path == PATH else body)["prompt_logprobs"]
    rows = logprobs_of(ids)
    assert told[0] is None
    assert len(told) == len(ids)
    for token_id, row, entry in zip(ids[1:], rows[:-1], told[1:], strict=True):
        rank = 1 + int((row > row[token_id]).sum())
        assert next(iter(entry)) == str(token_id)
        assert entry[str(token_id)]["rank"] == rank
        assert entry[str(token_id)]["logprob"] == pytest.approx(float(row[token_id]), abs=2e-5)
        assert entry[str(int(row.argmax()))]["rank"] == 1
        assert len(entry) == (1 if rank == 1 else 2)
    again = (two["choices"][1] if path == PATH else two)["prompt_logprobs"]
    assert [list(entry or ()) for entry in again] == [list(entry or ()) for entry in told]
    assert "prompt_logprobs" not in none | none["choices"][0]
    assert body["choices"][0]["logprobs"] is None
    assert body["choices"][0].get("text") == none["choices"][0].get("text")


async def test_no_token_may_be_asked_of_a_completion_only(serve):
    async with serve() as served:
        body = await ask(served, prompt="abc", max_tokens=0)
        status, refused, _ = await served.post(CHAT, {"model": MODEL, "messages": HELLO, "max_tokens": 0})
    assert (body["choices"][0]["text"], body["choices"][0]["logprobs"]) == ("", None)
    assert body["usage"] == {"prompt_tokens": 3, "completion_tokens": 0, "total_tokens": 3}
    assert (status, refused["error"]["param"]) == (400, "max_tokens")


@pytest.mark.parametrize("value", [-1, 21, True, "1"])
async def test_a_count_of_log_probabilities_out_of_range_is_refused(serve, value):
    async with serve() as served:
        for name in ("logprobs", "prompt_logprobs"):
            asked = {"model": MODEL, "prompt": "abc", "echo": True, name: value}
            status, body, _ = await served.post(PATH, asked)
            assert (status, body["error"]["param"]) == (400, name)


async def test_prompt_logprobs_in_a_stream_are_refused(serve):
    async with serve() as served:
        asked = {"model": MODEL, "prompt": "abc", "stream": True, "prompt_logprobs": 0}
        status, body, _ = await served.post(PATH, asked)
    assert (status, body["error"]["param"], body["error"]["code"]) == (400, "prompt_logprobs", "unsupported")


async def test_more_scores_than_are_told_at_once_are_refused(serve, monkeypatch):
    monkeypatch.setattr(translate, "MAX_SCORES", 23)
    asked = {"model": MODEL, "echo": True, "max_tokens": 0, "logprobs": 3}
    async with serve() as served:
        status, body, _ = await served.post(PATH, asked | {"prompt": ["abc", "def"]})
        await ask(served, **asked | {"prompt": "abcde"})
    assert (status, body["error"]["param"]) == (400, "prompt")
    assert "24" in body["error"]["message"]


async def test_who_comes_back_still_gets_the_scores_of_the_prompt(serve):
    form = {"prompt": "abcdef", "echo": True, "logprobs": 0, "max_tokens": 40, "ignore_eos": True}
    async with serve(cost_s=0.02) as served:
        whole = (await ask(served, **form))["choices"][0]["logprobs"]
        body = {"model": MODEL, "stream": True, **form}
        async with served.http.post(PATH, json=body) as response:
            first = await response.content.readuntil(b"\n\n")
        reply_id = first.split(b"id: ")[1].split(b":")[0].decode()
        async with served.http.get(f"/v1/responses/{reply_id}") as response:
            again = (await response.json())["choices"][0]["logprobs"]
    assert again["tokens"] == whole["tokens"]
    assert again["token_logprobs"][1:] == pytest.approx(whole["token_logprobs"][1:], abs=2e-5)
