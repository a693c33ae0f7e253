"""What operators see: metrics by known names, logs without content, health, the published document."""

import logging

import msgspec
import pytest

from swarm.gateway.models import FIRST_LOADING_S, LoadingWatch
from swarm.gateway.openapi import document
from swarm.values import Span
from swarm.wire.messages import WIRE_VERSION
from swarm.wire.records import PeerRecord, Snapshot
from tests.gateway.conftest import CHAT, MODEL, eventually

CONTENT = "xyzzy plugh"


async def test_metrics_have_vllms_names(serve):
    async with serve() as served:
        await served.chat(max_tokens=5, ignore_eos=True, n=2)
        async with served.http.get("/metrics") as response:
            text = await response.text()
    prompt_tokens = len(served.swarm.model.tokenizer.encode_chat([{"role": "user", "content": "Hello"}]))
    assert f'swarm_prompt_tokens_total{{model_name="{MODEL}"}} {prompt_tokens}.0' in text
    assert f'swarm_generation_tokens_total{{model_name="{MODEL}"}} 10.0' in text
    assert f'swarm_request_success_total{{finished_reason="length",model_name="{MODEL}"}} 2.0' in text
    assert f'swarm_time_to_first_token_seconds_count{{model_name="{MODEL}"}} 2.0' in text
    assert f'swarm_inter_token_latency_seconds_count{{model_name="{MODEL}"}} 8.0' in text
    assert f'swarm_e2e_request_latency_seconds_count{{model_name="{MODEL}"}} 2.0' in text
    assert "swarm_num_requests_running 0.0" in text
    assert "swarm_num_requests_waiting 0.0" in text


async def test_logs_name_the_request_and_hold_no_content(serve, caplog):
    caplog.set_level(logging.DEBUG, "swarm")
    async with serve() as served:
        messages = [{"role": "user", "content": CONTENT}]
        status, body, headers = await served.post(
            CHAT, {"model": MODEL, "messages": messages, "max_tokens": 9}, **{"X-Request-ID": "mine-1"}
        )
        await served.post(CHAT, {"model": MODEL, "messages": messages, "temperature": 99})
    assert (status, headers["X-Request-ID"]) == (200, "mine-1")
    text = caplog.text
    assert f"mine-1 POST {CHAT} 200" in text
    assert body["id"] in text
    assert CONTENT not in text
    assert body["choices"][0]["message"]["content"] not in text


async def test_a_gateway_is_ready_when_a_model_is_whole(serve):
    async with serve() as served:
        for path in ("/readyz", "/health", "/livez"):
            async with served.http.get(path) as response:
                assert response.status == 200
        async with served.http.get("/v1/models") as response:
            [entry] = (await response.json())["data"]
    assert entry["whole"] is True
    assert entry["max_model_len"] == 1024


def test_the_document_describes_every_field_of_a_request():
    told = document([MODEL])
    schemas = told["components"]["schemas"]
    assert schemas["ChatRequest"]["properties"]["model"]["enum"] == [MODEL]
    assert {"temperature", "tools", "response_format", "structured_outputs"} <= schemas["ChatRequest"][
        "properties"
    ].keys()
    assert set(told["paths"]) >= {CHAT, "/v1/completions", "/v1/models", "/v1/responses/{id}", "/readyz"}
    msgspec.json.encode(told)


async def test_the_page_has_a_strict_policy_and_asks_nobody_else(serve):
    async with serve() as served:
        async with served.http.get("/") as response:
            policy, html = response.headers["Content-Security-Policy"], await response.text()
        scripts = []
        for name in ("chat.js", "markdown.js", "stream.js", "store.js", "chat.css"):
            async with served.http.get(f"/static/{name}") as response:
                assert response.status == 200
                scripts.append(await response.text())
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert "//" not in html.replace("<!doctype", "")
    assert all("innerHTML" not in script for script in scripts)


def record(peer, span, state):
    return PeerRecord(
        peer=peer, model="0" * 64, start=span[0], end=span[1], state=state, dtype="fp32", quantization="none",
        issued_at=0, expires_at=30, sequence=1, decode_tokens_per_s=1, prefill_tokens_per_s=1,
        free_tokens=1, queue_depth=0, wire_version=WIRE_VERSION, software="x",
    )  # fmt: skip


def snapshot(*peers):
    return Snapshot("0" * 64, 4, tuple(record(*peer) for peer in peers), 0.0)


def test_a_cold_model_has_an_estimate_only_when_all_that_is_missing_is_being_loaded():
    watch = LoadingWatch()
    nobody = watch.observe(snapshot(("a", (0, 2), "online")), 0.0)
    assert (nobody.missing, nobody.estimate_s) == ((Span(2, 4),), None)
    half = watch.observe(snapshot(("a", (0, 2), "online"), ("b", (2, 3), "joining")), 0.0)
    assert (half.loading, half.estimate_s) == ((Span(2, 3),), None)
    full = watch.observe(snapshot(("a", (0, 2), "online"), ("b", (2, 4), "joining")), 1.0)
    assert full.estimate_s == FIRST_LOADING_S - 1.0
    assert watch.observe(snapshot(("a", (0, 4), "online")), 2.0).estimate_s is None


def test_the_estimate_learns_how_long_peers_load():
    watch = LoadingWatch()
    for start in (0.0, 100.0, 200.0, 300.0, 400.0, 500.0, 600.0, 700.0):
        watch.observe(snapshot(("b", (0, 4), "joining")), start)
        watch.observe(snapshot(("b", (0, 4), "online")), start + 5.0)
    assert 5.0 < watch.typical_s < 8.0
    assert watch.observe(snapshot(("c", (0, 4), "joining")), 900.0).estimate_s == pytest.approx(
        watch.typical_s
    )


async def test_a_loss_shows_in_the_list_of_models(serve):
    async with serve(spans=((0, 2), (2, 4), (2, 4))) as served:
        model = served.gateway.models[MODEL]
        assert model.coverage.replicas == 1
        await served.swarm.peers[0].leave(0.1)
        await model.refresh()
        await eventually(lambda: not model.coverage.whole)
        assert [str(span) for span in model.coverage.missing] == ["0:2"]
