"""Readers that go, and readers that come back: nothing runs for nobody, and no token is lost or doubled."""

import asyncio
import gc
import tracemalloc

import aiohttp
import msgspec
import pytest

from tests.gateway.conftest import CHAT, HELLO, MODEL, eventually, read_events, text_of

LONG = {"model": MODEL, "messages": HELLO, "stream": True, "max_tokens": 60, "ignore_eos": True}
# At SLOW_S for each hop and token it outlasts any wait for the peers to be free.
ENDLESS = LONG | {"max_tokens": 900}
SLOW_S = 0.02


def ids_of(text: str) -> list[str]:
    return [line.removeprefix("id: ") for line in text.splitlines() if line.startswith("id: ")]


async def read_some(served, body, events):
    """Read so many events of a stream, then cut the connection; gives their text."""
    async with aiohttp.ClientSession(served.url) as http:
        response = await http.post(CHAT, json=body)
        text = b"".join([await response.content.readuntil(b"\n\n") for _ in range(events)])
        response.close()
    return text.decode()


async def free(served):
    """Wait until no session is open and no reply runs."""
    await eventually(lambda: served.sessions == 0 and served.gateway.gate.running == 0)


async def give_up(served, body):
    """Ask, and leave as soon as a peer computes for it."""
    async with aiohttp.ClientSession(served.url) as http:
        asking = asyncio.create_task(http.post(CHAT, json=body))
        await eventually(lambda: served.sessions > 0)
        asking.cancel()
        await asyncio.wait([asking])


@pytest.mark.parametrize(("events", "times"), [(1, 20), (20, 10)])
async def test_a_reader_that_goes_frees_the_peers(serve, events, times):
    async with serve(cost_s=SLOW_S) as served:
        for _ in range(times):
            await read_some(served, ENDLESS, events)
            await free(served)


async def test_a_reader_that_goes_before_the_first_token_frees_the_peers(serve):
    async with serve(cost_s=SLOW_S) as served:
        for _ in range(5):
            await give_up(served, ENDLESS)
            await free(served)


async def test_a_client_that_gives_up_on_a_whole_answer_frees_the_peers(serve):
    async with serve(cost_s=SLOW_S) as served:
        await give_up(served, ENDLESS | {"stream": False})
        await free(served)


@pytest.mark.parametrize("events", [1, 2, 25])
async def test_a_broken_stream_goes_on_where_it_broke_with_the_same_tokens(serve, events):
    async with serve(cost_s=0.005) as served:
        body = LONG | {"temperature": 1.2, "seed": 9}
        undisturbed = await served.stream(**{k: v for k, v in body.items() if k != "stream"})
        first = await read_some(served, body, events)
        await eventually(lambda: served.sessions == 0)
        last = ids_of(first)[-1]
        async with served.http.get(
            f"/v1/responses/{last.split(':')[0]}", headers={"Last-Event-ID": last}
        ) as response:
            rest = await response.text()
        numbers = [int(each.split(":")[1]) for each in ids_of(first) + ids_of(rest)]
    assert numbers == list(range(len(numbers)))
    assert text_of(read_events(first) + read_events(rest)[:-1]) == text_of(undisturbed)


async def test_the_same_request_sent_again_with_the_last_id_goes_on(serve):
    async with serve(cost_s=0.005) as served:
        first = await read_some(served, LONG, 10)
        async with served.http.post(
            CHAT, json=LONG, headers={"Last-Event-ID": ids_of(first)[-1]}
        ) as response:
            rest = await response.text()
        whole = await served.chat(max_tokens=60, ignore_eos=True)
    events = read_events(first) + read_events(rest)[:-1]
    assert text_of(events) == whole["choices"][0]["message"]["content"]


async def test_a_call_of_a_tool_survives_a_cut_in_its_middle(serve):
    tools = [
        {
            "type": "function",
            "function": {"name": "look", "parameters": {"type": "object", "additionalProperties": False}},
        }
    ]
    async with serve(cost_s=0.01) as served:
        body = LONG | {"tools": tools, "tool_choice": "required", "ignore_eos": False, "max_tokens": 200}
        first = await read_some(served, body, 1)
        reply_id = ids_of(first)[0].split(":")[0]
        await eventually(lambda: served.sessions == 0)
        async with served.http.get(f"/v1/responses/{reply_id}") as response:
            message = (await response.json())["choices"][0]["message"]
    assert message["tool_calls"][0]["function"] == {"name": "look", "arguments": "{}"}


async def test_a_background_reply_runs_to_its_end_without_a_reader(serve):
    async with serve(cost_s=0.005) as served:
        first = await read_some(served, LONG | {"background": True}, 2)
        reply_id = ids_of(first)[0].split(":")[0]
        await eventually(lambda: served.gateway.gate.running == 0)
        async with served.http.get(f"/v1/responses/{reply_id}") as response:
            body = await response.json()
    assert body["usage"]["completion_tokens"] == 60


async def test_a_background_reply_can_be_cancelled(serve):
    async with serve(cost_s=SLOW_S) as served:
        first = await read_some(served, ENDLESS | {"background": True}, 2)
        reply_id = ids_of(first)[0].split(":")[0]
        async with served.http.post(f"/v1/responses/{reply_id}/cancel") as response:
            assert response.status == 200
        await eventually(lambda: served.sessions == 0)
        async with served.http.get(f"/v1/responses/{reply_id}") as response:
            assert response.status == 409


async def test_two_readers_of_one_reply_get_the_same(serve):
    async with serve(cost_s=0.005) as served:
        response = await served.http.post(CHAT, json=LONG)
        start = await response.content.readuntil(b"\n\n")
        reply_id = ids_of(start.decode())[0].split(":")[0]

        async def second():
            async with served.http.get(f"/v1/responses/{reply_id}?stream=true&starting_after=0") as other:
                return await other.text()

        own, other = await asyncio.gather(response.text(), second())
    assert own.strip() == other.strip()


async def test_a_reply_is_forgotten_after_its_time(serve):
    async with serve(kept_s=0.1) as served:
        first = await read_some(served, LONG, 1)
        await free(served)
        await asyncio.sleep(0.2)
        async with served.http.get(f"/v1/responses/{ids_of(first)[0].split(':')[0]}") as response:
            assert response.status == 404


async def test_an_id_that_is_none_is_a_400(serve):
    async with serve() as served:
        status, body, _ = await served.post(CHAT, LONG, **{"Last-Event-ID": "nonsense"})
    assert (status, body["error"]["param"]) == (400, "Last-Event-ID")


async def test_a_peer_lost_in_mid_stream_is_a_pause_and_then_the_rest(serve):
    spans = ((0, 2), (2, 4), (2, 4))
    async with serve(spans, cost_s=0.01) as served:
        body = {k: v for k, v in LONG.items() if k != "stream"}
        undisturbed = text_of(await served.stream(**body))
        response = await served.http.post(CHAT, json=LONG | {"include_swarm": True})
        start = b"".join([await response.content.readuntil(b"\n\n") for _ in range(10)])
        used = next(p for p in served.swarm.peers[1:] if p.peer.handler.open_streams)
        await used.kill()
        text = (start + await response.read()).decode()
    events = read_events(text)
    assert events[-1] == "[DONE]"
    assert text_of(events[:-1]) == undisturbed
    [resume] = events[-2]["swarm"]["choices"][0]["resumes"]
    assert resume["lost_peer"] == used.id
    assert any(event["choices"] == [] and "swarm" in event for event in events[10:-2])  # told at once, too


async def test_a_gateway_that_drains_lets_replies_end_and_takes_no_new_ones(serve):
    async with serve(cost_s=0.005) as served:
        response = await served.http.post(CHAT, json=LONG)
        await response.content.readuntil(b"\n\n")
        draining = asyncio.create_task(served.gateway.drain(60))
        await asyncio.sleep(0)
        status, body, _ = await served.post(CHAT, LONG)
        assert (status, body["error"]["code"]) == (503, "draining")
        async with served.http.get("/readyz") as ready:
            assert ready.status == 503
        assert (await response.text()).rstrip().endswith("[DONE]")
        await draining


async def test_a_drain_that_takes_too_long_ends_the_replies_with_an_error(serve):
    async with serve(cost_s=0.02) as served:
        response = await served.http.post(CHAT, json=LONG | {"max_tokens": 500})
        await response.content.readuntil(b"\n\n")
        await served.gateway.drain(0.2)
        closing = asyncio.create_task(served.gateway.close())
        rest = await response.text()
        await closing
    assert msgspec.json.decode(rest.splitlines()[-2].removeprefix("data: "))["error"]["code"] == "cancelled"


async def test_pings_come_while_nothing_else_does_and_are_no_events(serve, monkeypatch):
    monkeypatch.setattr("swarm.gateway.streams.PING_S", 0.02)
    monkeypatch.setattr("swarm.gateway.routes.HEADERS_WAIT_S", 0.02)
    async with serve(cost_s=0.1) as served:
        response = await served.http.post(CHAT, json=LONG | {"max_tokens": 2})
        text = await response.text()
    assert ": waiting for the swarm\nid: " in text
    assert "swarm\n\n" not in text  # clients would take that for an event without data
    assert read_events(text)[-1] == "[DONE]"


async def test_a_finished_reply_keeps_nothing_of_its_request(serve):
    stop = ["x" * 400_000 + str(each) for each in range(16)]
    async with serve() as served:
        await served.chat(max_tokens=2, stop=["x"])
        tracemalloc.start()
        try:
            for _ in range(4):
                await served.chat(max_tokens=2, stop=stop)
            gc.collect()
            assert tracemalloc.get_traced_memory()[0] < sum(map(len, stop))
        finally:
            tracemalloc.stop()


async def test_a_reply_that_waits_counts_with_its_request(serve):
    body = LONG | {"stop": ["x" * 400_000]}
    async with serve(cost_s=0.01) as served:
        served.gateway.replies.kept_bytes = 1_000_000
        begun = [ids_of(await read_some(served, body, 1))[0].split(":")[0] for _ in range(4)]
        await eventually(lambda: served.gateway.gate.running == 0)
        found = []
        for reply_id in begun:
            async with served.http.post(f"/v1/responses/{reply_id}/cancel") as response:
                found.append(response.status)
    assert found == [404, 404, 200, 200]


async def test_a_cancelled_reply_tells_nothing_after_its_end(serve):
    async with serve(cost_s=0.005) as served:
        first = await read_some(served, LONG | {"background": True, "n": 4}, 5)
        reply_id = ids_of(first)[0].split(":")[0]
        async with served.http.post(f"/v1/responses/{reply_id}/cancel") as response:
            assert response.status == 200
        await eventually(lambda: served.gateway.gate.running == 0)
        async with served.http.get(f"/v1/responses/{reply_id}?stream=true") as response:
            events = read_events(await response.text())
    assert [("error" in event) for event in events] == [False] * (len(events) - 1) + [True]
