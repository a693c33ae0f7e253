"""The HTTP interface: what each path gives, cached, compressed, bounded and safe."""

import asyncio
import gzip
import json
import resource
from xml.etree import ElementTree

import pytest
from aiohttp import web
from aiohttp.test_utils import TestClient, TestServer
from status_values import DIGEST, NOW, proof, record, shown, state

from swarm.http_server import hosts_of
from swarm.status.incidents import Incident
from swarm.status.metrics import StatusMetrics
from swarm.status.page import Site
from swarm.status.routes import StatusRoutes
from swarm.status.snapshot import SwarmState
from swarm.status.view import HistoryView, ResponseCache, View

FAILING = proof({"b": shown("failed", reason="answers wrongly")})
PAST = HistoryView(
    incidents=(Incident(4, "peer", DIGEST, "tiny", "b", "Peer b <went> silent", NOW - 60, NOW),)
)


@pytest.fixture
def responses():
    return ResponseCache(View(state(record("a", 0, 6), record("b", 0, 6), shown_by=FAILING), PAST))


@pytest.fixture
async def client(responses):
    app = StatusRoutes(responses, Site(), StatusMetrics()).application()
    async with TestClient(TestServer(app), auto_decompress=False) as opened:
        yield opened


async def read(client, path, **headers):
    answer = await client.get(path, headers={"Accept-Encoding": "identity"} | headers)
    return answer, await answer.read()


async def read_json(client, path):
    answer, body = await read(client, path)
    assert answer.status == 200, body
    assert answer.content_type == "application/json"
    return json.loads(body)


@pytest.mark.parametrize("path", ["/", "/api/v1/state", "/events", "/metrics", "/nowhere"])
async def test_a_name_of_a_stranger_that_leads_to_this_machine_is_refused(responses, path):
    app = StatusRoutes(responses, Site(), StatusMetrics(), hosts_of("127.0.0.1", ())).application()
    async with TestClient(TestServer(app)) as client:
        answer = await client.get(path, headers={"Host": "evil.example"})
        assert (answer.status, (await answer.json())["error"]["code"]) == (403, "forbidden")
        assert (await client.get("/livez")).status == 200


async def test_the_state_is_told_without_peers(client):
    told = await read_json(client, "/api/v1/state")
    [model] = told["models"]
    assert (told["health"], told["headline"]) == ("degraded", "tiny is working, with weak spots")
    assert (model["coverage"], model["peers_online"]) == ([1] * 6, 2)
    assert "peers" not in model


@pytest.mark.parametrize("name", ["tiny", DIGEST])
async def test_a_model_is_found_by_name_and_by_digest_with_its_peers(client, name):
    told = await read_json(client, f"/api/v1/models/{name}")
    assert {peer["peer"]: peer["condition"] for peer in told["peers"]} == {"a": "unproven", "b": "failing"}
    assert [
        peer["peer"] for peer in (await read_json(client, f"/api/v1/models/{name}?offset=1"))["peers"]
    ] == ["b"]


async def test_a_peer_is_told_with_what_it_hosts(client):
    told = await read_json(client, "/api/v1/peers/b")
    assert [(each["model"], each["blocks"], each["reason"]) for each in told["hosting"]] == [
        ("tiny", "0:6", "answers wrongly")
    ]


async def test_history_and_incidents_are_told(client):
    assert (await read_json(client, "/api/v1/history?range=7d"))["range"] == "7d"
    [incident] = (await read_json(client, "/api/v1/incidents"))["incidents"]
    assert (incident["began_at"], incident["ended_at"]) == (NOW - 60, NOW)


async def test_the_feed_is_atom_and_escapes_what_peers_said(client):
    answer, body = await read(client, "/incidents.atom")
    feed = ElementTree.fromstring(body)  # noqa: S314 - our own
    names = {"a": "http://www.w3.org/2005/Atom"}
    assert answer.content_type == "application/atom+xml"
    assert feed.findtext("a:entry/a:title", namespaces=names) == "Over: Peer b <went> silent"
    assert feed.findtext("a:updated", namespaces=names) == "2027-01-15T08:00:00Z"


async def test_every_path_of_the_description_answers(client):
    described = await read_json(client, "/openapi.json")
    paths = set(described["paths"]) - {"/events"}
    for path in paths:
        answer, body = await read(client, path.replace("{name}", "tiny").replace("{id}", "a"))
        assert answer.status == 200, (path, body)


async def test_the_description_names_exactly_the_fields_that_are_given(client):
    schemas = (await read_json(client, "/openapi.json"))["components"]["schemas"]
    model = await read_json(client, "/api/v1/models/tiny")
    assert set(schemas["Model"]["properties"]) == set(model)
    assert set(schemas["Peer"]["properties"]) == set(model["peers"][0])
    assert set(schemas["State"]["properties"]) == set(await read_json(client, "/api/v1/state"))


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/api/v1/models/nope", 404),
        ("/api/v1/peers/nope", 404),
        ("/api/v1/history?model=nope", 404),
        ("/models/nope/peers", 404),
        ("/models/tiny/peers?page=99", 404),
        ("/static/../app.py", 404),
        ("/static/openapi.json", 404),
        ("/nothing", 404),
        ("/api/v1/history?range=1000y", 400),
        ("/api/v1/models/tiny?limit=-1", 400),
        ("/models/tiny/peers?page=%D9%A3", 400),
        ("/?range=%3Cscript%3E", 400),
    ],
)
async def test_what_is_not_there_or_not_understood_is_an_error_in_the_same_shape(client, path, status):
    answer, body = await read(client, path)
    assert answer.status == status
    assert set(json.loads(body)["error"]) == {"code", "message"}
    assert b"script" not in body


async def test_other_methods_are_refused(client):
    answer = await client.post("/api/v1/state", json={})
    assert answer.status == 405
    assert "GET" in answer.headers["Allow"]


async def test_every_answer_carries_the_strict_headers(client):
    for path in ("/", "/api/v1/state", "/static/status.js", "/badge.svg", "/nothing", "/metrics"):
        answer, _ = await read(client, path)
        policy = answer.headers["Content-Security-Policy"]
        assert "default-src 'none'" in policy
        assert "unsafe" not in policy
        assert answer.headers["X-Content-Type-Options"] == "nosniff"


async def test_an_answer_that_has_not_changed_is_not_sent_again(client, responses):
    answer, _ = await read(client, "/")
    again, body = await read(client, "/", **{"If-None-Match": answer.headers["ETag"]})
    assert (again.status, body) == (304, b"")
    await responses.show(View(state(record("a", 0, 5)), HistoryView()))
    fresh, _ = await read(client, "/", **{"If-None-Match": answer.headers["ETag"]})
    assert fresh.status == 200


async def test_answers_are_compressed_for_those_who_can_read_it(client):
    answer, body = await read(client, "/", **{"Accept-Encoding": "gzip, br"})
    assert answer.headers["Content-Encoding"] == "gzip"
    _, plain = await read(client, "/")
    assert gzip.decompress(body) == plain


async def test_the_badge_tells_the_state_of_one_model_or_of_all(client):
    assert b"weak spots" in (await read(client, "/badge.svg"))[1]
    assert b"weak spots" in (await read(client, "/badge.svg?model=tiny"))[1]
    assert b"unknown model" in (await read(client, "/badge.svg?model=nope"))[1]


async def test_readers_are_told_of_every_change(client, responses):
    answer = await client.get("/events")
    assert answer.content_type == "text/event-stream"
    await answer.content.readuntil(b"\n\n")
    await responses.show(View(state(record("a", 0, 5)), HistoryView()))
    event = await asyncio.wait_for(answer.content.readuntil(b"\n\n"), 60)
    assert event == b'event: state\nid: 1\ndata: {"health":"broken"}\n\n'
    answer.close()


async def test_ready_means_that_the_directory_answers(client, responses):
    assert (await read(client, "/readyz"))[0].status == 200
    await responses.show(View(SwarmState(NOW, None), HistoryView()))
    answer, body = await read(client, "/readyz")
    assert (answer.status, json.loads(body)["reasons"]) == (503, ["the directory has not been read yet"])
    assert (await read(client, "/livez"))[0].status == 200


async def test_ten_thousand_peers_are_answered_in_a_megabyte(responses, client):
    peers = [record(f"12D3KooW{n:044}", n % 76, n % 76 + 4, public_name=f"peer {n}") for n in range(10_000)]
    await responses.show(View(state(*peers, num_blocks=80), HistoryView()))
    for path in ("/", "/api/v1/state", "/api/v1/models/tiny", "/models/tiny/peers?page=2"):
        answer, body = await read(client, path)
        assert answer.status == 200
        assert len(body) < 1_000_000


async def test_load_is_answered_from_memory_that_does_not_grow(responses):
    app = StatusRoutes(responses, Site(), StatusMetrics()).application()
    async with TestServer(app) as server:
        runner = server.runner
        assert isinstance(runner, web.BaseRunner)
        request = b"GET / HTTP/1.1\r\nHost: x\r\nAccept-Encoding: gzip\r\n\r\n"
        await _hammer(server.port, request, 200)
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        await _hammer(server.port, request, 2000)
        after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert after - before < 8 * 1024  # KiB


async def _hammer(port: int, request: bytes, count: int) -> None:
    async def one_reader(share: int) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        for _ in range(share):
            writer.write(request)
            head = await reader.readuntil(b"\r\n\r\n")
            length = next(line for line in head.split(b"\r\n") if line.lower().startswith(b"content-length"))
            await reader.readexactly(int(length.split(b":")[1]))
        writer.close()

    await asyncio.gather(*(one_reader(count // 20) for _ in range(20)))
