"""The swarm on separate hosts: a peer is killed, a cable is pulled, and the reply goes on."""

import asyncio
from contextlib import asynccontextmanager

import pytest
from programs import PORT, online, start_bootstrap, start_peer, start_reply

from swarm.testing.tiny_models import TinyModel, write_tiny_model

pytestmark = [pytest.mark.live, pytest.mark.timeout(240)]

REPLY_S = 90
SPANS = ["0:3", "0:3", "3:6", "3:6"]
TOKENS = 300


@asynccontextmanager
async def swarm_on(hosts, tmp_path):
    """A bootstrap, two peers for each half of a tiny model and room for a client, each on its host."""
    write_tiny_model(tmp_path / "tiny", TinyModel(num_blocks=6, overrides={"max_position_embeddings": 2048}))
    programs = []
    try:
        bootstrap, join = await start_bootstrap(hosts, tmp_path, hosts.add())
        programs.append(bootstrap)
        for span in SPANS:
            number = hosts.add()
            listen = ["--listen", f"{hosts.address(number)}:{PORT}"]
            programs.append(await start_peer(hosts, tmp_path, number, tmp_path / "tiny", join, span, *listen))
        for program in programs[1:]:
            await online(program)
        yield join, programs[1:], hosts.add()
    finally:
        await asyncio.gather(*(program.end() for program in programs))


async def reply(hosts, tmp_path, join, client, disturb=None):
    """What the client's host is told, as text and notes; `disturb` happens when some of it is out."""
    program = await start_reply(hosts, tmp_path, client, tmp_path / "tiny", join, TOKENS)
    try:
        await program.begun_text()
        if disturb is not None:
            await disturb()
        assert await program.ended(REPLY_S) == 0, program.said()
    finally:
        program.kill()
        await program.end()
    return program.text, program.said()


@pytest.mark.parametrize("trouble", ["kill", "cable"])
async def test_a_host_that_is_gone_changes_no_token(hosts, tmp_path, trouble):
    async with swarm_on(hosts, tmp_path) as (join, peers, client):
        expected, _ = await reply(hosts, tmp_path, join, client)
        lost = []

        async def disturb():
            busy = [
                peer
                for peer in peers
                if b"swarm_session_streams 1.0" in await hosts.fetch(peer.number, peer.metrics)
            ]
            assert len(busy) == 2
            lost.append(busy[0].id)
            if trouble == "kill":
                busy[0].kill()
            else:
                hosts.set_link(busy[0].number, "down")

        got, notes = await reply(hosts, tmp_path, join, client, disturb)
        assert got == expected
        assert f"Peer {lost[0][-8:]} was lost" in notes
