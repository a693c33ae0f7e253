"""What holds for every dialect alike: readers that go and come back, limits, keys, errors in mid-stream."""

import asyncio
from dataclasses import dataclass
from typing import Any

import aiohttp
import msgspec
import pytest

from swarm.gateway.admission import AdmissionLimits
from swarm.gateway.auth import add_key
from tests.gateway.conftest import HELLO, MODEL, eventually, read_events


@dataclass(frozen=True)
class Spoken:
    """How one dialect is asked, and where its text and its errors are."""

    path: str
    body: dict[str, Any]
    limit: str = "max_tokens"

    def asked(self, tokens: int, **fields: Any) -> dict[str, Any]:
        return {"model": MODEL, **self.body, self.limit: tokens, "ignore_eos": True, **fields}

    def text(self, events: list[Any]) -> str:
        return "".join(self._delta(event) for event in events if event != "[DONE]")

    def _delta(self, event: Any) -> str:
        if self.path == "/v1/responses":
            return event["delta"] if event["type"] == "response.output_text.delta" else ""
        if self.path == "/v1/messages":
            return event["delta"]["text"] if event["type"] == "content_block_delta" else ""
        choice = event["choices"][0]
        return choice["text"] if "text" in choice else choice["delta"].get("content") or ""

    def failure(self, event: Any) -> str:
        """What an event that ends a broken stream says."""
        if self.path == "/v1/responses":
            assert (event["type"], event["response"]["status"]) == ("response.failed", "cancelled")
            return event["response"]["error"]["message"]
        if self.path == "/v1/messages":
            assert event["type"] == "error"
        return event["error"]["message"]


DIALECTS = [
    Spoken("/v1/chat/completions", {"messages": HELLO}),
    Spoken("/v1/completions", {"prompt": "Hello"}),
    Spoken("/v1/responses", {"input": "Hello"}, "max_output_tokens"),
    Spoken("/v1/messages", {"messages": HELLO}),
]
PING = {"/v1/messages": "event: ping"}
SLOW_S = 0.02

every_dialect = pytest.mark.parametrize("spoken", DIALECTS, ids=lambda spoken: spoken.path.split("/")[2])


async def read_some(served, spoken, body, events):
    """Read so many events, then cut the connection; gives their text and the id of the last."""
    async with aiohttp.ClientSession(served.url) as http:
        response = await http.post(spoken.path, json=body)
        text = b"".join([await response.content.readuntil(b"\n\n") for _ in range(events)]).decode()
        response.close()
    return text, [line for line in text.splitlines() if line.startswith("id: ")][-1].removeprefix("id: ")


@every_dialect
async def test_a_broken_stream_goes_on_where_it_broke(serve, spoken):
    async with serve(cost_s=0.005) as served:
        body = spoken.asked(30, stream=True, temperature=1.2, seed=9)
        async with served.http.post(spoken.path, json=body) as response:
            undisturbed = read_events(await response.text())
        for event_count in (1, 12):
            first, last = await read_some(served, spoken, body, event_count)
            await eventually(lambda: served.sessions == 0)
            async with served.http.post(spoken.path, json=body, headers={"Last-Event-ID": last}) as response:
                rest = await response.text()
            assert spoken.text(read_events(first + rest)) == spoken.text(undisturbed)
            assert len(read_events(first + rest)) == len(undisturbed)


@every_dialect
async def test_a_reader_that_goes_frees_the_peers_and_a_cancelled_reply_ends_in_its_own_error(serve, spoken):
    async with serve(cost_s=SLOW_S) as served:
        endless = spoken.asked(900, stream=True)
        await read_some(served, spoken, endless, 6)
        await eventually(lambda: served.sessions == 0 and served.gateway.gate.running == 0)
        response = await served.http.post(spoken.path, json=endless)
        start = (await response.content.readuntil(b"\n\n")).decode()
        reply_id = start.partition("id: ")[2].partition(":")[0]
        async with served.http.post(f"/v1/responses/{reply_id}/cancel") as cancelled:
            assert cancelled.status == 200
        events = read_events(start + await response.text())
    assert "The reply was cancelled" in spoken.failure(events[-1])


@every_dialect
async def test_what_comes_while_nothing_else_does_is_no_part_of_a_reply(serve, spoken, monkeypatch):
    monkeypatch.setattr("swarm.gateway.streams.PING_S", 0.02)
    monkeypatch.setattr("swarm.gateway.routes.HEADERS_WAIT_S", 0.02)
    async with serve(cost_s=0.1) as served:
        whole = spoken.asked(2, stream=True)
        async with served.http.post(spoken.path, json=whole) as response:
            text = await response.text()
    assert PING.get(spoken.path, ": waiting for the swarm") in text
    assert text.count("id: ") == len([e for e in read_events(text) if e != {"type": "ping"}])


@every_dialect
async def test_keys_limits_metrics_and_provenance_are_the_same(serve, spoken, tmp_path):
    keys = tmp_path / "keys.toml"
    secret = add_key(keys, "alice")
    keys.write_text(keys.read_text().rstrip() + "\nrequests_per_minute = 2\n")
    async with serve(keys=keys) as served:
        body = spoken.asked(2, include_swarm=True)
        assert (await served.post(spoken.path, body))[0] == 401
        status, answer, _ = await served.post(spoken.path, body, **{"X-API-Key": secret})
        assert status == 200, answer
        assert len(answer["swarm"]["choices"][0]["hops"]) == 2
        bearer = {"Authorization": f"Bearer {secret}"}
        assert (await served.post(spoken.path, body, **bearer))[0] == 200
        status, answer, headers = await served.post(spoken.path, body, **bearer)
        assert (status, "Retry-After" in headers) == (429, True)
        assert "2 requests a minute" in answer["error"]["message"]
        async with served.http.get("/metrics", headers=bearer) as response:
            assert 'swarm_generation_tokens_total{model_name="tiny"} 4.0' in await response.text()


@every_dialect
async def test_a_model_that_is_not_whole_and_fields_nobody_knows_are_told(serve, spoken):
    async with serve(spans=((0, 2),)) as served:
        status, answer, headers = await served.post(spoken.path, spoken.asked(2, frobnicate=1))
    assert (status, "Retry-After" in headers) == (503, True)
    assert headers["X-Ignored-Fields"] == "frobnicate"
    assert "blocks" in answer["error"]["message"]


async def test_a_preflight_lets_pages_of_an_origin_use_every_dialect(serve):
    async with serve(origins=frozenset({"https://app.example"})) as served:
        for spoken in DIALECTS:
            asking = {
                "Origin": "https://app.example",
                "Access-Control-Request-Method": "POST",
                "Access-Control-Request-Headers": "x-api-key, anthropic-version",
            }
            async with served.http.options(spoken.path, headers=asking) as response:
                assert response.headers["Access-Control-Allow-Headers"] == "x-api-key, anthropic-version"


async def test_a_wait_in_the_queue_is_the_same_in_every_dialect(serve):
    async with serve(cost_s=SLOW_S, limits=AdmissionLimits(max_running=1, max_waiting=1)) as served:
        first, second = (
            asyncio.create_task(served.post(DIALECTS[0].path, DIALECTS[0].asked(20))) for _ in range(2)
        )
        await eventually(lambda: served.gateway.gate.waiting == 1)
        for spoken in DIALECTS:
            status, answer, headers = await served.post(spoken.path, spoken.asked(2))
            assert (status, "Retry-After" in headers) == (503, True)
            assert "1 requests wait before this one" in msgspec.json.encode(answer).decode()
        await asyncio.gather(first, second)
