"""Chat completions, whole and streamed, say the same, and mean what OpenAI means."""

import pytest

from tests.gateway.conftest import CHAT, HELLO, MODEL, text_of

FORCED = [
    "👨‍👩‍👧‍👦 family, 🏳️‍🌈 flag, 🇫🇷",
    "中文字符，没有问题。",
    "e\u0301 o\u0308 n\u0303 — combining",
    "नमस्ते ثم שלום",
]


@pytest.mark.parametrize("text", FORCED)
async def test_a_stream_of_single_bytes_joins_to_the_text_and_has_no_replacement_character(serve, text):
    async with serve() as served:
        form = {"structured_outputs": {"choice": [text]}}
        events = await served.stream(**form)
        whole = await served.chat(**form)
    assert text_of(events) == whole["choices"][0]["message"]["content"] == text
    assert all("\ufffd" not in text_of([event]) for event in events)


async def test_a_free_stream_joins_to_the_whole_answer(serve):
    async with serve() as served:
        settings = {"max_tokens": 60, "temperature": 1, "seed": 5}
        events = await served.stream(**settings)
        whole = await served.chat(**settings)
    assert text_of(events) == whole["choices"][0]["message"]["content"]


async def test_a_stream_has_one_id_the_role_first_and_the_reason_last(serve):
    async with serve() as served:
        events = await served.stream(max_tokens=5, stream_options={"include_usage": True})
    assert len({(event["id"], event["created"]) for event in events}) == 1
    assert events[0]["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert events[-2]["choices"][0] == {"index": 0, "delta": {}, "logprobs": None, "finish_reason": "length"}
    assert [event["choices"][0]["finish_reason"] for event in events[:-2]] == [None] * (len(events) - 2)
    assert events[-1]["choices"] == []
    assert events[-1]["usage"]["completion_tokens"] == 5
    assert all(event["usage"] is None for event in events[:-1])


async def test_usage_is_absent_from_a_stream_that_did_not_ask_for_it(serve):
    async with serve() as served:
        assert all("usage" not in event for event in await served.stream(max_tokens=3))


@pytest.mark.parametrize(
    ("stop", "text"),
    [
        ("gamma", "alpha beta "),
        (["nothing", "a gam", "gamma"], "alpha bet"),
        (["beta g", "eta"], "alpha b"),
        ("a", ""),
        ("absent", "alpha beta gamma delta"),
    ],
)
async def test_a_stop_string_over_the_borders_of_tokens_ends_before_itself(serve, stop, text):
    async with serve() as served:
        settings = {"structured_outputs": {"choice": ["alpha beta gamma delta"]}, "stop": stop}
        events = await served.stream(**settings)
        whole = (await served.chat(**settings))["choices"][0]
    assert text_of(events) == whole["message"]["content"] == text
    assert whole["finish_reason"] == "stop"


async def test_a_stop_string_can_be_left_in(serve):
    async with serve() as served:
        body = await served.chat(
            structured_outputs={"choice": ["one two three"]}, stop="two", include_stop_str_in_output=True
        )
    assert body["choices"][0]["message"]["content"] == "one two"


async def test_a_seed_gives_the_same_reply_and_choices_differ(serve):
    async with serve() as served:
        settings = {"temperature": 1.5, "seed": 11, "n": 3, "max_tokens": 30}
        first, second = await served.chat(**settings), await served.chat(**settings)
    texts = [choice["message"]["content"] for choice in first["choices"]]
    assert texts == [choice["message"]["content"] for choice in second["choices"]]
    assert len(set(texts)) == 3
    assert first["usage"]["completion_tokens"] == 90


async def test_each_choice_of_a_stream_is_the_choice_of_the_whole(serve):
    async with serve() as served:
        settings = {"temperature": 1, "seed": 3, "n": 2, "max_tokens": 20}
        events = await served.stream(**settings)
        whole = await served.chat(**settings)
    for choice in whole["choices"]:
        own = [event for event in events if event["choices"][0]["index"] == choice["index"]]
        assert text_of(own) == choice["message"]["content"]
        assert own[0]["choices"][0]["delta"]["role"] == "assistant"


async def test_a_bias_forces_a_token_and_another_forbids_it(serve):
    async with serve() as served:
        (letter,) = served.swarm.model.tokenizer.encode("x")
        forced = await served.chat(logit_bias={str(letter): 100}, max_tokens=4)
        assert forced["choices"][0]["message"]["content"] == "xxxx"
        plain = await served.chat(max_tokens=1, logprobs=True)
        first = plain["choices"][0]["logprobs"]["content"][0]["bytes"]
        [token] = [i for i in range(256) if list(_bytes_of(served, i)) == first]
        other = await served.chat(max_tokens=1, logprobs=True, logit_bias={str(token): -100})
    assert other["choices"][0]["logprobs"]["content"][0]["bytes"] != first


def _bytes_of(served, token_id):
    vocabulary = served.gateway.models[MODEL]._vocabulary
    return vocabulary.token_bytes(token_id)


async def test_a_frequency_penalty_ends_repetition(serve):
    async with serve() as served:
        (letter,) = served.swarm.model.tokenizer.encode("x")
        body = await served.chat(logit_bias={str(letter): 20}, frequency_penalty=2, max_tokens=40)
    assert 1 < body["choices"][0]["message"]["content"].count("x") < 40


async def test_log_probabilities_of_a_stream_are_those_of_the_whole(serve):
    async with serve() as served:
        settings = {"logprobs": True, "top_logprobs": 3, "max_tokens": 6}
        events = await served.stream(**settings)
        whole = await served.chat(**settings)
    told = [entry for event in events for choice in event["choices"] for entry in _entries(choice)]
    assert told == whole["choices"][0]["logprobs"]["content"]
    assert len(told) == 6
    for entry in told:
        assert entry["top_logprobs"][0]["logprob"] == entry["logprob"]  # greedy: the likeliest is chosen
        assert len(entry["top_logprobs"]) == 3


def _entries(choice):
    return choice["logprobs"]["content"] if choice["logprobs"] else []


async def test_min_tokens_and_ignore_eos_keep_the_reply_going(serve):
    async with serve() as served:
        end = served.swarm.model.config.stop_token_ids
        bias = {str(token_id): 100 for token_id in end}
        assert (await served.chat(logit_bias=bias, max_tokens=9))["usage"]["completion_tokens"] == 1
        kept = await served.chat(logit_bias=bias, max_tokens=9, min_tokens=5)
        assert kept["usage"]["completion_tokens"] == 6
        ignored = await served.chat(logit_bias=bias, max_tokens=9, ignore_eos=True)
    assert ignored["usage"]["completion_tokens"] == 9
    assert ignored["choices"][0]["finish_reason"] == "length"


async def test_text_parts_and_the_developer_role_are_read(serve):
    async with serve() as served:
        plain = [{"role": "system", "content": "Be\nbrief"}, {"role": "user", "content": "Hi"}]
        parts = [
            {
                "role": "developer",
                "content": [{"type": "text", "text": "Be"}, {"type": "text", "text": "brief"}],
            },
            {"role": "user", "content": [{"type": "text", "text": "Hi"}]},
        ]
        one, two = (
            await served.chat(messages=plain, max_tokens=8),
            await served.chat(messages=parts, max_tokens=8),
        )
    assert one["usage"] == two["usage"]
    assert one["choices"] == two["choices"]


async def test_provenance_names_the_hops_for_those_who_ask(serve):
    async with serve() as served:
        body = await served.chat(max_tokens=4, include_swarm=True)
        status, by_header, _ = await served.post(
            CHAT, {"model": MODEL, "messages": HELLO, "max_tokens": 4}, **{"X-Include-Swarm": "true"}
        )
        assert "swarm" not in await served.chat(max_tokens=4)
    [choice] = body["swarm"]["choices"]
    assert [hop["blocks"] for hop in choice["hops"]] == ["0:2", "2:4"]
    assert choice["ttft_s"] > 0
    assert body["swarm"]["audited"] is False
    assert (status, by_header["swarm"]["manifest"]) == (200, body["swarm"]["manifest"])


async def test_the_final_message_can_be_continued(serve):
    async with serve() as served:
        messages = [*HELLO, {"role": "assistant", "content": "Well"}]
        body = await served.chat(
            messages=messages, max_tokens=3, add_generation_prompt=False, continue_final_message=True
        )
        ended = await served.chat(messages=messages, max_tokens=3)
    assert body["usage"]["prompt_tokens"] < ended["usage"]["prompt_tokens"]
