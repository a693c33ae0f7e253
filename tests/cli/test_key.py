"""A conversation with `swarm key`."""

import json
import stat

import pytest

from swarm.cli.main import run


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("SWARM_HOME", str(tmp_path))
    return tmp_path


def test_new_prints_a_peer_id_and_show_prints_it_again(capsys):
    assert run(["key", "new"]) == 0
    made = capsys.readouterr().out
    assert made.startswith("12D3KooW")
    assert run(["key", "show"]) == 0
    assert capsys.readouterr().out == made


def test_the_file_is_readable_by_its_owner_only(home):
    run(["key", "new", "--path", str(home / "a.key")])
    assert stat.S_IMODE((home / "a.key").stat().st_mode) == 0o600


def test_json_gives_the_peer_id_and_the_path(home, capsys):
    assert run(["key", "new", "--path", str(home / "a.key"), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["peer_id"].startswith("12D3KooW")
    assert told["path"] == str(home / "a.key")


def test_new_never_replaces_an_identity(home, capsys):
    run(["key", "new", "--path", str(home / "a.key")])
    before = (home / "a.key").read_bytes()
    assert run(["key", "new", "--path", str(home / "a.key")]) == 78
    assert (home / "a.key").read_bytes() == before
    assert "already" in capsys.readouterr().err


def test_show_without_an_identity_says_how_to_make_one(home, capsys):
    assert run(["key", "show"]) == 2
    assert "swarm key new" in capsys.readouterr().err
    assert not list(home.rglob("*.key"))


def test_a_file_that_is_no_identity_is_refused_by_name(home, capsys):
    (home / "a.key").write_bytes(b"not a key")
    (home / "a.key").chmod(0o600)
    assert run(["key", "show", "--path", str(home / "a.key")]) != 0
    assert "a.key" in capsys.readouterr().err
