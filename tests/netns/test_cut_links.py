"""Links that go away in mid-reply and come back, elsewhere too: the reply goes on.

The bounds tell seconds from the minutes that it would take libp2p; what was measured is in
docs/benchmarks.md, by `measure.py` beside this file.
"""

import asyncio
from contextlib import asynccontextmanager

import pytest
from programs import online, start_bootstrap, start_peer, start_reply, write_endless_model

pytestmark = [pytest.mark.live, pytest.mark.timeout(240)]

AWAY_S, BACK_WITHIN_S = 8, 15


@asynccontextmanager
async def replying(hosts, home, *, is_hidden=False, bootstraps=1, patience_s=120):
    """A bootstrap or two, a peer on the internet or behind a router, a client that is in mid-reply."""
    model = write_endless_model(home / "tiny")
    programs, joins = [], []
    try:
        for _ in range(bootstraps):
            others = [word for address in joins for word in ("--join", address)]
            program, join = await start_bootstrap(hosts, home, hosts.add(), *others)
            programs.append(program)
            joins.append(join)
        peer_host = hosts.add(hosts.add_router() if is_hidden else None)
        programs.append(await start_peer(hosts, home, peer_host, model, joins[0], "0:6"))
        await online(programs[-1])
        client_host = hosts.add(hosts.add_router())
        patience = ["--patience", f"{patience_s}s"]
        reply = await start_reply(hosts, home, client_host, model, joins, 15000, *patience)
        programs.append(reply)
        await reply.begun_text(100)
        yield reply, programs[:bootstraps], peer_host, client_host
    finally:
        await asyncio.gather(*(program.end() for program in programs))


async def goes_on(reply):
    """How long after now the reply goes on."""
    back = reply.now
    await reply.wait_for(lambda: reply.goes_on_after(back) is not None, "more text", BACK_WITHIN_S)
    return reply.goes_on_after(back) - back


@pytest.mark.parametrize("is_hidden", [False, True])
@pytest.mark.parametrize("where", ["the same address", "another address", "another network"])
async def test_a_reply_goes_on_when_its_peer_is_back(hosts, tmp_path, is_hidden, where):
    async with replying(hosts, tmp_path, is_hidden=is_hidden) as (reply, _, peer, _):
        hosts.set_link(peer, "down")
        await asyncio.sleep(AWAY_S)
        assert reply.events[-1][0] < reply.now - AWAY_S / 2
        if where == "the same address":
            hosts.set_link(peer, "up")
        elif where == "another address":
            hosts.plug(peer, hosts.places[peer][0], peer + 100)
        else:
            hosts.plug(peer, hosts.add_router(), peer)
        await goes_on(reply)


@pytest.mark.parametrize("where", ["the same address", "another network"])
async def test_a_reply_goes_on_when_its_client_is_back(hosts, tmp_path, where):
    async with replying(hosts, tmp_path) as (reply, _, _, client):
        hosts.set_link(client, "down")
        await asyncio.sleep(AWAY_S)
        if where == "the same address":
            hosts.set_link(client, "up")
        else:
            hosts.plug(client, hosts.add_router(), client)
        await goes_on(reply)


async def test_a_cut_that_the_machine_does_not_see_is_found_out(hosts, tmp_path):
    async with replying(hosts, tmp_path, is_hidden=True) as (reply, _, peer, _):
        router = hosts.routers[hosts.places[peer][0].namespace]
        hosts.set_link(router, "down")
        await asyncio.sleep(2 * AWAY_S)
        hosts.set_link(router, "up")
        await goes_on(reply)


async def test_one_way_that_is_lost_for_a_while_costs_little_more(hosts, tmp_path):
    async with replying(hosts, tmp_path) as (reply, _, peer, client):
        hosts.close_way(client, peer)
        await asyncio.sleep(AWAY_S)
        hosts.open_way(client)
        await goes_on(reply)


async def test_a_relay_that_dies_in_mid_reply_is_replaced(hosts, tmp_path):
    async with replying(hosts, tmp_path, is_hidden=True, bootstraps=2) as (reply, relays, _, _):
        before = [hosts.traffic_bytes(relay.number)[0] for relay in relays]
        await asyncio.sleep(1)
        carried = [
            hosts.traffic_bytes(relay.number)[0] - was for relay, was in zip(relays, before, strict=True)
        ]
        relays[carried.index(max(carried))].kill()
        await asyncio.sleep(0.5)  # what was under way has arrived
        await goes_on(reply)
