"""`swarm chaos` as a person calls it: real peers are broken, and no token changes."""

import json
import subprocess
import sys

import psutil
import pytest

pytestmark = pytest.mark.live


def chaos(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "swarm", "chaos", *arguments], capture_output=True, text=True, timeout=280
    )


@pytest.mark.timeout(300)
def test_losses_change_no_token_and_leave_nothing_behind():
    before = {process.pid for process in psutil.process_iter()}
    names = ["kill", "freeze", "blackhole-to", "cut", "p2pd-remote"]
    run = chaos(*names, "--seed", "3", "--json")
    results = [json.loads(line) for line in run.stdout.splitlines()]
    assert [result["scenario"] for result in results] == names, run.stderr
    for result in results:
        assert result["tokens_ok"], result
        assert result["recoveries"] >= 1, result
        assert result["left_behind"] == [], result
        assert set(result["stall_s"]) == {"p50", "p95", "max"}
    own = [
        p for p in psutil.process_iter(["cmdline"]) if p.pid not in before and "swarm-chaos-" in str(p.info)
    ]
    assert own == []


def test_the_list_names_every_scenario_with_one_line():
    run = chaos("--list")
    lines = [line.split(maxsplit=1) for line in run.stdout.splitlines()]
    assert {"kill", "freeze", "leave", "rejoin", "client-crash-resume"} <= {name for name, _ in lines}
    assert all(summary.endswith(".") for _, summary in lines)


def test_an_unknown_scenario_is_refused_with_a_hint():
    run = chaos("kil")
    assert run.returncode == 2
    assert "swarm chaos --list" in run.stderr


def test_two_kinds_of_run_at_once_are_refused():
    assert chaos("kill", "--failure-table").returncode == 2
