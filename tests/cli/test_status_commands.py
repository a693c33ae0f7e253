"""`swarm status` and `swarm status-page`: what they refuse, and what they tell over a real swarm."""

import asyncio
import json
import os
import signal
import sys
import urllib.request

import pytest

from swarm.cli import main as cli
from swarm.cli.status import MAX_COLUMNS, coverage_line
from swarm.testing.processes import LocalSwarm, LocalSwarmConfig, SwarmProcess
from swarm.testing.tiny_models import TinyModel, write_tiny_model
from swarm.values import Span

JOIN = "/ip4/127.0.0.1/tcp/9/p2p/12D3KooWDpJ7As7BWAwRMfu1VU2WCqNjvq387JEYKDBj4kx6nXTN"


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("SWARM_HOME", str(tmp_path / "home"))
    return tmp_path


@pytest.mark.parametrize("address", ["8090", "host:", ":8090", "host:99999", "host:x"])
def test_a_wrong_address_to_listen_on_is_refused_before_anything_starts(address, capfd):
    assert cli.run(["status-page", "--join", JOIN, "--listen", address]) == 2
    assert "Write HOST:PORT" in capfd.readouterr().err


def test_an_unknown_model_directory_is_refused_by_name(capfd):
    assert cli.run(["status-page", "--join", JOIN, "--model", "/nowhere"]) == 1
    assert "/nowhere" in capfd.readouterr().err


@pytest.mark.parametrize("command", ["status", "status-page"])
def test_a_swarm_to_join_must_be_named(command, capfd):
    assert cli.run([command]) == 2
    assert "--join" in capfd.readouterr().err


@pytest.mark.live
async def test_page_and_terminal_tell_the_same_of_real_peers(home):
    model = home / "tiny"
    write_tiny_model(model, TinyModel(num_blocks=6))
    environment = {"SWARM_HOME": str(home / "home"), "OMP_NUM_THREADS": "1"}
    config = LocalSwarmConfig(str(model), [Span(0, 3), Span(3, 6)], str(home))
    async with LocalSwarm(config) as swarm:
        page = await SwarmProcess.start(
            "status-page", "--join", swarm.join, "--listen", "127.0.0.1:0", "--model", str(model),
            "--database", str(home / "status.sqlite"), environment=environment,
        )  # fmt: skip
        try:
            url = (await page.wait_for("listening"))["url"]
            shown = await _until_proven(url)
            terminal = await _status(swarm.join, environment, "--prove")
        finally:
            page.send_signal(signal.SIGTERM)
            status = await page.wait()
            await page.stop()
    assert status == 0
    [told] = terminal["models"]
    for field in ("name", "manifest", "num_blocks", "health", "coverage", "weakest", "replicas", "wanted"):
        assert told[field] == shown[field], field
    assert shown["health"] == "degraded"
    assert shown["weakest"] == ["0:6"]


async def _until_proven(url: str) -> dict:
    async with asyncio.timeout(60):
        while True:
            body = await asyncio.to_thread(lambda: urllib.request.urlopen(f"{url}api/v1/state").read())  # noqa: S310
            models = json.loads(body)["models"]
            if models and models[0]["proven_at"] is not None:
                return models[0]
            await asyncio.sleep(0.5)


async def _status(join: str, environment: dict[str, str], *options: str) -> dict:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "swarm", "status", "--join", join, "--json", *options,
        stdout=asyncio.subprocess.PIPE, env=os.environ | environment,
    )  # fmt: skip
    out, _ = await asyncio.wait_for(process.communicate(), 60)
    assert process.returncode == 0
    return json.loads(out)


def test_a_long_model_is_covered_in_one_line_by_its_weakest_blocks():
    coverage = [1] * 500 + [0] + [12] * 523
    line = coverage_line(coverage)
    assert len(line) <= MAX_COLUMNS
    assert line.count("·") == 1
    assert coverage_line([0, 1, 12]) == "·1+"
