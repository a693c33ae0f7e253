"""Requests made to take the gateway's time, memory or composure, and what they get instead."""

import asyncio
import threading
import zlib

import msgspec
import pytest

from swarm.errors import ContextOverflow
from swarm.gateway.admission import Admission, AdmissionLimits, Workbench
from swarm.gateway.auth import ANYONE, add_key
from swarm.gateway.grammars import MAX_KEPT
from swarm.gateway.prompts import PIECE_CHARS, Encoder
from swarm.gateway.refusal import Refusal
from swarm.gateway.structured_output import Vocabulary
from swarm.model.tokenizer import Tokenizer, load_tokenizer
from tests.gateway.conftest import CHAT, HELLO, MODEL

COMPLETIONS = "/v1/completions"


def chat(**fields):
    return {"model": MODEL, "messages": HELLO, "max_tokens": 2, **fields}


def said(text):
    return chat(messages=[{"role": "user", "content": text}])


def schema(value):
    return chat(response_format={"type": "json_schema", "json_schema": {"name": "x", "schema": value}})


def nested(depth, leaf):
    for _ in range(depth):
        leaf = {"type": "object", "properties": {"a": leaf}}
    return leaf


@pytest.fixture
def encoded(monkeypatch):
    """The lengths of all texts that are tokenised."""

    lengths, encode = [], Tokenizer.encode

    def counted(self, text, add_special_tokens=True):
        lengths.append(len(text))
        return encode(self, text, add_special_tokens)

    monkeypatch.setattr(Tokenizer, "encode", counted)
    return lengths


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
async def test_a_text_surely_too_long_is_refused_before_it_is_tokenised(serve, encoded, path):
    text = "long " * 1_500_000
    body = said(text) if path == CHAT else {"model": MODEL, "prompt": text}
    async with serve() as served:
        status, answer, _ = await served.post(path, body)
    assert (status, answer["error"]["code"]) == (400, "context_length_exceeded")
    assert answer["error"]["param"] == ("messages" if path == CHAT else "prompt")
    assert encoded == []


async def test_a_long_text_is_tokenised_only_until_it_is_too_long(tiny, encoded):
    encoder = Encoder(load_tokenizer(tiny), context_length=2 * PIECE_CHARS, longest_token_bytes=1000)
    with pytest.raises(ContextOverflow):
        encoder.encode("x" * 30 * PIECE_CHARS)
    assert sum(encoded) <= 3 * PIECE_CHARS
    assert max(encoded) <= PIECE_CHARS


async def test_megabytes_of_spaces_are_refused_though_their_tokens_would_fit(tiny, encoded):
    encoder = Encoder(load_tokenizer(tiny), context_length=100_000, longest_token_bytes=200)
    with pytest.raises(ContextOverflow):
        encoder.encode(" " * 2_000_000)
    assert encoded == []


async def test_a_long_text_that_fits_has_the_same_ids_as_ever(tiny):
    tokenizer, text = load_tokenizer(tiny), "Grüße " * PIECE_CHARS
    assert Encoder(tokenizer, 20 * PIECE_CHARS, 1).encode(text) == tokenizer.encode(text)


@pytest.mark.parametrize("prompt", [["a"] * 100_000, [[1]] * 100_000])
async def test_prompts_are_counted_before_they_are_looked_at(serve, encoded, prompt):
    async with serve() as served:
        status, answer, _ = await served.post(COMPLETIONS, {"model": MODEL, "prompt": prompt})
    assert (status, answer["error"]["param"]) == (400, "prompt")
    assert encoded == []


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"messages": HELLO * 5000}, "messages"),
        ({"messages": [{"role": "user", "content": [{"type": "text", "text": "a"}] * 2000}]},
         "messages[0].content"),
        ({"logit_bias": {str(number): 1 for number in range(5000)}}, "logit_bias"),
    ],
)  # fmt: skip
async def test_more_parts_than_anyone_needs_are_a_400(serve, fields, param):
    async with serve() as served:
        status, answer, _ = await served.post(CHAT, chat(**fields))
    assert (status, answer["error"]["param"]) == (400, param)


@pytest.mark.parametrize(
    "value",
    [
        {"type": "integer", "multipleOf": 1000003},
        {"anyOf": [{"type": "integer", "multipleOf": prime} for prime in (9001, 9007, 9011, 9013)]},
        {"enum": [f"value {number}" for number in range(200_000)]},
    ],
)
async def test_a_form_that_takes_too_much_to_compile_is_a_400(serve, value):
    async with serve() as served:
        asked = asyncio.ensure_future(served.post(CHAT, schema(value)))
        async with served.http.get("/livez") as livez:
            assert livez.status == 200
            assert not asked.done()
        status, answer, _ = await asked
        assert (status, answer["error"]["param"], answer["error"]["code"]) == (
            400, "response_format", "invalid_value",
        )  # fmt: skip
        assert (await served.post(CHAT, schema({"type": "boolean"})))[0] == 200


async def test_a_form_that_was_refused_is_not_tried_again(serve, monkeypatch):
    tried = []

    async def refuse(self, text):
        tried.append(text)
        return "it takes too much"

    monkeypatch.setattr("swarm.gateway.grammars._Trial.problem_of", refuse)
    async with serve() as served:
        assert [(await served.post(CHAT, schema({})))[0] for _ in range(3)] == [400] * 3
    assert len(tried) == 1


async def test_a_grammar_is_compiled_once_for_all_who_ask(serve, monkeypatch):
    compiled, compile_ = [], Vocabulary.compile
    monkeypatch.setattr(
        Vocabulary, "compile", lambda self, text: compiled.append(text) or compile_(self, text)
    )
    async with serve() as served:
        for _ in range(3):
            assert (await served.post(CHAT, schema({"type": "boolean"}) | {"n": 4}))[0] == 200
        assert len(compiled) == 1
        for number in range(MAX_KEPT):
            assert (await served.post(CHAT, chat(structured_outputs={"choice": [f"{number}"]})))[0] == 200
        assert (await served.post(CHAT, schema({"type": "boolean"})))[0] == 200
    assert compiled.count(compiled[0]) == 2


@pytest.mark.parametrize("bound", ["maximum", "minimum", "multipleOf"])
async def test_a_number_beyond_all_types_in_a_schema_is_no_mistake_of_ours(serve, bound):
    async with serve() as served:
        raw = msgspec.json.encode(schema({"type": "integer", bound: 12345})).replace(
            b"12345", b"1" + b"0" * 300
        )
        status, _, _ = await served.post(CHAT, raw)
    assert status in (200, 400)


@pytest.mark.parametrize(
    ("body", "param"),
    [
        (schema(nested(100, {})), "response_format"),
        (chat(structured_outputs={"json": nested(100, {})}), "structured_outputs.json"),
        (chat(chat_template_kwargs={"a": nested(100, {})}), "chat_template_kwargs"),
        (chat(tools=[{"function": {"name": "f", "parameters": nested(100, {})}}]),
         "tools[0].function.parameters"),
    ],
)  # fmt: skip
async def test_json_that_is_nested_too_deeply_is_a_400(serve, body, param):
    async with serve() as served:
        status, answer, _ = await served.post(CHAT, body)
    assert (status, answer["error"]["param"]) == (400, param)


async def test_arguments_of_a_call_that_are_nested_too_deeply_are_a_400(serve):
    call = {"id": "1", "function": {"name": "f", "arguments": "[" * 400 + "]" * 400}}
    messages = [*HELLO, {"role": "assistant", "tool_calls": [call]}]
    async with serve() as served:
        status, answer, _ = await served.post(CHAT, chat(messages=messages))
    assert (status, answer["error"]["param"]) == (400, "messages[1].tool_calls")


@pytest.mark.parametrize("name", ["self", "messages", "tools", "add_generation_prompt"])
async def test_a_name_that_is_ours_in_the_template_is_a_400_that_names_it(serve, name):
    async with serve() as served:
        status, answer, _ = await served.post(CHAT, chat(chat_template_kwargs={name: []}))
    assert (status, answer["error"]["param"]) == (400, f"chat_template_kwargs.{name}")


@pytest.mark.parametrize("secret", [b"Bearer \xff\xfe", b"Bearer gr\xc3\xbc\xc3\x9fe", b"\xff", b"Bearer"])
async def test_a_key_of_any_bytes_is_a_401(serve, tmp_path, secret):
    add_key(tmp_path / "keys.toml", "alice")
    async with serve(keys=tmp_path / "keys.toml") as served:
        reader, writer = await asyncio.open_connection("127.0.0.1", int(served.url.rsplit(":", 1)[1]))
        writer.write(
            b"GET /v1/models HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\nAuthorization: "
            + secret + b"\r\n\r\n"
        )  # fmt: skip
        answer = await reader.read()
        writer.close()
    assert answer.startswith(b"HTTP/1.1 401 ")


@pytest.mark.parametrize("encoding", ["gzip", "deflate"])
async def test_a_body_that_is_not_in_its_encoding_is_a_400(serve, encoding, caplog):
    async with serve() as served:
        status, answer, _ = await served.post(CHAT, b"hello", **{"Content-Encoding": encoding})
    assert (status, answer["error"]["code"]) == (400, "invalid_encoding")
    assert caplog.text == ""


async def test_a_body_that_unpacks_to_more_than_the_limit_is_a_413(serve):
    async with serve() as served:
        bomb = zlib.compress(b" " * 50_000_000, 9)
        status, answer, _ = await served.post(CHAT, bomb, **{"Content-Encoding": "deflate"})
    assert (status, answer["error"]["code"]) == (413, "body_too_large")


async def test_a_body_that_does_not_arrive_is_a_408(serve, monkeypatch):
    monkeypatch.setattr("swarm.gateway.body.READ_WITHIN_S", 0.2)
    async with serve() as served:
        reader, writer = await asyncio.open_connection("127.0.0.1", int(served.url.rsplit(":", 1)[1]))
        writer.write(
            b"POST /v1/chat/completions HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n"
            b"Content-Type: application/json\r\nContent-Length: 100\r\n\r\n{"
        )
        assert (await reader.readline()).startswith(b"HTTP/1.1 408 ")
        writer.close()


async def test_a_request_that_was_given_up_holds_its_place_until_its_work_is_done(serve):
    gate, go_on = Admission(AdmissionLimits(max_running=1, max_waiting=0)), threading.Event()
    bench = Workbench(gate)
    asked = asyncio.ensure_future(bench.run(ANYONE, go_on.wait))
    await asyncio.sleep(0.01)
    asked.cancel()
    await asyncio.sleep(0.01)
    with pytest.raises(Refusal, match="Try again"):
        await bench.run(ANYONE, lambda: None)
    go_on.set()
    async with asyncio.timeout(5):
        while gate.running:  # noqa: ASYNC110 - it has no event
            await asyncio.sleep(0.01)
    assert await bench.run(ANYONE, lambda: 1) == 1
