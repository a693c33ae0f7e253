"""Calls of tools are found in a stream however it is cut, and what is none stays text."""

import itertools
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swarm.gateway.tools import Call, make_parser, style_of

NAMES = {"get_weather", "add"}
WEATHER = Call("get_weather", '{"city": "Paris"}')
ADD = Call("add", '{"a": 1, "b": 2}')
W = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Paris"}}\n</tool_call>'
A = '<tool_call>\n{"name": "add", "arguments": {"a": 1, "b": 2}}\n</tool_call>'

HERMES = [
    (W, "", [WEATHER]),
    (f"{W}\n{A}", "", [WEATHER, ADD]),
    (f"Let me look.\n{W}", "Let me look.\n", [WEATHER]),
    (f"\n\n{W}\n", "", [WEATHER]),
    (f"{W}\nDone.", "\nDone.", [WEATHER]),
    ("no call < here <tool", "no call < here <tool", []),
    ("   ", "   ", []),
    (W[:-12], W[:-12], []),  # truncated
    (W[:20], W[:20], []),
    ("<tool_call>{broken}</tool_call>", "<tool_call>{broken}</tool_call>", []),
    (W.replace("get_weather", "rm_rf"), W.replace("get_weather", "rm_rf"), []),  # nobody offered it
    (f"<tool_call>{{]</tool_call>{A}", "<tool_call>{]</tool_call>", [ADD]),
    ('<tool_call>{"name": "add", "arguments": "{\\"a\\": 1}"}</tool_call>', "", [Call("add", '{"a": 1}')]),
    (
        '<tool_call>{"name": "add", "arguments": [1]}</tool_call>',
        '<tool_call>{"name": "add", "arguments": [1]}</tool_call>',
        [],
    ),
]
L = '{"name": "get_weather", "parameters": {"city": "Paris"}}'
LLAMA = [
    (L, "", [WEATHER]),
    (f"<|python_tag|>{L}", "", [WEATHER]),
    (f'{L}; {{"name": "add", "parameters": {{"a": 1, "b": 2}}}}', "", [WEATHER, ADD]),
    (L[:-3], L[:-3], []),
    ("Hello {world}", "Hello {world}", []),
    ("{not a call}", "{not a call}", []),
    (f"{L} and more", f"{L} and more", []),
    ("<|py", "<|py", []),
    ("", "", []),
]


def parse(style, pieces):
    parser = make_parser(style, NAMES)
    parts = [part for piece in pieces for part in parser.push(piece)] + parser.finish()
    return "".join(p for p in parts if isinstance(p, str)), [p for p in parts if isinstance(p, Call)]


@pytest.mark.parametrize(
    ("style", "reply", "text", "calls"),
    [("hermes", *case) for case in HERMES] + [("llama", *case) for case in LLAMA],
)
def test_a_reply_is_parsed_whole_and_character_by_character_alike(style, reply, text, calls):
    assert parse(style, [reply]) == (text, calls)
    assert parse(style, list(reply)) == (text, calls)


@given(st.sampled_from([case[0] for case in HERMES]), st.lists(st.integers(0, 160), max_size=8))
def test_where_the_stream_is_cut_makes_no_difference(reply, cuts):
    edges = [0, *sorted(cut for cut in cuts if cut < len(reply)), len(reply)]
    pieces = [reply[start:end] for start, end in itertools.pairwise(edges)]
    assert parse("hermes", pieces) == parse("hermes", [reply])


@given(st.text(alphabet='<>/tool_cal {}":;name', max_size=60))
def test_text_without_calls_comes_out_as_it_went_in(text):
    assert parse("hermes", list(text)) == (text, [])


def test_plain_text_is_not_held_back():
    parser = make_parser("hermes", NAMES)
    assert parser.push("Hello") == ["Hello"]
    assert parser.push(" <b>") == [" <b>"]
    assert parser.push(" <tool") == [" "]
    assert parser.push("ing>") == ["<tooling>"]


@pytest.mark.parametrize(
    ("template", "style"),
    [
        ("{% for tool in tools %}<tool_call>", "hermes"),
        ("{% if tools %}<|python_tag|>", "llama"),
        ("{% for m in messages %}{{ m.content }}", None),
    ],
)
def test_the_template_tells_the_style(template, style):
    assert style_of(template) == style


PARAMETERS = {
    "type": "object",
    "properties": {"city": {"enum": ["Paris", "Rome"]}},
    "required": ["city"],
    "additionalProperties": False,
}
TOOLS = [{"type": "function", "function": {"name": "get_weather", "parameters": PARAMETERS}}]


async def test_a_required_call_is_made_and_streams_as_deltas(serve):
    async with serve() as served:
        settings = {"tools": TOOLS, "tool_choice": "required", "max_tokens": 200}
        events = await served.stream(**settings)
        choice = (await served.chat(**settings))["choices"][0]
    [call] = choice["message"]["tool_calls"]
    assert choice["finish_reason"] == "tool_calls"
    assert choice["message"]["content"] is None
    assert call["function"]["name"] == "get_weather"
    assert json.loads(call["function"]["arguments"])["city"] in ("Paris", "Rome")
    deltas = [event["choices"][0]["delta"].get("tool_calls") for event in events]
    (first,), (second,) = [delta for delta in deltas if delta]
    assert first["function"] == {"name": "get_weather", "arguments": ""}
    assert first["id"].startswith("call_")
    assert second["function"]["arguments"] == call["function"]["arguments"]
    assert events[-1]["choices"][0]["finish_reason"] == "tool_calls"


async def test_a_truncated_call_comes_back_as_text_and_ends_by_length(serve):
    async with serve() as served:
        choice = (await served.chat(tools=TOOLS, tool_choice="required", max_tokens=30))["choices"][0]
    assert choice["finish_reason"] == "length"
    assert choice["message"]["content"].startswith("<tool_call>")
    assert "tool_calls" not in choice["message"]


async def test_a_named_tool_is_the_one_called_and_none_calls_nothing(serve):
    other = {"type": "function", "function": {"name": "add"}}
    async with serve() as served:
        named = {"type": "function", "function": {"name": "get_weather"}}
        body = await served.chat(tools=[other, *TOOLS], tool_choice=named, max_tokens=200)
        free = await served.chat(tools=TOOLS, tool_choice="none", max_tokens=4)
        plain = await served.chat(max_tokens=4)
    assert body["choices"][0]["message"]["tool_calls"][0]["function"]["name"] == "get_weather"
    assert free["choices"] == plain["choices"]


@pytest.mark.parametrize(
    "parameters", [None, {}, {"type": "object"}, {"type": "object", "properties": {}, "required": []}]
)
async def test_a_forced_call_of_a_tool_without_parameters_has_no_arguments(serve, parameters):
    tool = {"type": "function", "function": {"name": "now", "parameters": parameters}}
    async with serve() as served:
        (quote,) = served.swarm.model.tokenizer.encode('"')
        settings = {"tools": [tool], "tool_choice": "required", "max_tokens": 200}
        body = await served.chat(**settings, logit_bias={str(quote): 30})
    [call] = body["choices"][0]["message"]["tool_calls"]
    assert (call["function"]["name"], call["function"]["arguments"]) == ("now", "{}")


async def test_results_of_calls_are_read_from_the_history(serve):
    call = {
        "id": "call_1",
        "type": "function",
        "function": {"name": "get_weather", "arguments": '{"city": "Rome"}'},
    }
    history = [
        {"role": "user", "content": "Weather?"},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "call_1", "content": "sunny"},
    ]
    async with serve() as served:
        with_result = await served.chat(messages=history, tools=TOOLS, max_tokens=4)
        without = await served.chat(messages=history[:1], tools=TOOLS, max_tokens=4)
    assert with_result["usage"]["prompt_tokens"] > without["usage"]["prompt_tokens"] + 30


@pytest.mark.parametrize(
    "form",
    [
        {"response_format": {"type": "json_object"}, "logit_bias": {}},
        {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": PARAMETERS}}},
        {"structured_outputs": {"json": PARAMETERS}},
    ],
)
async def test_a_form_of_json_holds(serve, form):
    async with serve() as served:
        (brace,) = served.swarm.model.tokenizer.encode("}")
        (quote,) = served.swarm.model.tokenizer.encode('"')
        body = await served.chat(**form | {"logit_bias": {str(brace): 50, str(quote): 40}}, max_tokens=400)
    choice = body["choices"][0]
    assert choice["finish_reason"] == "stop"
    assert isinstance(json.loads(choice["message"]["content"]), dict)


async def test_a_regular_expression_and_a_grammar_hold(serve):
    async with serve() as served:
        regex = await served.chat(
            structured_outputs={"regex": "[0-9]{3}-[a-c]+x"}, max_tokens=300, temperature=1
        )
        grammar = await served.chat(structured_outputs={"grammar": 'start: "yes" | "no"'})
    content = regex["choices"][0]["message"]["content"]
    assert content[:3].isdigit()
    assert content[3] == "-"
    assert grammar["choices"][0]["message"]["content"] in ("yes", "no")


FORM = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"enum": ["no call"]}}}


async def test_a_call_may_be_made_where_the_text_has_a_form(serve):
    async with serve() as served:
        (mark,) = served.swarm.model.tokenizer.encode("<")
        settings = {"tools": TOOLS, "response_format": FORM, "max_tokens": 200}
        called = await served.chat(**settings, logit_bias={str(mark): 100})
        text = await served.chat(**settings, logit_bias={str(mark): -100})
        forced = await served.chat(**settings, logit_bias={str(mark): -100}, tool_choice="required")
    assert text["choices"][0]["message"]["content"] == '"no call"'
    for body in (called, forced):
        [call] = body["choices"][0]["message"]["tool_calls"]
        assert json.loads(call["function"]["arguments"])["city"] in ("Paris", "Rome")


async def test_what_parameters_refer_to_is_found(serve):
    city = {"$ref": "#/$defs/City"}
    schema = {**PARAMETERS, "properties": {"city": city}, "$defs": {"City": {"enum": ["Paris"]}}}
    tool = {"type": "function", "function": {"name": "get_weather", "parameters": schema}}
    async with serve() as served:
        body = await served.chat(tools=[tool], tool_choice="required", max_tokens=200)
    [call] = body["choices"][0]["message"]["tool_calls"]
    assert json.loads(call["function"]["arguments"]) == {"city": "Paris"}
