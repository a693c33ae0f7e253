"""A model of the hub that nobody but its manifest's maker has whole: each process fetches what it needs."""

import asyncio
import json
import os
import signal
import sys

import pytest
from hub_server import files_cut_by_block, serving

from swarm.model.weights import build_manifest
from swarm.security.identity import new_identity
from swarm.security.manifest import read_manifest
from swarm.testing.processes import SwarmProcess
from swarm.testing.tiny_models import TinyModel, write_tiny_model

NOBODY = f"/ip4/127.0.0.1/tcp/9/p2p/{new_identity().peer_id}"
pytestmark = [pytest.mark.live, pytest.mark.timeout(240)]


@pytest.fixture
def hub(tmp_path):
    """A hub with a model of six blocks, each in a file of its own, and its manifest beside."""
    write_tiny_model(tmp_path / "model", TinyModel(num_blocks=6))
    (tmp_path / "manifest.json").write_text(build_manifest(tmp_path / "model").to_json())
    with serving(files_cut_by_block(tmp_path / "model")) as server:
        yield server


@pytest.fixture
def machine(hub, tmp_path):
    """The environment of a machine of its own."""

    def make(name: str) -> dict[str, str]:
        return {
            "HF_ENDPOINT": hub.url,
            "HF_HOME": str(tmp_path / name / "hf"),
            "HF_HUB_OFFLINE": "0",
            "SWARM_HOME": str(tmp_path / name / "swarm"),
            "OMP_NUM_THREADS": "1",
        }

    return make


async def run(*arguments: str, environment: dict[str, str]) -> tuple[int | None, str, str]:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "swarm", *arguments, env=os.environ | environment, stdout=-1, stderr=-1
    )
    stdout, stderr = await process.communicate()
    return process.returncode, stdout.decode(), stderr.decode()


async def test_peers_and_clients_fetch_only_what_they_need(hub, machine, tmp_path, module_mark):
    first_model = ["org/tiny", "--manifest", str(tmp_path / "manifest.json")]
    model = ["org/tiny", "--manifest", read_manifest(tmp_path / "manifest.json").digest]  # the swarm has it

    def fetched() -> list[int]:
        numbers = [int(name.split("-")[1]) for name in hub.weights_asked]
        hub.asked.clear()
        return numbers

    def environment(name: str) -> dict[str, str]:
        return module_mark.environment | machine(name)

    first = await SwarmProcess.start("peer", *first_model, "--blocks", "0:4", environment=environment("one"))
    try:
        joined = await first.wait_for("joined")
        await first.wait_for("online")
        assert fetched() == [2, 3, 4, 5]
        join = ["--join", joined["join"][0]]
        _, shown, _ = await run("status", *join, environment=environment("three"))
        assert model[-1] in shown
        memory = ["--memory", "210KiB"]  # for two blocks: it takes those that nobody hosts
        second = await SwarmProcess.start("peer", *model, *memory, *join, environment=environment("two"))
        try:
            assert (await second.wait_for("online"))["blocks"] == "4:6"
            assert fetched() == [6, 7]
            asked = ["generate", *model, *join, "Hello", "--max-tokens", "3", "--json"]
            code, stdout, stderr = await run(*asked, environment=environment("three"))
            assert code == 0, stderr
            assert {hop["blocks"] for hop in json.loads(stdout)["hops"]} == {"0:4", "4:6"}
            assert fetched() == [1, 8]
        finally:
            await second.stop()
    finally:
        await first.stop()


@pytest.mark.parametrize("command", ["peer", "gateway"])
async def test_service_that_is_stopped_while_it_fetches_ends_at_once(
    command, hub, machine, tmp_path, module_mark
):
    hub.manners.rate_bytes_per_s = 10
    options = {"peer": ["--blocks", "0:6"], "gateway": ["--listen", "127.0.0.1:0", "--join", NOBODY]}[command]
    process = await SwarmProcess.start(
        command,
        "org/tiny",
        "--manifest",
        str(tmp_path / "manifest.json"),
        *options,
        environment=module_mark.environment | machine("one"),
    )
    try:
        assert await asyncio.to_thread(hub.sends_weights.wait, 60)
        process.send_signal(signal.SIGINT)
        assert await process.wait(timeout_s=20) == 0
    finally:
        await process.stop()
