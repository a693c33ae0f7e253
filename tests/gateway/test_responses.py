"""OpenAI's Responses: items in and out, typed events, and conversations that go on from a response."""

import json

import pytest

from swarm.gateway.auth import ANYONE
from tests.gateway.conftest import HELLO, MODEL, read_events
from tests.gateway.test_tools import PARAMETERS

PATH = "/v1/responses"
TOOL = {"type": "function", "name": "get_weather", "parameters": PARAMETERS}
CALL = {"type": "function_call", "call_id": "call_1", "name": "get_weather", "arguments": '{"city": "Rome"}'}
RESULT = {"type": "function_call_output", "call_id": "call_1", "output": "sunny"}


async def ask(served, **fields):
    status, body, _ = await served.post(PATH, {"model": MODEL, "input": "Hello", **fields})
    assert status == 200, body
    return body


async def stream(served, **fields):
    body = {"model": MODEL, "input": "Hello", "stream": True, **fields}
    async with served.http.post(PATH, json=body) as response:
        assert response.status == 200, await response.text()
        text = await response.text()
    events = read_events(text)
    assert [line for line in text.splitlines() if line.startswith("event: ")] == [
        f"event: {event['type']}" for event in events
    ]
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    return events


def text_of(response):
    return "".join(
        part["text"] for item in response["output"] if item["type"] == "message" for part in item["content"]
    )


async def test_a_response_says_what_the_same_chat_says(serve):
    async with serve() as served:
        chat = await served.chat(max_tokens=12)
        as_text = await ask(served, max_output_tokens=12)
        as_items = await ask(served, max_output_tokens=12, input=HELLO)
        parts = [{"role": "user", "content": [{"type": "input_text", "text": "Hello"}]}]
        as_parts = await ask(served, max_output_tokens=12, input=parts)
    said = chat["choices"][0]["message"]["content"]
    assert [text_of(each) for each in (as_text, as_items, as_parts)] == [said] * 3
    assert as_text["status"] == "incomplete"
    assert as_text["incomplete_details"] == {"reason": "max_output_tokens"}
    usage = as_text["usage"]
    assert (usage["input_tokens"], usage["output_tokens"]) == (chat["usage"]["prompt_tokens"], 12)


async def test_instructions_are_a_system_message(serve):
    async with serve() as served:
        system = {"role": "system", "content": "Be brief."}
        chat = await served.chat(messages=[system, *HELLO], max_tokens=8)
        body = await ask(served, instructions="Be brief.", max_output_tokens=8)
    assert text_of(body) == chat["choices"][0]["message"]["content"]
    assert body["instructions"] == "Be brief."


async def test_a_stream_tells_the_events_of_a_message_in_order(serve):
    async with serve() as served:
        whole = await ask(served, max_output_tokens=10, temperature=0)
        events = await stream(served, max_output_tokens=10, temperature=0)
    types = [event["type"].removeprefix("response.") for event in events]
    deltas = [event for event in events if event["type"] == "response.output_text.delta"]
    assert types[:4] == ["created", "in_progress", "output_item.added", "content_part.added"]
    assert types[4:-4] == ["output_text.delta"] * len(deltas)
    assert types[-4:] == ["output_text.done", "content_part.done", "output_item.done", "incomplete"]
    assert "".join(event["delta"] for event in deltas) == events[-4]["text"] == text_of(whole)
    assert events[2]["item"]["content"] == []
    last = events[-1]["response"]
    assert text_of(last) == text_of(whole)
    assert last["usage"] == whole["usage"]
    assert events[-2]["item"] == last["output"][0]


async def test_a_forced_call_is_an_item_and_streams_as_one(serve):
    async with serve() as served:
        settings = {"tools": [TOOL], "tool_choice": "required", "max_output_tokens": 200, "temperature": 0}
        whole = await ask(served, **settings)
        events = await stream(served, **settings)
    [call] = whole["output"]
    assert (call["type"], call["name"], call["status"]) == ("function_call", "get_weather", "completed")
    assert json.loads(call["arguments"])["city"] in ("Paris", "Rome")
    told = {event["type"].removeprefix("response."): event for event in events}
    assert told["output_item.added"]["item"]["arguments"] == ""
    assert told["function_call_arguments.delta"]["delta"] == call["arguments"]
    assert told["function_call_arguments.done"]["arguments"] == call["arguments"]
    assert told["output_item.done"]["item"] == told["completed"]["response"]["output"][0]
    assert whole["status"] == "completed"


@pytest.mark.parametrize(
    "choice",
    [
        {"type": "function", "name": "get_weather"},
        {"type": "allowed_tools", "mode": "required", "tools": [{"type": "function", "name": "get_weather"}]},
    ],
)
async def test_a_choice_of_tools_is_kept_to(serve, choice):
    other = {"type": "function", "name": "add"}
    async with serve() as served:
        body = await ask(served, tools=[other, TOOL], tool_choice=choice, max_output_tokens=200)
    assert body["output"][0]["name"] == "get_weather"
    assert body["tool_choice"]["type"] == choice["type"]


async def test_calls_and_results_are_read_and_reasoning_is_passed_over(serve):
    reasoning = {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "x"}
    said = {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "I look."}]}
    chat_call = {
        "id": "call_1",
        "type": "function",
        "function": {"name": "get_weather", "arguments": '{"city": "Rome"}'},
    }
    messages = [
        *HELLO,
        {"role": "assistant", "content": "I look.", "tool_calls": [chat_call]},
        {"role": "tool", "tool_call_id": "call_1", "content": "sunny"},
    ]
    async with serve() as served:
        items = await ask(served, input=[*HELLO, reasoning, said, CALL, RESULT], max_output_tokens=8)
        chat = await served.chat(messages=messages, max_tokens=8)
    assert text_of(items) == chat["choices"][0]["message"]["content"]
    assert items["usage"]["input_tokens"] == chat["usage"]["prompt_tokens"]


async def test_a_schema_holds_and_is_told_again(serve):
    form = {"type": "json_schema", "name": "city", "schema": PARAMETERS, "strict": True}
    async with serve() as served:
        body = await ask(served, text={"format": form}, max_output_tokens=200)
    assert json.loads(text_of(body))["city"] in ("Paris", "Rome")
    assert body["text"]["format"]["name"] == "city"


async def test_a_response_goes_on_from_an_earlier_one(serve):
    async with serve() as served:
        first = await ask(served, max_output_tokens=8, instructions="Be brief.")
        second = await ask(served, input="And then?", previous_response_id=first["id"], max_output_tokens=8)
        told = [
            *HELLO,
            {"role": "assistant", "content": text_of(first)},
            {"role": "user", "content": "And then?"},
        ]
        chat = await served.chat(messages=told, max_tokens=8)
        third = await ask(served, input="So?", previous_response_id=second["id"], max_output_tokens=8)
    assert text_of(second) == chat["choices"][0]["message"]["content"]
    assert second["previous_response_id"] == first["id"]
    assert third["usage"]["input_tokens"] > second["usage"]["input_tokens"]


async def test_a_result_answers_the_call_of_an_earlier_response(serve):
    async with serve() as served:
        settings = {"tools": [TOOL], "max_output_tokens": 200}
        first = await ask(served, **settings, tool_choice="required")
        result = {**RESULT, "call_id": first["output"][0]["call_id"]}
        second = await ask(served, **settings, input=[result], previous_response_id=first["id"])
        lone = await ask(served, **settings, input=[result])
    assert second["usage"]["input_tokens"] > lone["usage"]["input_tokens"] + 30


async def test_what_is_not_stored_or_deleted_or_anothers_cannot_be_gone_on_from(serve):
    async with serve() as served:
        unstored = await ask(served, store=False, max_output_tokens=2)
        deleted = await ask(served, max_output_tokens=2)
        async with served.http.delete(f"{PATH}/{deleted['id']}") as response:
            assert await response.json() == {"id": deleted["id"], "object": "response", "deleted": True}
        async with served.http.delete(f"{PATH}/{deleted['id']}") as response:
            assert response.status == 404
        kept = await ask(served, max_output_tokens=2)
        conversations = served.gateway.conversations
        conversations.add(kept["id"], "somebody else", conversations.get(kept["id"], ANYONE.name))
        for each in (unstored, deleted, kept):
            body = {"model": MODEL, "input": "x", "previous_response_id": each["id"]}
            status, answer, _ = await served.post(PATH, body)
            assert (status, answer["error"]["code"]) == (400, "previous_response_not_found")


async def test_conversations_are_kept_within_bounds(serve):
    async with serve() as served:
        served.gateway.conversations.kept_bytes_per_key = 25_000
        ids = [(await ask(served, input=f"{n} " * 250, max_output_tokens=2))["id"] for n in range(9)]
        found = []
        for each in ids:
            body = {
                "model": MODEL,
                "input": "x",
                "previous_response_id": each,
                "max_output_tokens": 1,
                "store": False,
            }
            found.append((await served.post(PATH, body))[0] == 200)
    assert found == [False] * (9 - sum(found)) + [True] * sum(found)
    assert 1 <= sum(found) < 6


async def test_a_background_response_is_answered_at_once_and_then_polled(serve):
    async with serve(cost_s=0.01) as served:
        body = await ask(served, background=True, max_output_tokens=40, ignore_eos=True)
        assert body["status"] == "in_progress"
        states = []
        while "incomplete" not in states:
            async with served.http.get(f"{PATH}/{body['id']}") as response:
                states.append((await response.json())["status"])
    assert set(states) == {"in_progress", "incomplete"}


async def test_a_background_response_that_is_cancelled_says_so(serve):
    async with serve(cost_s=0.02) as served:
        body = await ask(served, background=True, max_output_tokens=900, ignore_eos=True)
        async with served.http.post(f"{PATH}/{body['id']}/cancel") as response:
            assert (await response.json())["status"] == "cancelled"
        async with served.http.get(f"{PATH}/{body['id']}") as response:
            assert (await response.json())["status"] == "cancelled"


REFUSED = [
    ({"tools": [{"type": "web_search"}]}, "tools[0].type", "web_search"),
    ({"tools": [{"type": "mcp", "server_url": "x"}]}, "tools[0].type", "mcp"),
    ({"tool_choice": {"type": "file_search"}}, "tool_choice", "file_search"),
    ({"conversation": "conv_1"}, "conversation", "conversation"),
    ({"prompt": {"id": "pmpt_1"}}, "prompt", "prompt"),
    ({"input": [{"type": "item_reference", "id": "msg_1"}]}, "input[0].type", "item_reference"),
    (
        {"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "x"}]}]},
        "input[0].content[0]",
        "input_image",
    ),
    ({"input": [{"role": "user"}]}, "input[0].content", "missing"),
    ({"input": [{"type": "function_call", "name": "f"}]}, "input[0].call_id", "missing"),
    ({"max_output_tokens": 10**6}, "input", "context"),
    ({"text": {"format": {"type": "json_schema", "schema": {"type": "x"}}}}, "text.format", ""),
]


async def test_what_cannot_be_done_is_refused_by_the_bodys_own_names(serve):
    async with serve() as served:
        for fields, param, word in REFUSED:
            status, body, _ = await served.post(PATH, {"model": MODEL, "input": "Hello", **fields})
            assert (status, body["error"]["param"]) == (400, param), body
            assert word in body["error"]["message"]


async def test_log_probabilities_come_when_they_are_included(serve):
    async with serve() as served:
        settings = {"include": ["message.output_text.logprobs"], "top_logprobs": 2, "max_output_tokens": 4}
        body = await ask(served, **settings)
        events = await stream(served, **settings)
        plain = await ask(served, max_output_tokens=4)
    logprobs = body["output"][0]["content"][0]["logprobs"]
    assert len(logprobs) == 4
    assert [len(entry["top_logprobs"]) for entry in logprobs] == [2] * 4
    streamed = [
        entry for event in events if event["type"].endswith("text.delta") for entry in event["logprobs"]
    ]
    assert streamed == logprobs
    assert plain["output"][0]["content"][0]["logprobs"] == []
