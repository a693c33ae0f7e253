"""The swarm on separate hosts: a peer is killed, a cable is pulled, and the reply goes on."""

import asyncio
import contextlib
import json
import os
import signal
import sys
from contextlib import asynccontextmanager

import pytest

from swarm.testing.tiny_models import TinyModel, write_tiny_model

pytestmark = [pytest.mark.live, pytest.mark.timeout(240)]

PORT = 31337
START_S, REPLY_S = 60, 90
SPANS = ["0:3", "0:3", "3:6", "3:6"]
TOKENS = 300


class Program:
    """A swarm process on one host."""

    def __init__(self, process, number):
        self.process = process
        self.number = number
        self.id = self.metrics = ""  # of a peer, once it has joined

    @classmethod
    async def start(cls, hosts, number, home, *arguments):
        process = await asyncio.create_subprocess_exec(
            *hosts.command(number, sys.executable, "-m", "swarm", *arguments),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env={**os.environ, "SWARM_HOME": str(home / str(number)), "OMP_NUM_THREADS": "1"},
            start_new_session=True,
        )
        return cls(process, number)

    async def event(self, name):
        async with asyncio.timeout(START_S):
            while line := await self.process.stdout.readline():
                entry = json.loads(line)
                if entry.get("event") == name:
                    return entry
        pytest.fail(f"host {self.number} ended before {name}: {(await self.process.stderr.read()).decode()}")

    def kill(self):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)

    async def end(self):
        if self.process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                self.process.send_signal(signal.SIGTERM)
            try:
                await asyncio.wait_for(self.process.wait(), 20)
            except TimeoutError:
                self.kill()
                await self.process.wait()


@asynccontextmanager
async def swarm_on(hosts, tmp_path):
    """A bootstrap, two peers for each half of a tiny model and room for a client, each on its host."""
    write_tiny_model(tmp_path / "tiny", TinyModel(num_blocks=6, overrides={"max_position_embeddings": 2048}))
    programs = []
    try:
        number = hosts.add()
        listen = ["--listen", f"{hosts.address(number)}:{PORT}", "--json", "--until-eof"]
        programs.append(await Program.start(hosts, number, tmp_path, "bootstrap", *listen))
        join = (await programs[0].event("joined"))["join"][0]
        for span in SPANS:
            number = hosts.add()
            listen = ["--listen", f"{hosts.address(number)}:{PORT}", "--json", "--until-eof"]
            options = [
                "--blocks",
                span,
                "--dtype",
                "fp32",
                "--threads",
                "1",
                "--memory",
                "1GiB",
                "--drain",
                "2s",
            ]
            programs.append(
                await Program.start(
                    hosts, number, tmp_path, "peer", str(tmp_path / "tiny"), "--join", join, *options, *listen
                )
            )
        for program in programs[1:]:
            joined = await program.event("joined")
            program.id, program.metrics = joined["peer"], f"{joined['monitor']}/metrics"
            await program.event("online")
        yield join, programs[1:], hosts.add()
    finally:
        await asyncio.gather(*(program.end() for program in programs))


async def reply(hosts, tmp_path, join, client, disturb=None):
    """What the client's host is told, as text and notes; `disturb` happens when some of it is out."""
    arguments = ["generate", str(tmp_path / "tiny"), "Once upon a time", "--raw", "--temperature", "0.9"]
    arguments += ["--seed", "7", "--max-tokens", str(TOKENS), "--join", join, "--spares", "off"]
    program = await Program.start(hosts, client, tmp_path, *arguments)
    try:
        async with asyncio.timeout(REPLY_S):
            text = await program.process.stdout.readexactly(20)
            if disturb is not None:
                await disturb()
            rest, notes = await program.process.communicate()
    finally:
        program.kill()
        await program.process.wait()
    assert program.process.returncode == 0, notes.decode()
    return text + rest, notes.decode()


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
