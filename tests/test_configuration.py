"""Where files are, and what the configuration file may hold."""

from pathlib import Path

import pytest

from swarm.config import check_names, did_you_mean, find_paths, load_config_file
from swarm.errors import ConfigurationError

TABLES = ["swarm", "peer", "chat"]


def write(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "config.toml"
    path.write_text(text)
    return path


def test_swarm_home_moves_everything_under_one_directory(tmp_path):
    paths = find_paths({"SWARM_HOME": str(tmp_path)})
    everything = [paths.config_file, paths.store_root, paths.state_dir, paths.identity_file("peer")]
    assert all(path.is_relative_to(tmp_path) for path in everything)
    assert len(set(everything)) == len(everything)


def test_a_relative_swarm_home_is_made_absolute(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert find_paths({"SWARM_HOME": "here"}).store_root == tmp_path / "here" / "cache"


def test_an_empty_swarm_home_counts_as_unset():
    assert find_paths({"SWARM_HOME": ""}) == find_paths({})


def test_without_swarm_home_models_and_keys_lie_in_different_directories():
    paths = find_paths({})
    assert paths.store_root.name == "swarm"
    assert not paths.identity_file("peer").is_relative_to(paths.store_root)


def test_each_role_has_its_own_identity():
    assert find_paths({}).identity_file("peer") != find_paths({}).identity_file("bootstrap")


def test_a_file_gives_one_table_for_each_command(tmp_path):
    path = write(tmp_path, '[peer]\nmemory = "2GiB"\n[chat]\nseed = 1\n')
    assert load_config_file(path, TABLES) == {"peer": {"memory": "2GiB"}, "chat": {"seed": 1}}


def test_an_unknown_table_is_refused_with_the_nearest_name(tmp_path):
    with pytest.raises(ConfigurationError, match=r"\[pear\] is no command.*Did you mean 'peer'\?"):
        load_config_file(write(tmp_path, "[pear]\n"), TABLES)


def test_a_value_outside_any_table_is_refused(tmp_path):
    with pytest.raises(ConfigurationError, match=r"peer is not a table.*Write \[peer\]"):
        load_config_file(write(tmp_path, "peer = 3\n"), TABLES)


@pytest.mark.parametrize("content", [b"[peer\n", b"\xff\xfe", b"a = \n"])
def test_a_file_that_is_not_toml_is_refused_by_name(tmp_path, content):
    path = tmp_path / "config.toml"
    path.write_bytes(content)
    with pytest.raises(ConfigurationError, match=r"config\.toml is not TOML"):
        load_config_file(path, TABLES)


def test_a_missing_file_is_refused_with_its_reason(tmp_path):
    with pytest.raises(ConfigurationError, match="cannot be read: No such file"):
        load_config_file(tmp_path / "absent.toml", TABLES)


def test_a_name_like_no_other_is_answered_with_all_there_are():
    assert did_you_mean("zzz", TABLES) == "Known are: swarm, peer, chat."


def test_known_names_pass():
    check_names(["peer", "chat"], TABLES, "{}")
