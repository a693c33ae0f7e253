"""An HTTP server in front of strangers who connect and say nothing, or read nothing."""

import asyncio

import aiohttp
import pytest
from aiohttp import web

from swarm.errors import PortInUse
from swarm.http_server import HttpServer, Listen, hosts_of

SLOW = b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nX-Slow: "
LIMIT = 16


@pytest.fixture
async def server(monkeypatch):
    monkeypatch.setattr("swarm.http_server.most_connections", lambda: LIMIT)
    monkeypatch.setattr("swarm.http_server.SWEEP_EVERY_S", 0.01)
    app, go_on = web.Application(), asyncio.Event()

    async def hello(request):
        return web.Response(text="hello")

    async def wait(request):
        await go_on.wait()
        return web.Response(text="at last")

    async def flood(request):
        response = web.StreamResponse()
        await response.prepare(request)
        while True:
            await response.write(b"x" * 65536)

    app.add_routes([web.get("/", hello), web.get("/wait", wait), web.get("/flood", flood)])
    server = HttpServer(app, Listen("127.0.0.1", 0, "The test"))
    server.url, server.go_on = await server.start(), go_on
    yield server
    go_on.set()
    await server.close()


def port_of(server):
    return int(server.url.rsplit(":", 1)[1])


async def connect(server, said=SLOW):
    reader, writer = await asyncio.open_connection("127.0.0.1", port_of(server))
    writer.write(said)
    return reader, writer


async def is_cut(reader):
    try:
        return await reader.read() == b""
    except ConnectionResetError:
        return True


async def test_slow_heads_take_no_place_from_an_honest_request(server):
    slow = [await connect(server) for _ in range(3 * LIMIT)]
    async with aiohttp.ClientSession() as http:
        for _ in range(5):
            async with http.get(server.url, headers={"Connection": "close"}) as response:
                assert await response.text() == "hello"
    assert server.connections <= LIMIT
    for _, writer in slow:
        writer.close()


async def test_a_head_that_is_not_complete_in_time_is_cut(server, monkeypatch):
    monkeypatch.setattr("swarm.connections.FIRST_HEAD_S", 0.05)
    slow = [await connect(server, said) for said in (SLOW, b"")]
    async with asyncio.timeout(10):
        assert [await is_cut(reader) for reader, _ in slow] == [True, True]
    assert server.connections == 0


async def test_a_request_that_is_answered_slowly_is_not_cut(server, monkeypatch):
    monkeypatch.setattr("swarm.connections.FIRST_HEAD_S", 0.05)
    async with aiohttp.ClientSession() as http:
        asked = asyncio.ensure_future(http.get(f"{server.url}/wait"))
        slow = [await connect(server) for _ in range(3 * LIMIT)]
        async with asyncio.timeout(10):
            for reader, _ in slow:
                assert await is_cut(reader)
        server.go_on.set()
        async with await asked as response:
            assert await response.text() == "at last"


async def test_a_reader_that_takes_nothing_is_cut(server, monkeypatch):
    monkeypatch.setattr("swarm.connections.STALLED_S", 0.1)
    _, writer = await connect(server, b"GET /flood HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
    writer.transport.pause_reading()
    async with asyncio.timeout(10):
        while not server.connections:  # noqa: ASYNC110 - it has no event
            await asyncio.sleep(0.01)
        while server.connections:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    writer.close()


@pytest.mark.parametrize("expected", [b"\xff\xc3", b"bread"])
async def test_what_nobody_can_expect_is_a_417(server, expected):
    head = b"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\nExpect: " + expected + b"\r\n\r\n"
    reader, writer = await connect(server, head)
    assert (await reader.read()).startswith(b"HTTP/1.1 417 ")
    writer.close()


@pytest.mark.parametrize("said", [b"\x16\x03\x01\r\n\r\n", b"GET /\xff HTTP/1.1\r\nHost: x\r\n\r\n"])
async def test_what_is_no_request_is_a_400_and_not_in_the_log(server, said, caplog):
    reader, writer = await connect(server, said)
    assert b" 400 " in await reader.readline()
    writer.close()
    assert caplog.text == ""


async def test_a_port_in_use_is_told_with_the_option_that_changes_it(server):
    other = HttpServer(web.Application(), Listen("127.0.0.1", port_of(server), "The other", "--there"))
    with pytest.raises(PortInUse, match=r"The other cannot listen on 127\.0\.0\.1:\d+: .*--there"):
        await other.start()


@pytest.mark.parametrize(
    ("host", "allowed"),
    [
        ("localhost", True),
        ("127.0.0.1:8000", True),
        ("[::1]:8000", True),
        ("LOCALHOST", True),
        ("status.example.org:443", True),
        ("evil.example", False),
        ("localhost.evil.example", False),
        ("127.0.0.1.evil.example:80", False),
        ("localhost:80:evil.example", False),
        ("", False),
    ],
)
def test_on_this_machine_only_its_own_names_and_named_ones_are_answered(host, allowed):
    assert hosts_of("127.0.0.1", ["Status.example.org"]).allow(host) is allowed


def test_a_server_for_others_answers_under_any_name_unless_some_are_named():
    assert hosts_of("0.0.0.0", ()).allow("anything.example")  # noqa: S104
    assert not hosts_of("0.0.0.0", ["status.example.org"]).allow("anything.example")  # noqa: S104
