"""What cannot be served is refused in OpenAI's error shape, with the field's name, before any stream."""

import re

import pytest

from swarm.errors import PeersFull
from swarm.gateway.refusal import refusal_of
from tests.gateway.conftest import CHAT, HELLO, MODEL, eventually


def chat(**fields):
    return {"model": MODEL, "messages": HELLO, **fields}


IMAGE = [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:"}}]}]

BROKEN = [
    (b"{", None, "invalid_json"),
    (b"[]", None, "invalid_value"),
    (b'{"model": "tiny", "messages": [{"role": "user", "content": "\xff"}]}', None, "invalid_json"),
    ({"messages": HELLO}, "model", "missing_field"),
    ({"model": MODEL}, "messages", "missing_field"),
    (chat(messages=[]), "messages", "invalid_value"),
    (chat(messages=[{"role": "robot", "content": "x"}]), "messages[0].role", "invalid_value"),
    (chat(messages=[{"role": "user"}]), "messages[0].content", "missing_field"),
    (chat(messages=IMAGE), "messages[0].content", "unsupported"),
    (chat(temperature="hot"), "temperature", "invalid_value"),
    (chat(temperature=3), "temperature", "invalid_value"),
    (chat(top_p=0), "top_p", "invalid_value"),
    (chat(n=0), "n", "invalid_value"),
    (chat(max_tokens=0), "max_tokens", "invalid_value"),
    (chat(stop=[""]), "stop[0]", "invalid_value"),
    (chat(stream="yes"), "stream", "invalid_value"),
    (chat(stream_options={"include_usage": True}), "stream_options", "invalid_value"),
    (chat(logit_bias={"x": 1}), "logit_bias", "invalid_value"),
    (chat(logit_bias={"9999": 1}), "logit_bias", "invalid_value"),
    (chat(stop_token_ids=[9999]), "stop_token_ids", "invalid_value"),
    (chat(top_logprobs=2), "top_logprobs", "invalid_value"),
    (chat(seed=2**70), "seed", "invalid_value"),
    (chat(min_tokens=5, max_tokens=2), "min_tokens", "invalid_value"),
    (chat(tool_choice="required"), "tool_choice", "invalid_value"),
    (
        chat(tools=[{"type": "function", "function": {"name": "a b"}}]),
        "tools[0].function.name",
        "invalid_value",
    ),
    (chat(response_format={"type": "xml"}), "response_format.type", "invalid_value"),
    (
        chat(
            response_format={
                "type": "json_schema",
                "json_schema": {"name": "x", "schema": {"type": "nonsense"}},
            }
        ),
        "response_format",
        "invalid_value",
    ),
    (chat(structured_outputs={"regex": "(a"}), "structured_outputs.regex", "invalid_value"),
    (chat(structured_outputs={"regex": "a", "choice": ["b"]}), "structured_outputs", "invalid_value"),
    (chat(max_tokens=100000), "messages", "context_length_exceeded"),
    (
        chat(messages=[{"role": "user", "content": "x" * 2000}], stream=True),
        "messages",
        "context_length_exceeded",
    ),
]


@pytest.mark.parametrize(("body", "param", "code"), BROKEN, ids=lambda value: None)
async def test_a_broken_body_is_a_400_that_names_the_field(serve, body, param, code):
    async with serve() as served:
        status, answer, headers = await served.post(CHAT, body)
    assert (status, answer["error"]["param"], answer["error"]["code"]) == (400, param, code)
    assert answer["error"]["type"] == "invalid_request_error"
    assert answer["error"]["message"]
    assert re.fullmatch(r"req_[0-9a-f]{24}", headers["X-Request-ID"])


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"model": MODEL, "prompt": []}, "prompt"),
        ({"model": MODEL, "prompt": ["a", 1]}, "prompt"),
        ({"model": MODEL, "prompt": [[]]}, "prompt"),
        ({"model": MODEL, "prompt": [999999]}, "prompt"),
        ({"model": MODEL, "prompt": "a", "suffix": "b"}, "suffix"),
        ({"model": MODEL, "prompt": "a", "best_of": 3}, "best_of"),
        ({"model": MODEL, "prompt": ["a"] * 30, "n": 10}, "prompt"),
    ],
)
async def test_a_broken_completion_is_a_400_that_names_the_field(serve, body, param):
    async with serve() as served:
        status, answer, _ = await served.post("/v1/completions", body)
    assert (status, answer["error"]["param"]) == (400, param)


async def test_a_model_that_is_not_served_is_a_404_with_those_that_are(serve):
    async with serve() as served:
        status, answer, _ = await served.post(CHAT, chat(model="gpt-4o"))
    assert (status, answer["error"]["code"]) == (404, "model_not_found")
    assert MODEL in answer["error"]["message"]


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/v2/nothing", 404),
        ("GET", CHAT, 405),
        ("DELETE", "/v1/models", 405),
        ("GET", "/v1/models/x", 404),
    ],
)
async def test_every_other_address_answers_in_the_error_shape(serve, method, path, status):
    async with serve() as served, served.http.request(method, path) as response:
        body = await response.json()
    assert response.status == status
    assert set(body["error"]) == {"message", "type", "param", "code"}


async def test_a_body_over_the_limit_is_a_413(serve):
    async with serve(max_body_bytes=2000) as served:
        status, answer, _ = await served.post(CHAT, chat(user="x" * 3000))
    assert (status, answer["error"]["code"]) == (413, "body_too_large")


async def test_a_body_that_says_it_is_text_is_a_415(serve):
    async with serve() as served, served.http.post(CHAT, data="{}") as response:
        assert response.status == 415


async def test_a_page_of_a_stranger_that_resolves_to_this_machine_is_refused(serve):
    async with serve() as served, served.http.get("/v1/models", headers={"Host": "evil.example"}) as response:
        assert response.status == 403


async def test_a_model_with_a_hole_is_a_503_with_how_far_it_is(serve):
    async with serve(spans=((0, 2),)) as served:
        status, answer, headers = await served.post(CHAT, chat(stream=True))
        async with served.http.get("/readyz") as response:
            ready = await response.json()
    assert (status, answer["error"]["code"]) == (503, "no_route")
    assert answer["error"]["detail"] == {
        "online_blocks": 2,
        "num_blocks": 4,
        "missing": ["2:4"],
        "loading": [],
        "estimate_s": None,
    }
    assert int(headers["Retry-After"]) > 0
    assert (response.status, ready["ready"]) == (503, False)
    assert "2:4" in ready["reasons"][0]


async def test_a_loss_that_cannot_be_made_good_ends_a_stream_with_an_error(serve):
    async with serve(cost_s=0.01) as served:
        response = await served.http.post(CHAT, json=chat(stream=True, max_tokens=300, ignore_eos=True))
        await response.content.readuntil(b"\n\n")
        await served.swarm.peers[1].kill()
        rest = await response.text()
    assert '"code":"no_route"' in rest.splitlines()[-2]
    assert "[DONE]" not in rest


async def test_a_reply_over_its_deadline_is_a_504(serve):
    async with serve(cost_s=0.02, deadline_s=0.3) as served:
        status, answer, _ = await served.post(CHAT, chat(max_tokens=900, ignore_eos=True))
        await eventually(lambda: served.sessions == 0)
    assert (status, answer["error"]["code"]) == (504, "deadline_exceeded")


def test_peers_without_room_are_told_as_overload_with_a_time_to_try_again():
    refusal = refusal_of(PeersFull("The peers that host blocks 0:6 have no room", "Try again in a while."))
    assert (refusal.status, refusal.reason) == (503, "overloaded")
    assert "Retry-After" in refusal.headers
