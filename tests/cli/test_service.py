"""Services: unit files that systemd itself takes, and what a program tells whoever supervises it."""

import os
import plistlib
import shutil
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from swarm.cli import main as cli
from swarm.cli.units import Service, launchd_job, systemd_unit

ODD = ['a "quoted" word', "50% of $HOME", "back\\slash", "two\nlines", "", "ünïcode"]


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("SWARM_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.delenv("DBUS_SESSION_BUS_ADDRESS", raising=False)
    monkeypatch.delenv("XDG_RUNTIME_DIR", raising=False)


def service(*arguments: str, for_system: bool = False) -> Service:
    command = [sys.executable, "-m", "swarm", "peer", *arguments]
    return Service("swarm-peer", command, {"SWARM_HOME": "/a b"}, 30.0, nice=10, for_system=for_system)


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd is not installed")
@pytest.mark.parametrize("for_system", [False, True])
def test_systemd_finds_no_fault_with_the_unit(for_system, tmp_path):
    unit = tmp_path / "swarm-peer.service"
    unit.write_text(systemd_unit(service(*ODD, for_system=for_system)))
    checked = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", *([] if for_system else ["--user"]), str(unit)],
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, "XDG_RUNTIME_DIR": str(tmp_path), "HOME": str(tmp_path)},
    )
    complaints = [line for line in checked.stderr.splitlines() if "swarm-peer" in line]
    assert complaints == []


def test_a_unit_says_each_word_of_the_command_as_it_was_given():
    [line] = [line for line in systemd_unit(service(*ODD)).splitlines() if line.startswith("ExecStart=")]
    words = line.removeprefix("ExecStart=")[1:-1].split('" "')
    meant = [
        word.replace("%%", "%").replace("$$", "$").encode().decode("unicode_escape").encode("latin1").decode()
        for word in words
    ]
    assert meant[4:] == ODD


def test_a_job_of_launchd_has_the_command_and_comes_back_after_a_failure():
    job = plistlib.loads(launchd_job(service(*ODD), Path("swarm.log")))
    assert job["ProgramArguments"][4:] == ODD
    assert (job["KeepAlive"], job["ExitTimeOut"]) == ({"SuccessfulExit": False}, 40)


def test_the_time_to_leave_follows_the_drain_of_the_service(capfd):
    options = ["--name", "attic", "--drain", "2m"]
    assert cli.run(["service", "install", "--print", "peer", "smollm2-135m", *options]) == 0
    printed = capfd.readouterr().out
    assert "TimeoutStopSec=130" in printed
    assert '"peer" "smollm2-135m" "--name" "attic" "--drain" "2m"' in printed


def test_arguments_that_the_service_does_not_take_are_refused_before_it_is_installed(capfd, tmp_path):
    assert cli.run(["service", "install", "peer", "smollm2-135m", "--jion", "x"]) == 2
    assert "--join" in capfd.readouterr().err
    assert not list(tmp_path.rglob("*.service"))


@pytest.mark.skipif(sys.platform != "linux", reason="launchd is always there")
def test_a_machine_where_no_systemd_answers_is_told_and_nothing_is_written(capfd, tmp_path):
    assert cli.run(["service", "install", "bootstrap"]) == 78
    assert "start the command itself" in capfd.readouterr().err or shutil.which("systemctl") is None
    assert not list(tmp_path.rglob("*.service"))


def test_a_service_that_is_not_installed_is_refused_by_name(capfd):
    assert cli.run(["service", "status", "attic"]) == 2
    assert "There is no service swarm-attic" in capfd.readouterr().err


@pytest.mark.live
@pytest.mark.parametrize("abstract", [False, True])
def test_a_service_tells_its_supervisor_that_it_is_ready_alive_and_leaving(tmp_path, abstract):
    name = f"swarm-test-{os.getpid()}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as supervisor:
        supervisor.bind(f"\0{name}" if abstract else str(tmp_path / "notify"))
        supervisor.settimeout(60)
        variables = {"NOTIFY_SOCKET": f"@{name}" if abstract else str(tmp_path / "notify")}
        command = [sys.executable, "-m", "swarm", "bootstrap", "--listen", "127.0.0.1:0"]
        with subprocess.Popen(
            command,
            env={**os.environ, **variables, "WATCHDOG_USEC": "200000"},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        ) as process:
            told = [supervisor.recv(100)]
            while told[-1] != b"READY=1":
                told.append(supervisor.recv(100))
            assert supervisor.recv(100) == b"WATCHDOG=1"
            process.send_signal(signal.SIGTERM)
            while supervisor.recv(100) != b"STOPPING=1":
                pass
            process.wait(30)
    assert process.returncode == 0
