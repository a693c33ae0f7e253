"""What `swarm doctor` finds, on this machine and on one where things are wrong."""

import importlib.machinery
import importlib.util
import json
import socket

import psutil
import pytest
import torch

from swarm.cli import checks
from swarm.cli.doctor import check_swarm
from swarm.cli.main import run
from swarm.model.linear.choice import Form, Shape, plain_choice
from swarm.model.linear.chooser import MeasuringChooser


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("SWARM_HOME", str(tmp_path))
    return tmp_path


def memory(monkeypatch, available: int) -> None:
    monkeypatch.setattr(psutil, "virtual_memory", lambda: type("Memory", (), {"available": available}))


def test_a_sound_machine_passes(capsys):
    assert run(["doctor", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["ok"] is True
    names = [check["name"] for check in told["checks"]]
    expected = "python compute memory kernels disk libp2p port clock models identity"
    assert names == expected.split()


def test_the_text_names_every_check_and_what_to_do(capsys):
    run(["doctor"])
    told = capsys.readouterr().out
    assert "GFLOP/s" in told
    assert "swarm model pull smollm2-135m" in told  # nothing is cached under this home


def test_kernels_that_were_measured_are_told(tmp_path):
    assert "none measured yet" in checks.check_kernels(tmp_path).what
    shape, form = Shape(1024, 512), Form(torch.float32)
    MeasuringChooser(tmp_path, lambda shape, form: plain_choice(form)).choose([shape], form)
    assert "fp32 1024x512: plain mv" in checks.check_kernels(tmp_path).what


def test_one_failed_check_makes_the_exit_code_1(monkeypatch, capsys):
    memory(monkeypatch, 2**28)
    assert run(["doctor", "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["ok"] is False


@pytest.mark.parametrize(("available", "status"), [(2**28, "fail"), (2 * 2**30, "warn"), (8 * 2**30, "ok")])
def test_memory_is_judged_by_what_a_peer_needs(monkeypatch, available, status):
    memory(monkeypatch, available)
    assert checks.check_memory().status == status


@pytest.mark.parametrize(("free", "status"), [(2**20, "fail"), (2 * 2**30, "warn"), (50 * 2**30, "ok")])
def test_disk_is_judged_where_models_are_kept(monkeypatch, home, free, status):
    monkeypatch.setattr(checks.shutil, "disk_usage", lambda path: type("Usage", (), {"free": free}))
    assert checks.check_disk(home / "not" / "there" / "yet").status == status


def test_threads_that_slow_each_other_down_are_told(monkeypatch):
    monkeypatch.setattr(checks, "_matmul_gflops", lambda threads: 80.0 / threads)
    monkeypatch.setattr("torch.get_num_threads", lambda: 4)
    monkeypatch.setattr("torch.set_num_threads", lambda threads: None)
    found = checks.check_compute()
    assert (found.status, "--threads 1" in found.fix) == ("warn", True)


def test_the_number_of_threads_is_left_as_it_was():
    import torch

    before = torch.get_num_threads()
    checks.check_compute()
    assert torch.get_num_threads() == before


def test_a_port_in_use_is_told():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        found = checks.check_port(taken.getsockname()[1])
    assert (found.status, "cannot be listened on" in found.what) == ("fail", True)


def fake_hivemind(monkeypatch, folder) -> None:
    spec = importlib.machinery.ModuleSpec("hivemind", None, origin=str(folder / "__init__.py"))
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: spec)


def test_a_missing_daemon_is_told(monkeypatch, tmp_path):
    fake_hivemind(monkeypatch, tmp_path)
    assert (checks.check_daemon().status, "is missing" in checks.check_daemon().what) == ("fail", True)


def test_a_daemon_for_another_machine_is_told(monkeypatch, tmp_path):
    fake_hivemind(monkeypatch, tmp_path)
    (tmp_path / "hivemind_cli").mkdir()
    daemon = tmp_path / "hivemind_cli" / "p2pd"
    daemon.write_bytes(b"\x7fELFnot really")
    daemon.chmod(0o755)
    assert "does not run" in checks.check_daemon().what


def test_the_daemon_that_is_installed_runs():
    assert checks.check_daemon().status == "ok"


def test_a_key_that_others_can_read_is_told_with_the_command_to_run(home):
    folder = home / "identities"
    folder.mkdir()
    (folder / "peer.key").touch(mode=0o644)
    found = checks.check_identities(folder)
    assert (found.status, found.fix) == ("fail", f"Run: chmod 600 {folder / 'peer.key'}")
    (folder / "peer.key").chmod(0o600)
    assert checks.check_identities(folder).status == "ok"


def test_cached_models_are_named(home):
    for name in ("smollm2-135m", "org/other"):
        (home / "models" / name).mkdir(parents=True)
        (home / "models" / name / "config.json").touch()
    assert checks.check_models(home).what.startswith("org/other, smollm2-135m in")


def test_doctor_changes_nothing(home):
    run(["doctor"])
    assert list(home.iterdir()) == []


@pytest.mark.live
async def test_a_swarm_that_answers_is_described():
    from swarm.network.libp2p import Libp2pConfig, open_libp2p
    from swarm.security.identity import new_identity

    async with open_libp2p(Libp2pConfig(), new_identity()) as node:
        swarm, reach = await check_swarm(node.addresses[:1], port=0)
    assert swarm.what.startswith("answered in")
    assert (swarm.status, "no model yet" in swarm.what) == ("warn", True)
    assert (reach.name, reach.status) == ("reach", "ok")


@pytest.mark.live
async def test_a_swarm_that_does_not_answer_is_a_failed_check():
    from swarm.security.identity import new_identity

    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        port = unused.getsockname()[1]
    [found] = await check_swarm((f"/ip4/127.0.0.1/tcp/{port}/p2p/{new_identity().peer_id}",), port=0)
    assert (found.status, bool(found.fix)) == ("fail", True)
