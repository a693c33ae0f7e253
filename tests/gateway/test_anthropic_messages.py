"""Anthropic's Messages: blocks in and out, typed events, its own errors, and counted tokens."""

import itertools
import json

from tests.gateway.conftest import HELLO, MODEL, read_events
from tests.gateway.test_tools import PARAMETERS, TOOLS

PATH = "/v1/messages"
TOOL = {"name": "get_weather", "input_schema": PARAMETERS}
USE = {"type": "tool_use", "id": "toolu_1", "name": "get_weather", "input": {"city": "Rome"}}
RESULT = {"type": "tool_result", "tool_use_id": "toolu_1", "content": [{"type": "text", "text": "sunny"}]}


def body_of(**fields):
    return {"model": MODEL, "messages": HELLO, "max_tokens": 12, **fields}


async def ask(served, **fields):
    status, body, _ = await served.post(PATH, body_of(**fields))
    assert status == 200, body
    return body


async def stream(served, **fields):
    async with served.http.post(PATH, json=body_of(stream=True, **fields)) as response:
        assert response.status == 200, await response.text()
        text = await response.text()
    events = read_events(text)
    assert [line for line in text.splitlines() if line.startswith("event: ")] == [
        f"event: {event['type']}" for event in events
    ]
    return events


async def test_a_message_says_what_the_same_chat_says(serve):
    parts = [{"type": "text", "text": "Hello", "cache_control": {"type": "ephemeral"}}]
    thinking = {"type": "enabled", "budget_tokens": 1024}
    async with serve(strict=True) as served:
        chat = await served.chat(max_tokens=12)
        plain = await ask(served)
        in_blocks = await ask(served, messages=[{"role": "user", "content": parts}], thinking=thinking)
        system = await served.chat(
            messages=[{"role": "system", "content": "Be brief."}, *HELLO], max_tokens=12
        )
        by_text = await ask(served, system="Be brief.")
        by_blocks = await ask(served, system=[{"type": "text", "text": "Be brief."}])
    said = chat["choices"][0]["message"]["content"]
    assert plain["content"] == [{"type": "text", "text": said, "citations": None}]
    assert in_blocks["content"] == plain["content"]
    assert by_text["content"][0]["text"] == by_blocks["content"][0]["text"]
    assert by_text["content"][0]["text"] == system["choices"][0]["message"]["content"]
    assert (plain["stop_reason"], plain["stop_sequence"], plain["role"]) == ("max_tokens", None, "assistant")
    assert plain["usage"]["input_tokens"] == chat["usage"]["prompt_tokens"]
    assert plain["usage"]["output_tokens"] == 12


async def test_a_stream_tells_the_events_of_a_text_in_order(serve):
    async with serve() as served:
        whole = await ask(served, temperature=0)
        events = await stream(served, temperature=0)
    types = [kind for kind, _ in itertools.groupby(event["type"] for event in events)]
    assert types == [
        "message_start", "content_block_start", "content_block_delta",
        "content_block_stop", "message_delta", "message_stop",
    ]  # fmt: skip
    deltas = [event["delta"] for event in events if event["type"] == "content_block_delta"]
    assert {delta["type"] for delta in deltas} == {"text_delta"}
    assert "".join(delta["text"] for delta in deltas) == whole["content"][0]["text"]
    assert events[0]["message"]["content"] == []
    assert events[0]["message"]["usage"]["input_tokens"] == whole["usage"]["input_tokens"]
    assert events[-2]["delta"] == {"stop_reason": "max_tokens", "stop_sequence": None}
    assert events[-2]["usage"] == whole["usage"]


async def test_a_stop_sequence_is_named(serve):
    async with serve() as served:
        said = (await ask(served, temperature=0))["content"][0]["text"]
        stop = said[5:7]
        body = await ask(served, temperature=0, stop_sequences=["never said", stop])
        events = await stream(served, temperature=0, stop_sequences=[stop])
    assert (body["stop_reason"], body["stop_sequence"]) == ("stop_sequence", stop)
    assert body["content"][0]["text"] == said[: said.index(stop)]
    assert events[-2]["delta"] == {"stop_reason": "stop_sequence", "stop_sequence": stop}


async def test_a_forced_use_of_a_tool_is_a_block_and_streams_as_one(serve):
    async with serve() as served:
        settings = {"tools": [TOOL], "tool_choice": {"type": "any"}, "max_tokens": 200, "temperature": 0}
        whole = await ask(served, **settings)
        events = await stream(served, **settings)
        named = await ask(
            served,
            tools=[{"name": "add", "input_schema": {"type": "object"}}, TOOL],
            tool_choice={"type": "tool", "name": "get_weather"},
            max_tokens=200,
        )
        free = await ask(served, tools=[TOOL], tool_choice={"type": "none"})
        plain = await ask(served)
    [use] = whole["content"]
    assert (use["type"], use["name"], whole["stop_reason"]) == ("tool_use", "get_weather", "tool_use")
    assert use["input"]["city"] in ("Paris", "Rome")
    assert use["id"].startswith("toolu_")
    told = {event["type"]: event for event in events}
    assert told["content_block_start"]["content_block"]["input"] == {}
    assert json.loads(told["content_block_delta"]["delta"]["partial_json"]) == use["input"]
    assert told["message_delta"]["delta"]["stop_reason"] == "tool_use"
    assert named["content"][0]["name"] == "get_weather"
    assert free["content"] == plain["content"]


async def test_uses_and_results_are_read_and_thinking_is_passed_over(serve):
    thinking = {"type": "thinking", "thinking": "hm", "signature": "x"}
    history = [
        *HELLO,
        {"role": "assistant", "content": [thinking, {"type": "text", "text": "I look."}, USE]},
        {"role": "user", "content": [RESULT, {"type": "text", "text": "Well?"}]},
    ]
    arguments = '{"city": "Rome"}'
    call = {"id": "toolu_1", "type": "function", "function": {"name": "get_weather", "arguments": arguments}}
    messages = [
        *HELLO,
        {"role": "assistant", "content": "I look.", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "toolu_1", "content": "sunny"},
        {"role": "user", "content": "Well?"},
    ]
    async with serve() as served:
        body = await ask(served, messages=history, tools=[TOOL])
        chat = await served.chat(messages=messages, tools=TOOLS, max_tokens=12)
        _, counted, _ = await served.post(
            f"{PATH}/count_tokens", {"model": MODEL, "messages": history, "tools": [TOOL]}
        )
    assert body["usage"]["input_tokens"] == chat["usage"]["prompt_tokens"] == counted["input_tokens"]
    assert body["content"][0]["text"] == chat["choices"][0]["message"]["content"]


async def test_a_reply_goes_on_with_the_assistants_last_words(serve):
    last = {"role": "assistant", "content": "The answer is"}
    async with serve() as served:
        body = await ask(served, messages=[*HELLO, last])
        chat = await served.chat(
            messages=[*HELLO, last], max_tokens=12, continue_final_message=True, add_generation_prompt=False
        )
    assert body["content"][0]["text"] == chat["choices"][0]["message"]["content"]


async def test_a_schema_holds(serve):
    form = {"format": {"type": "json_schema", "schema": PARAMETERS}}
    async with serve() as served:
        body = await ask(served, output_config=form, max_tokens=200)
    assert json.loads(body["content"][0]["text"])["city"] in ("Paris", "Rome")


IMAGE = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": ""}}
REFUSED = [
    ({"messages": [{"role": "user", "content": [IMAGE]}]}, 400, "invalid_request_error", "not 'image'"),
    ({"messages": [{"role": "user", "content": [{**RESULT, "content": [IMAGE]}]}]}, 400,
     "invalid_request_error", "not 'image'"),
    ({"tools": [{"type": "web_search_20250305", "name": "web_search"}]}, 400,
     "invalid_request_error", "web_search_20250305"),
    ({"mcp_servers": [{"url": "x"}]}, 400, "invalid_request_error", "mcp_servers"),
    ({"max_tokens": None}, 400, "invalid_request_error", "max_tokens"),
    ({"max_tokens": 10**6}, 400, "invalid_request_error", "context"),
    ({"model": "claude"}, 404, "not_found_error", "There is no model"),
]  # fmt: skip


async def test_refusals_have_anthropics_shape(serve):
    async with serve() as served:
        for fields, status, kind, word in REFUSED:
            got, body, headers = await served.post(PATH, body_of(**fields))
            assert (got, body["type"], body["error"]["type"]) == (status, "error", kind), body
            assert word in body["error"]["message"]
            assert body["request_id"] == headers["X-Request-ID"]
