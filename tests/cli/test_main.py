"""The command line as a whole: help, errors and their exit codes, configuration, laziness."""

import importlib
import json
import logging
import signal
import subprocess
import sys

import click
import pytest

from swarm.cli import main as cli
from swarm.cli.params import DURATION, SIZE, SPAN
from swarm.errors import NoRoute, SwarmError
from swarm.values import Span


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    """Every test has files of its own, and gives logging back as it was."""
    monkeypatch.setenv("SWARM_HOME", str(tmp_path))
    root, own = logging.getLogger(), logging.getLogger("swarm")
    before = (root.handlers[:], root.level, own.level)
    yield tmp_path
    root.handlers[:], root.level = before[0], before[1]
    own.setLevel(before[2])


@pytest.fixture
def probe(monkeypatch):
    """`swarm peer` replaced by a command that records its options or fails as it is told."""
    seen: dict[str, object] = {}

    @click.command("peer")
    @click.option("--memory", type=SIZE, default="1GiB")
    @click.option("--blocks", type=SPAN)
    @click.option("--lease", type=DURATION)
    @click.option("--join", multiple=True)
    @click.option("--json", "as_json", is_flag=True)
    def command(**options):
        seen.update(options)
        if isinstance(seen.get("raise"), BaseException):
            raise seen["raise"]

    module = importlib.import_module("swarm.cli.completion")
    monkeypatch.setattr(module, "command", command)
    monkeypatch.setattr(cli, "COMMANDS", {"completion": "A probe.", "key": "Keys."})
    return seen


def run_python(code: str) -> str:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout


def test_help_imports_neither_torch_nor_hivemind_nor_any_command():
    loaded = run_python(
        "import sys\n"
        "from swarm.cli.main import COMMANDS, run\n"
        "assert run(['--help']) == 0\n"
        "heavy = {'torch', 'hivemind', 'aiohttp', 'rich', 'numpy'}\n"
        "commands = {f'swarm.cli.{name}' for name in COMMANDS}\n"
        "print('LOADED', sorted((heavy | commands) & set(sys.modules)))\n"
    )
    assert "Host blocks of a model" in loaded
    assert "LOADED []" in loaded


@pytest.mark.parametrize("name", list(cli.COMMANDS))
def test_every_command_in_the_table_loads_and_has_help(name, capsys):
    assert cli.run([name, "--help"]) == 0
    assert f"Usage: swarm {name}" in capsys.readouterr().out


def test_version_is_printed(capsys):
    assert cli.run(["--version"]) == 0
    assert capsys.readouterr().out.startswith("swarm ")


def test_an_unknown_command_is_answered_with_the_nearest(capsys):
    assert cli.run(["pear"]) == 2
    assert (
        capsys.readouterr().err
        == "swarm: There is no command 'pear'. Did you mean 'peer'? See 'swarm --help'.\n"
    )


def test_an_unknown_option_is_a_usage_error_on_stderr_only(capsys):
    assert cli.run(["key", "show", "--jsno"]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("swarm: No such option")
    assert "See 'swarm key show --help'" in captured.err


def test_a_command_without_its_subcommand_shows_help_and_is_a_usage_error(capsys):
    assert cli.run(["key"]) == 2
    assert "Usage: swarm key" in capsys.readouterr().err


def test_an_error_of_swarm_becomes_one_line_and_its_exit_code(probe, capsys):
    probe["raise"] = NoRoute("No live peer hosts blocks 3:5", "Start one with --blocks 3:5.")
    assert cli.run(["completion", "--json"]) == 69
    captured = capsys.readouterr()
    assert captured.err == "swarm: No live peer hosts blocks 3:5. Start one with --blocks 3:5.\n"
    assert captured.out == ""


def test_an_error_that_a_peer_worded_is_one_line_and_steers_no_terminal(probe, capsys):
    probe["raise"] = SwarmError("Refused: \x1b]0;owned\x07\x1b[2J\x9b31m\u202e\nswarm: all is well", "Go on.")
    assert cli.run(["completion"]) == 1
    assert capsys.readouterr().err == "swarm: Refused: ]0;owned[2J31m swarm: all is well. Go on.\n"


def test_errors_of_tasks_that_failed_together_are_told_as_the_first(probe, capsys):
    inner = ExceptionGroup("tasks", [NoRoute("Nobody hosts 3:5"), SwarmError("Later")])
    probe["raise"] = ExceptionGroup("outer", [inner])
    assert cli.run(["completion"]) == 69
    assert capsys.readouterr().err == "swarm: Nobody hosts 3:5.\n"


def test_a_programming_error_among_them_is_not_hidden(probe):
    probe["raise"] = ExceptionGroup("tasks", [NoRoute("Nobody hosts 3:5"), KeyError("bug")])
    with pytest.raises(ExceptionGroup):
        cli.run(["completion"])


def test_ctrl_c_ends_with_130(probe, capsys):
    probe["raise"] = KeyboardInterrupt()
    assert cli.run(["completion"]) == 130
    assert "Interrupted" in capsys.readouterr().err


def test_a_file_that_may_not_be_written_is_told_without_a_traceback(probe, capsys):
    probe["raise"] = PermissionError(13, "Permission denied", "/etc/x")
    assert cli.run(["completion"]) == 1
    assert "Permission denied: '/etc/x'" in capsys.readouterr().err


def test_spans_sizes_and_durations_are_parsed(probe):
    assert cli.run(["completion", "--blocks", "3:9", "--memory", "2GiB", "--lease", "500ms"]) == 0
    assert (probe["blocks"], probe["memory"], probe["lease"]) == (Span(3, 9), 2 * 2**30, 0.5)


@pytest.mark.parametrize(
    ("option", "text"), [("--blocks", "9:3"), ("--memory", "2 cows"), ("--lease", "soon")]
)
def test_a_wrong_span_size_or_duration_names_the_option(probe, capsys, option, text):
    assert cli.run(["completion", option, text]) == 2
    assert f"Invalid value for '{option}'" in capsys.readouterr().err


def test_flags_win_over_environment_over_file_over_default(probe, home, monkeypatch):
    cli.run(["completion"])
    assert probe["memory"] == 2**30
    (home / "config.toml").write_text('[completion]\nmemory = "2GiB"\n')
    cli.run(["completion"])
    assert probe["memory"] == 2 * 2**30
    monkeypatch.setenv("SWARM_COMPLETION_MEMORY", "3GiB")
    cli.run(["completion"])
    assert probe["memory"] == 3 * 2**30
    cli.run(["completion", "--memory", "4GiB"])
    assert probe["memory"] == 4 * 2**30


def test_the_file_may_set_lists_flags_and_options_named_otherwise_in_code(probe, home):
    (home / "config.toml").write_text('[completion]\njoin = ["a", "b"]\njson = true\n')
    assert cli.run(["completion"]) == 0
    assert (probe["join"], probe["as_json"]) == (("a", "b"), True)


def test_an_unknown_key_of_the_file_is_refused_with_the_nearest(probe, home, capsys):
    (home / "config.toml").write_text('[completion]\nmemori = "2GiB"\n')
    assert cli.run(["completion"]) == 78
    assert "'memori' in [completion]" in (told := capsys.readouterr().err)
    assert "Did you mean 'memory'?" in told


def test_tables_of_commands_that_are_not_run_are_not_loaded(probe, home):
    (home / "config.toml").write_text("[key.nonsense]\nx = 1\n")
    assert cli.run(["completion"]) == 0


def test_a_nested_table_sets_the_options_of_a_nested_command(home, tmp_path, capsys):
    path = tmp_path / "named.key"
    (home / "config.toml").write_text(f'[key.show]\npath = "{path}"\n')
    assert cli.run(["key", "show"]) == 2
    assert str(path) in capsys.readouterr().err


def test_a_table_where_an_option_is_meant_is_refused(home, capsys):
    (home / "config.toml").write_text("[key]\nshow = 3\n")
    assert cli.run(["key", "show"]) == 78
    assert "[key.show]" in capsys.readouterr().err


def test_config_names_another_file(probe, tmp_path):
    other = tmp_path / "other.toml"
    other.write_text('[completion]\nmemory = "5GiB"\n')
    assert cli.run(["--config", str(other), "completion"]) == 0
    assert probe["memory"] == 5 * 2**30


def test_a_config_file_that_was_named_and_is_missing_is_an_error(probe, tmp_path, capsys):
    assert cli.run(["--config", str(tmp_path / "absent.toml"), "completion"]) == 78
    assert "absent.toml cannot be read" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("before", "after", "level"),
    [
        ([], [], "WARNING"),
        (["-v"], [], "INFO"),
        ([], ["-v"], "INFO"),
        ([], ["-vv"], "DEBUG"),
        (["-q"], [], "ERROR"),
    ],
)
def test_verbosity_is_understood_before_and_after_the_command(probe, before, after, level):
    assert cli.run([*before, "completion", *after]) == 0
    assert logging.getLogger("swarm").level == getattr(logging, level)  # hivemind renames the levels


def test_the_log_can_be_json_and_goes_to_stderr(probe, home, capsys):
    (home / "config.toml").write_text('[swarm]\nlog-format = "json"\n')
    assert cli.run(["completion"]) == 0
    logging.getLogger("swarm.test").warning("two %s", "words")
    captured = capsys.readouterr()
    entry = json.loads(captured.err)
    assert (entry["level"], entry["logger"], entry["message"]) == ("warning", "swarm.test", "two words")
    assert captured.out == ""


def test_help_names_the_environment_variable_of_each_option(probe, capsys):
    assert cli.run(["completion", "--help"]) == 0
    assert "SWARM_COMPLETION_JSON" in capsys.readouterr().out


def test_completion_offers_commands_without_loading_them():
    offered = run_python(
        "import sys\n"
        "from swarm.cli.main import build_group\n"
        "from click.shell_completion import ShellComplete\n"
        "group = build_group()\n"
        "items = ShellComplete(group, {}, 'swarm', '_SWARM_COMPLETE').get_completions([], 'p')\n"
        "print([item.value for item in items], 'swarm.cli.peer' in sys.modules)\n"
    )
    assert offered.strip() == "['peer', 'plan'] False"


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_prints_a_script_for_each_shell(shell, capsys):
    assert cli.run(["completion", shell]) == 0
    assert "_SWARM_COMPLETE" in capsys.readouterr().out


def test_a_reader_that_goes_away_is_no_traceback():
    code = "import sys; from swarm.cli.main import run; sys.exit(run(['completion', 'zsh']))"
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    process.stdout.close()
    told = process.stderr.read()
    process.stderr.close()
    assert process.wait() == 1
    assert told == b""


def test_sigterm_puts_away_what_is_in_use(tmp_path):
    code = (
        "import sys, time\n"
        "from pathlib import Path\n"
        "from swarm.cli import main as cli\n"
        "def run(arguments):\n"
        "    try:\n"
        "        print('ready', flush=True)\n"
        "        time.sleep(3600)\n"
        "    finally:\n"
        f"        Path({str(tmp_path / 'put-away')!r}).touch()\n"
        "cli.run = run\n"
        "sys.exit(cli.main())\n"
    )
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE)
    assert process.stdout.readline() == b"ready\n"
    process.send_signal(signal.SIGTERM)
    process.stdout.close()
    assert process.wait(timeout=100) == 143
    assert (tmp_path / "put-away").exists()


def test_python_m_swarm_is_swarm():
    done = subprocess.run(
        [sys.executable, "-m", "swarm", "--version"], capture_output=True, text=True, check=True
    )
    assert done.stdout.startswith("swarm ")
