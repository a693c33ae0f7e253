"""The scenarios of `swarm chaos`, as tests and as a person calls them: peers break, and no token changes."""

import json
import subprocess
import sys

import psutil
import pytest
import pytest_asyncio

from swarm.bench.chaos.runner import ChaosConfig, open_harness, run_scenario
from swarm.bench.chaos.scenario_run import References, ScenarioRun
from swarm.bench.chaos.scenarios import SCENARIOS

pytestmark = [pytest.mark.live, pytest.mark.chaos]
QUICK = {"kill", "freeze", "blackhole-to", "cut", "p2pd-remote", "leave"}  # one of each kind, in seconds


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def references():
    """One swarm of real processes for all scenarios, with the replies that nobody disturbed."""
    async with open_harness(ChaosConfig(seed=3)) as harness:
        yield References(harness)


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.timeout(460)
@pytest.mark.parametrize(
    "scenario",
    [
        pytest.param(each, id=each.name, marks=[] if each.name in QUICK else pytest.mark.slow)
        for each in SCENARIOS
    ],
)
async def test_no_token_changes_and_nothing_is_left_behind(scenario, references):
    result = await run_scenario(scenario, ScenarioRun(references.harness, references))
    assert result.passed, result


def chaos(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "swarm", "chaos", *arguments], capture_output=True, text=True, timeout=280
    )


@pytest.mark.timeout(300)
def test_the_command_tells_what_came_of_a_scenario_and_ends_its_processes():
    before = {process.pid for process in psutil.process_iter()}
    run = chaos("kill", "--seed", "3", "--json")
    [result] = [json.loads(line) for line in run.stdout.splitlines()]
    assert result["scenario"] == "kill", run.stderr
    assert (result["tokens_ok"], result["left_behind"], result["error"]) == (True, [], None)
    assert result["recoveries"] >= 1
    assert set(result["stall_s"]) == {"p50", "p95", "max"}
    own = [
        p for p in psutil.process_iter(["cmdline"]) if p.pid not in before and "swarm-chaos-" in str(p.info)
    ]
    assert own == []


def test_the_list_names_every_scenario_with_one_line():
    run = chaos("--list")
    lines = [line.split(maxsplit=1) for line in run.stdout.splitlines()]
    assert [name for name, _ in lines] == [scenario.name for scenario in SCENARIOS]
    assert all(summary.endswith(".") for _, summary in lines)


def test_an_unknown_scenario_is_refused_with_a_hint():
    run = chaos("kil")
    assert run.returncode == 2
    assert "swarm chaos --list" in run.stderr


def test_two_kinds_of_run_at_once_are_refused():
    assert chaos("kill", "--failure-table").returncode == 2
