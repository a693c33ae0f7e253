"""Plain completions: prompts of every kind, echo, log probabilities."""

from tests.gateway.conftest import MODEL

PATH = "/v1/completions"


async def ask(served, **fields):
    status, body, _ = await served.post(PATH, {"model": MODEL, **fields})
    assert status == 200, body
    return body


async def test_text_and_its_token_ids_give_the_same(serve):
    async with serve() as served:
        ids = served.swarm.model.tokenizer.encode("abc")
        by_text = await ask(served, prompt="abc", max_tokens=8)
        by_ids = await ask(served, prompt=ids, max_tokens=8)
        by_lists = await ask(served, prompt=[ids], max_tokens=8)
    assert by_text["choices"] == by_ids["choices"] == by_lists["choices"]
    assert by_text["usage"]["prompt_tokens"] == 3


async def test_several_prompts_give_n_choices_each_in_order(serve):
    async with serve() as served:
        one = await ask(served, prompt="one", max_tokens=6)
        two = await ask(served, prompt="two", max_tokens=6)
        both = await ask(served, prompt=["one", "two"], n=2, max_tokens=6)
    texts = [choice["text"] for choice in both["choices"]]
    assert [choice["index"] for choice in both["choices"]] == [0, 1, 2, 3]
    assert texts == [one["choices"][0]["text"]] * 2 + [two["choices"][0]["text"]] * 2


async def test_a_stream_joins_to_the_whole_and_echo_puts_the_prompt_in_front(serve):
    async with serve() as served:
        whole = await ask(served, prompt="abc", echo=True, max_tokens=10)
        events = await served.stream(PATH, prompt="abc", echo=True, max_tokens=10)
    assert "".join(event["choices"][0]["text"] for event in events) == whole["choices"][0]["text"]
    assert whole["choices"][0]["text"].startswith("abc")
    assert events[-1]["choices"][0]["finish_reason"] == "length"


async def test_sixteen_tokens_are_the_default(serve):
    async with serve() as served:
        assert (await ask(served, prompt="abc", ignore_eos=True))["usage"]["completion_tokens"] == 16


async def test_log_probabilities_have_an_offset_for_each_token_also_in_a_stream(serve):
    async with serve() as served:
        form = {"structured_outputs": {"choice": ["hello"]}, "prompt": "abc", "logprobs": 2}
        whole = (await ask(served, **form))["choices"][0]["logprobs"]
        events = await served.stream(PATH, **form)
    told = [event["choices"][0]["logprobs"] for event in events if event["choices"][0]["logprobs"]]
    assert whole["tokens"][:5] == list("hello")
    assert whole["text_offset"][:5] == [0, 1, 2, 3, 4]
    assert [entry["text_offset"][0] for entry in told] == whole["text_offset"]
    assert all(len(top) in (2, 3) for top in whole["top_logprobs"])
