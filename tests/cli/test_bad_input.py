"""Every bad input at the command line: the sentence, the exit code, and nothing left running."""

import contextlib
import io
import json
import logging
import socket
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from swarm.cli import main as cli
from swarm.security.identity import new_identity
from swarm.testing.tiny_models import TinyModel, write_tiny_model

NOBODY = f"/ip4/127.0.0.1/tcp/9/p2p/{new_identity().peer_id}"
NODE = Path(__file__).parents[1] / "network" / "node_process.py"
BOTH = ("peer", "generate")


@pytest.fixture(autouse=True)
def nothing_left(tmp_path, monkeypatch):
    """Files of its own for every test, logging as it was, and no process that outlives it."""
    monkeypatch.setenv("SWARM_HOME", str(tmp_path / "home"))
    root, own = logging.getLogger(), logging.getLogger("swarm")
    before = (root.handlers[:], root.level, own.level)
    children = set(psutil.Process().children(recursive=True))
    yield
    root.handlers[:], root.level = before[0], before[1]
    own.setLevel(before[2])
    assert set(psutil.Process().children(recursive=True)) <= children


@pytest.fixture
def fails(capfd):
    """Runs `swarm ARGUMENTS`; gives its exit code and the one line it says on stderr."""

    def run(*arguments: object) -> tuple[int, str]:
        code = cli.run([str(each) for each in arguments])
        captured = capfd.readouterr()
        assert captured.out == ""
        [line] = captured.err.splitlines()
        assert line.startswith("swarm: ")
        return code, line.removeprefix("swarm: ")

    return run


@pytest.fixture
def tiny(tmp_path):
    """A random model of six blocks in one file."""
    write_tiny_model(tmp_path / "tiny", TinyModel(num_blocks=6))
    return tmp_path / "tiny"


def command_line(command: str, model: object) -> list[object]:
    ask = [command, model, "--join", NOBODY]
    return [*ask, "hello"] if command == "generate" else [*ask, "--blocks", "0:6"]


# --- the model's files ------------------------------------------------------------------------------


@pytest.mark.parametrize("command", BOTH)
def test_an_unknown_model_says_what_is_known_and_how_to_get_it(fails, command):
    code, line = fails(*command_line(command, "smollm2-130m"))
    assert code == 1
    assert line == (
        "No model 'smollm2-130m' is cached, and there is no such directory. "
        "Did you mean 'smollm2-135m'? Get another with: swarm model pull ORG/NAME."
    )


@pytest.mark.parametrize("command", BOTH)
def test_a_model_that_was_never_pulled_says_the_command(fails, command):
    code, line = fails(*command_line(command, "smollm2-135m"))
    assert code == 1
    assert line.endswith("Get it with: swarm model pull smollm2-135m.")


def cut_in_half(directory: Path) -> None:
    file = directory / "model.safetensors"
    file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])


def configured(**fields: object):
    """A change of config.json; None takes a field away."""

    def change(directory: Path) -> None:
        config = json.loads((directory / "config.json").read_text()) | fields
        kept = {name: value for name, value in config.items() if value is not None}
        (directory / "config.json").write_text(json.dumps(kept))

    return change


BAD_FILES = {
    "no weights": (
        lambda directory: (directory / "model.safetensors").unlink(),
        "tiny holds neither model.safetensors nor model.safetensors.index.json; no other format is read.",
    ),
    "truncated weights": (cut_in_half, "model.safetensors ends before the tensor "),
    "empty weights": (
        lambda directory: (directory / "model.safetensors").write_bytes(b""),
        "model.safetensors ends before the tensor ",
    ),
    "config without a needed field": (
        configured(model_type=None),
        "The field model_type in {}/config.json is missing",
    ),
    "config that is no JSON": (
        lambda directory: (directory / "config.json").write_text('{"hidden_size":'),
        "{}/config.json cannot be read as JSON",
    ),
    "unsupported architecture": (
        configured(model_type="gpt_neox"),
        "The model type 'gpt_neox' in {}/config.json is not supported. Supported: cohere2, gemma2, ",
    ),
    "unsupported rotary embedding": (
        configured(rope_scaling={"rope_type": "su"}),
        "The rotary embedding 'su' in {}/config.json is not supported. Supported: default, ",
    ),
}


@pytest.mark.parametrize("command", BOTH)
@pytest.mark.parametrize("name", BAD_FILES)
@pytest.mark.parametrize("has_manifest", [False, True], ids=["never used before", "used before"])
def test_a_damaged_model_is_refused_before_the_swarm_hears_of_it(
    fails, tiny, command, name, has_manifest, capfd
):
    if has_manifest:
        assert cli.run(["model", "manifest", str(tiny)]) == 0
        capfd.readouterr()
    damage, sentence = BAD_FILES[name]
    damage(tiny)
    code, line = fails(*command_line(command, tiny))
    assert code == 1
    assert sentence.format(tiny) in line


@pytest.mark.parametrize("command", BOTH)
def test_a_tensor_of_a_wrong_shape_is_named_with_both_shapes(fails, tiny, command):
    configured(vocab_size=300, intermediate_size=96)(tiny)
    code, line = fails(*command_line(command, tiny))
    assert code == 1
    assert "has the shape [" in line
    assert "where config.json asks for [" in line


@pytest.mark.parametrize("command", BOTH)
def test_a_missing_shard_is_named_with_a_tensor_it_holds(fails, tmp_path, command):
    write_tiny_model(tmp_path / "sharded", TinyModel(num_blocks=6, shards=2))
    (tmp_path / "sharded" / "model-00002-of-00002.safetensors").unlink()
    code, line = fails(*command_line(command, tmp_path / "sharded"))
    assert code == 1
    assert "model-00002-of-00002.safetensors, which holds the tensor model." in line
    assert "is missing. Fetch the model again with `swarm model pull`" in line


def test_a_tensor_that_is_not_the_one_of_the_manifest_is_named(fails, tiny, capfd):
    assert cli.run(["model", "manifest", str(tiny)]) == 0
    capfd.readouterr()
    other = tiny.with_name("other")
    write_tiny_model(other, TinyModel(num_blocks=6, seed=1))
    (other / "model.safetensors").replace(tiny / "model.safetensors")
    code, line = fails(*command_line("generate", tiny))
    assert code == 1
    assert line.startswith("The tensor model.embed_tokens.weight in ")
    assert "where the manifest names" in line


# --- what a peer is asked to host -------------------------------------------------------------------


@pytest.mark.parametrize(
    ("span", "code", "sentence"),
    [
        ("4:9", 2, "The span 4:9 is outside the model, which has 6 blocks. Choose blocks within 0:6."),
        ("9:4", 2, "9:4 is not a span of blocks. Write START:END with 0 <= START < END, for example 0:16."),
        ("some", 2, "'some' is not a span of blocks. Write START:END, for example 0:16."),
    ],
)
def test_a_span_that_is_none_of_the_model_is_refused(fails, tiny, span, code, sentence):
    assert fails("peer", tiny, "--blocks", span) == (code, sentence)


def test_a_span_that_does_not_fit_says_how_many_blocks_do(fails, tiny):
    code, line = fails("peer", tiny, "--blocks", "0:6", "--memory", "256KiB")
    assert code == 78
    assert line == (
        "6 blocks (0:6) do not fit in 256.0 KiB: with their caches they need 556.0 KiB, "
        "and there is room for 2. "
        "Host 2 of them at most (for example --blocks 0:2), or give it more --memory."
    )


def test_memory_for_not_even_one_block_is_refused_before_joining(fails, tiny):
    code, line = fails("peer", tiny, "--memory", "10KB", "--join", NOBODY)
    assert code == 78
    assert line.startswith("6 blocks (0:6) do not fit in 9.8 KiB: with their caches they need")
    assert "not even one block does. Give it more --memory" in line


# --- the network ------------------------------------------------------------------------------------

JOINING = {
    "peer": lambda model: ["peer", model],
    "generate": lambda model: ["generate", model, "hello"],
    "chat": lambda model: ["chat", model],
    "status": lambda model: ["status"],
    "bootstrap": lambda model: ["bootstrap"],
}


@pytest.mark.parametrize("address", ["", "example.com", "127.0.0.1:31337", "/ip4/127.0.0.1/tcp/31337"])
@pytest.mark.parametrize("command", JOINING)
def test_a_malformed_join_address_is_refused_with_an_example(fails, tiny, command, address):
    code, line = fails(*JOINING[command](tiny), "--join", address)
    assert code == 2
    assert repr(address) in line
    assert "/ip4/203.0.113.7/tcp/31337/p2p/12D3KooW..." in line


@pytest.mark.live
@pytest.mark.parametrize("command", JOINING)
def test_a_join_address_that_nobody_answers_is_named_in_one_line(fails, tiny, command):
    code, line = fails(*JOINING[command](tiny), "--join", NOBODY)
    assert code == 69
    assert line.startswith(f"No node of the swarm answers: {NOBODY} does not answer: ")
    assert line.endswith(
        "connection refused. Is that node running, is the address right, and does a firewall let it through?"
    )


@pytest.mark.live
@pytest.mark.parametrize("command", ["peer", "bootstrap"])
def test_a_port_in_use_is_named(fails, tiny, command):
    with socket.create_server(("127.0.0.1", 0)) as holder:
        port = holder.getsockname()[1]
        code, line = fails(*JOINING[command](tiny), "--listen", f"127.0.0.1:{port}")
    assert code == 78
    assert line == (
        f"Port {port} of 127.0.0.1 is in use by another program. "
        "Choose another port with --listen, or stop that program."
    )


@pytest.mark.live
def test_a_monitor_port_in_use_is_named(fails, tiny):
    with socket.create_server(("127.0.0.1", 0)) as holder:
        port = holder.getsockname()[1]
        code, line = fails("peer", tiny, "--listen", "127.0.0.1:0", "--monitor", port)
    assert code == 78
    assert line.startswith(f"The monitor cannot listen on 127.0.0.1:{port}: ")
    assert line.endswith("Choose another port with --monitor, or 0 for a free one.")


@pytest.mark.live
def test_a_clock_ten_seconds_off_is_named(fails):
    with _node(ahead_s=10.0) as address:
        code, line = fails("status", "--join", address)
    assert code == 78
    assert line.startswith(f"The clocks of this machine and of {address} differ by more than 3 s.")
    assert "timedatectl set-ntp true" in line


@contextlib.contextmanager
def _node(ahead_s: float):
    """A node in a process of its own, whose clock is so far ahead; gives its address."""
    command = [sys.executable, str(NODE), str(ahead_s)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        children = []
        try:
            address = process.stdout.readline().strip()
            children = psutil.Process(process.pid).children(recursive=True)
            yield address
        finally:
            process.kill()
            psutil.wait_procs(children, timeout=5)


# --- what is asked ----------------------------------------------------------------------------------


@pytest.mark.parametrize("arguments", [["-"], []])
def test_a_prompt_may_come_from_standard_input_where_nobody_sees_it(fails, monkeypatch, arguments):
    monkeypatch.setattr("sys.stdin", io.StringIO("Hello"))
    _, line = fails("generate", "any-model", *arguments, "--join", NOBODY)
    assert "any-model" in line  # it was read, and only the model is missing
    monkeypatch.setattr("sys.stdin", io.StringIO(" "))
    assert fails("generate", "any-model", *arguments, "--join", NOBODY)[0] == 2


@pytest.mark.parametrize("prompt", ["", "  \n"])
def test_an_empty_prompt_is_refused_before_anything_is_loaded(fails, prompt):
    assert fails("generate", "any-model", prompt, "--join", NOBODY) == (
        2,
        "The prompt is empty. Give a text, or pipe one in.",
    )
