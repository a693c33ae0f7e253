"""Peers behind routers that let nobody in: reached through a relay, or their owner is told why not."""

import asyncio
import json
import shutil
from contextlib import asynccontextmanager
from urllib.error import HTTPError

import pytest
from programs import PORT, online, start_bootstrap, start_peer, start_reply, write_endless_model

from swarm.testing.tiny_models import TinyModel, write_tiny_model

pytestmark = [pytest.mark.live, pytest.mark.timeout(240)]

# What was measured is in docs/benchmarks.md; these bounds only tell seconds from minutes.
SOON_S = 30


@pytest.fixture
def model(tmp_path):
    write_tiny_model(tmp_path / "tiny", TinyModel(num_blocks=6))
    return tmp_path / "tiny"


@asynccontextmanager
async def ending():
    """Programs that are ended with the block."""
    programs = []
    try:
        yield programs
    finally:
        await asyncio.gather(*(program.end() for program in programs))


async def test_a_hidden_peer_serves_a_hidden_client_through_a_relay(hosts, tmp_path, model):
    async with ending() as programs:
        bootstrap, join = await start_bootstrap(hosts, tmp_path, hosts.add())
        programs.append(bootstrap)
        behind_two_routers = [hosts.add(hosts.add_router(hosts.add_router())) for _ in range(2)]
        peer = await start_peer(hosts, tmp_path, behind_two_routers[0], model, join, "0:6")
        programs.append(peer)
        await online(peer, SOON_S)
        reach = await peer.event("reach")
        assert (reach["reach"], "/p2p-circuit/" in reach["join"][0]) == ("relayed", True)
        reply = await start_reply(hosts, tmp_path, behind_two_routers[1], model, join, 20)
        programs.append(reply)
        assert await reply.ended(SOON_S) == 0, reply.said()


async def test_links_of_a_megabit_carry_a_long_prompt(hosts, tmp_path):
    if shutil.which("tc") is None:
        pytest.skip("there is no tc command")
    async with ending() as programs:
        bootstrap, join = await start_bootstrap(hosts, tmp_path, hosts.add())
        programs.append(bootstrap)
        model = write_endless_model(tmp_path / "tiny")
        lan = hosts.add_router()
        peer, client = hosts.add(lan), hosts.add()
        for number, device in ((peer, "eth0"), (hosts.routers[lan.namespace], "lan"), (client, "eth0")):
            hosts.limit_rate(number, device, bits_per_s=1_000_000)
        programs.append(await start_peer(hosts, tmp_path, peer, model, join, "0:6"))
        await online(programs[-1])
        prompt = "Once upon a time there was a dog. " * 40
        reply = await start_reply(hosts, tmp_path, client, model, join, 20, prompt=prompt)
        programs.append(reply)
        assert await reply.ended(SOON_S) == 0, reply.said()


async def test_the_owner_of_a_peer_that_nobody_can_dial_is_told(hosts, tmp_path, model):
    async with ending() as programs:
        bootstrap, join = await start_bootstrap(hosts, tmp_path, hosts.add(), "--no-relay-for-others")
        programs.append(bootstrap)
        hidden, open_ = hosts.add(hosts.add_router()), hosts.add()
        peer = await start_peer(hosts, tmp_path, hidden, model, join, "0:6", "--listen", f"0.0.0.0:{PORT}")
        programs.append(peer)
        joined, reach = await peer.event("joined"), await peer.event("reach", SOON_S)
        assert reach["reach"] == "no"
        assert f"Forward TCP port {PORT} to this machine" in reach["why"]
        with pytest.raises(HTTPError) as not_ready:
            await hosts.fetch(hidden, f"{joined['monitor']}/readyz")
        assert reach["why"] in json.loads(not_ready.value.read())["reasons"]
        reply = await start_reply(hosts, tmp_path, open_, model, join, 5, "--patience", "3s")
        programs.append(reply)
        assert await reply.ended(SOON_S) != 0
        assert "cannot be reached" in reply.said()
        assert not any('"online"' in line for _, line in peer.events)


async def test_a_peer_that_can_be_dialled_takes_no_relay(hosts, tmp_path, model):
    async with ending() as programs:
        bootstrap, join = await start_bootstrap(hosts, tmp_path, hosts.add())
        programs.append(bootstrap)
        peer = await start_peer(hosts, tmp_path, hosts.add(), model, join, "0:6")
        programs.append(peer)
        await online(peer)
        reach = await peer.event("reach")
        assert reach["reach"] == "direct"
        assert all(
            "/p2p-circuit/" not in address and "/127.0.0.1/" not in address for address in reach["join"]
        )


async def test_a_forwarded_port_is_announced_without_a_word(hosts, tmp_path, model):
    async with ending() as programs:
        bootstrap, join = await start_bootstrap(hosts, tmp_path, hosts.add())
        programs.append(bootstrap)
        lan = hosts.add_router()
        hidden = hosts.add(lan)
        hosts.forward(lan, PORT, hidden)
        peer = await start_peer(hosts, tmp_path, hidden, model, join, "0:6", "--listen", f"0.0.0.0:{PORT}")
        programs.append(peer)
        await online(peer)
        reach = await peer.event("reach")
        assert reach["reach"] == "direct"
        assert any(address.startswith(f"/ip4/{hosts.outside(lan)}/tcp/{PORT}/") for address in reach["join"])


async def test_a_client_that_knows_the_swarm_does_without_the_bootstrap(hosts, tmp_path, model):
    async with ending() as programs:
        bootstrap, join = await start_bootstrap(hosts, tmp_path, hosts.add())
        programs.append(bootstrap)
        peer = await start_peer(hosts, tmp_path, hosts.add(), model, join, "0:6")
        programs.append(peer)
        await online(peer)
        client = hosts.add()
        for _ in range(2):
            reply = await start_reply(hosts, tmp_path, client, model, join, 5)
            programs.append(reply)
            assert await reply.ended(SOON_S) == 0, reply.said()
            await bootstrap.end()


@pytest.mark.parametrize("versions", [(6,), (4, 6)])
async def test_a_swarm_lives_on_ipv6_alone_or_beside_ipv4(hosts, tmp_path, model, versions):
    async with ending() as programs:
        bootstrap, join = await start_bootstrap(
            hosts, tmp_path, hosts.add(versions=(4, 6)), "--listen", f"[::]:{PORT}"
        )
        programs.append(bootstrap)
        join = join if 4 in versions else f"/ip6/{hosts.address(1, 6)}/tcp/{PORT}/p2p/{bootstrap.id}"
        peer = await start_peer(hosts, tmp_path, hosts.add(versions=versions), model, join, "0:6")
        programs.append(peer)
        await online(peer)
        assert any(
            f"/ip6/{hosts.address(2, 6)}/" in address for address in (await peer.event("reach"))["join"]
        )
        reply = await start_reply(hosts, tmp_path, hosts.add(versions=versions), model, join, 5)
        programs.append(reply)
        assert await reply.ended(SOON_S) == 0, reply.said()
