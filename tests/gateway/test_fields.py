"""Fields that only advise, that are null, and that nobody knows, at every level of a body."""

import pytest

from tests.gateway.conftest import CHAT, HELLO, MODEL

IGNORED = "X-Ignored-Fields"


def chat(**fields):
    return {"model": MODEL, "messages": HELLO, "max_tokens": 2, **fields}


ADVICE = {
    "verbosity": "low",
    "prediction": {"type": "content", "content": "x"},
    "store": True,
    "service_tier": "flex",
    "prompt_cache_retention": "24h",
    "functions": [],
    "function_call": "auto",
}


async def test_what_only_advises_is_accepted_and_without_effect(serve):
    async with serve() as served:
        status, with_advice, headers = await served.post(CHAT, chat(**ADVICE))
        _, without, _ = await served.post(CHAT, chat())
    assert status == 200
    assert IGNORED not in headers
    assert with_advice["choices"] == without["choices"]


async def test_a_null_is_the_same_as_leaving_out_at_every_level(serve):
    nulls = dict.fromkeys(["functions", "web_search_options", "frobnicate", "stop", "tools", "seed"])
    message = {"role": "user", "content": "Hello", "name": None, "audio": None}
    nested = {"stream": True, "stream_options": {"include_usage": None, "else": None}}
    async with serve(strict=True) as served:
        status, _, headers = await served.post(CHAT, chat(**nulls, messages=[message]))
        events = await served.stream(**nested, max_tokens=2)
    assert (status, IGNORED in headers) == (200, False)
    assert all("usage" not in event for event in events)


UNKNOWN = [
    (chat(frobnicate=1), "frobnicate"),
    (chat(web_search_options={}), "web_search_options"),
    (chat(stream=True, stream_options={"continuous_usage_stats": True}),
     "stream_options.continuous_usage_stats"),
    (chat(messages=[{**HELLO[0], "cache_control": {}}]), "messages[0].cache_control"),
    (chat(messages=[{"role": "user", "content": [{"type": "text", "text": "a", "b": 1}]}]),
     "messages[0].content[0].b"),
    (chat(response_format={"type": "text", "x": 1}), "response_format.x"),
    (chat(tools=[{"type": "function", "function": {"name": "f", "x": {}}}]), "tools[0].function.x"),
    (chat(structured_outputs={"choice": ["a"], "x": 1}), "structured_outputs.x"),
]  # fmt: skip


@pytest.mark.parametrize(("body", "place"), UNKNOWN, ids=[place for _, place in UNKNOWN])
async def test_an_unknown_field_is_told_in_a_header_and_refused_when_strict(serve, body, place):
    async with serve() as served, served.http.post(CHAT, json=body) as response:
        assert (response.status, response.headers[IGNORED]) == (200, place)
    async with serve(strict=True) as served:
        status, answer, _ = await served.post(CHAT, body)
    assert (status, answer["error"]["param"], answer["error"]["code"]) == (400, place, "unknown_parameter")


async def test_json_whose_form_is_the_clients_own_is_left_as_it_is(serve):
    schema = {"enum": [None], "x-odd": None}
    async with serve(strict=True) as served:
        body = await served.chat(structured_outputs={"json": schema}, metadata={"a": None})
    assert body["choices"][0]["message"]["content"] == "null"


async def test_the_name_of_an_unknown_field_cannot_break_the_header(serve):
    async with serve() as served:
        status, _, headers = await served.post(
            CHAT, chat(**{"a\r\nSet-Cookie: b": 1, "gr\u00fc\u00dfe,x": 1})
        )
    assert (status, headers[IGNORED]) == (200, "a??Set-Cookie:?b, gr??e?x")


BROKEN = [
    (b'{"a": "\\ud800"}', r"\ud800 is half a surrogate pair: line 1 column 8 (char 7)"),
    (b'{\n "a": "\\udc00"}', r"\udc00 is half a surrogate pair: line 2 column 8 (char 9)"),
    (b'{"a": "\\ud83d\\ude00\\ud83dx"}', r"\ud83d is half a surrogate pair: line 1 column 20 (char 19)"),
    (b'{"a": "\xff"}', "byte 7 is not UTF-8"),
    (b'{"a": NaN}', "NaN is no number"),
    (b'{"a": 1', "line 1 column 8 (char 7)"),
    (b'{"a": "x\n"}', "line 1 column 9 (char 8)"),
    (b"[" * 100_000, "nested too deeply"),
    (b"", "line 1 column 1 (char 0)"),
]


@pytest.mark.parametrize(("raw", "told"), BROKEN, ids=lambda value: None)
async def test_a_body_that_is_no_json_is_told_where_and_why(serve, raw, told):
    async with serve() as served:
        status, answer, _ = await served.post(CHAT, raw)
    assert (status, answer["error"]["code"]) == (400, "invalid_json")
    assert told in answer["error"]["message"]


async def test_a_whole_surrogate_pair_is_a_character(serve):
    async with serve() as served:
        raw = (
            b'{"model": "tiny", "max_tokens": 2, "messages": [{"role": "user", "content": "\\ud83d\\ude00"}]}'
        )
        assert (await served.post(CHAT, raw))[0] == 200
