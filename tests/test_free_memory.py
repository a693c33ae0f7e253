"""How much memory there is, and what is said when it is not enough: real limits, and cgroups in files."""

import re
import subprocess
import sys
from textwrap import dedent

import psutil
import pytest

from swarm.errors import DoesNotFit
from swarm.memory import available_bytes, is_shortage, room_for
from swarm.testing.tiny_models import TinyModel, write_tiny_model

MIB = 2**20


def cgroup(root, path: str, **files: object) -> None:
    directory = root / path
    directory.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        (directory / f"memory.{name}").write_text(f"{content}\n")


@pytest.fixture
def own(tmp_path):
    """Writes what /proc/self/cgroup says; gives the file."""

    def write(text: str):
        path = tmp_path / "own"
        path.write_text(text)
        return path

    return write


def test_without_limits_what_the_machine_has_free_is_available(tmp_path, own):
    free = available_bytes(tmp_path, own(""))
    assert 0 < free <= psutil.virtual_memory().total
    assert available_bytes(tmp_path, tmp_path / "absent") > 0


def test_container_counts_and_its_file_cache_does_not(tmp_path, own):
    cgroup(tmp_path, "pod", max=100 * MIB, current=90 * MIB, stat=f"anon 1\ninactive_file {30 * MIB}")
    cgroup(tmp_path, "pod/peer", max="max", current=90 * MIB, stat="anon 1")
    assert available_bytes(tmp_path, own("0::/pod/peer\n")) == 40 * MIB


def test_container_that_is_shown_as_the_root_counts(tmp_path, own):
    cgroup(tmp_path, "", max=50 * MIB, current=20 * MIB, stat="inactive_file 0")
    assert available_bytes(tmp_path, own("0::/\n")) == 30 * MIB
    assert available_bytes(tmp_path, own("0::/../elsewhere\n")) <= 30 * MIB


def test_container_of_the_older_kind_counts(tmp_path, own):
    files = {"limit_in_bytes": 50 * MIB, "usage_in_bytes": 45 * MIB, "stat": "total_inactive_file 1048576"}
    cgroup(tmp_path, "memory/docker/x", **files)
    assert available_bytes(tmp_path, own("5:cpu:/\n4:memory:/docker/x\n0::/\n")) == 6 * MIB


def test_container_that_is_over_its_limit_leaves_nothing(tmp_path, own):
    cgroup(tmp_path, "", max=50 * MIB, current=60 * MIB, stat="inactive_file 0")
    assert available_bytes(tmp_path, own("0::/\n")) == 0


def test_what_is_too_large_is_refused_before_it_is_loaded():
    needed = psutil.virtual_memory().total * 2
    with (
        pytest.raises(DoesNotFit, match=r"Blocks 0:8 need .* of memory, and .* are free\. Take"),
        room_for("Blocks 0:8", needed, lambda free: f"Take {free}"),
    ):
        pytest.fail("it was loaded")


@pytest.mark.parametrize(
    "error",
    [
        MemoryError(),
        RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes."),
    ],
)
def test_running_out_while_loading_is_told(error):
    with pytest.raises(DoesNotFit, match="It need 10 B of memory"), room_for("It", 10, lambda free: ""):
        raise error


def test_other_errors_while_loading_stay_what_they_are():
    assert not is_shortage(RuntimeError("shapes differ"))
    with pytest.raises(RuntimeError, match="shapes differ"), room_for("It", 10, lambda free: ""):
        raise RuntimeError("shapes differ")


LIMITED = """
    import sys, resource, psutil, torch
    from pathlib import Path
    from swarm import memory
    from swarm.cli import main
    from swarm.client.model import load_client_model
    from swarm.model.config import read_config
    from swarm.model.weights import load_span, load_head
    from swarm.values import Span

    directory, room_mib, what = Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
    config = read_config(directory)
    if what == "unforeseen":
        memory.available_bytes = lambda: 2**40

    def load():
        most = psutil.Process().memory_info().vms + room_mib * 2**20
        resource.setrlimit(resource.RLIMIT_AS, (most, most))
        if what == "head":
            load_head(directory, config, dtype=torch.float32)
        else:
            load_span(directory, config, Span(0, config.num_blocks), dtype=torch.float32)

    class Group:
        def main(self, *args, **options):
            load()
            print("loaded")

    main.build_group = Group
    sys.exit(main.run([]))
"""


@pytest.fixture(scope="module")
def large(tmp_path_factory):
    """A model of four blocks of about 32 MiB each, and of larger ends."""
    directory = tmp_path_factory.mktemp("large") / "model"
    sizes = {
        "hidden_size": 1024,
        "intermediate_size": 2048,
        "num_attention_heads": 16,
        "head_dim": 64,
        "vocab_size": 16384,
    }
    write_tiny_model(directory, TinyModel(num_blocks=4, overrides=sizes))
    return directory


@pytest.mark.parametrize(
    ("room_mib", "what", "code", "sentence"),
    [
        (600, "span", 0, ""),
        (90, "span", 78, r"Blocks 0:4 in fp32 need 132.* and .* free\. There is room for 2"),
        (
            100,
            "unforeseen",
            78,
            r"Blocks 0:4 in fp32 need 132.*and that was not enough\. There is room for 3",
        ),
        (30, "head", 78, r"The ends of the model in fp32 need 128.* and .* free\. Close other programs"),
    ],
)
def test_limit_of_the_process_is_told_with_what_fits(room_mib, what, code, sentence, large):
    command = [sys.executable, "-c", dedent(LIMITED), str(large), str(room_mib), what]
    result = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
    assert result.returncode == code, result.stderr
    assert "Traceback" not in result.stderr
    assert re.search(sentence, result.stderr), result.stderr


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux holds a process to its address space")
def test_too_little_memory_to_load_the_program_is_told(tmp_path):
    most = 250 * MIB  # torch alone is larger
    program = f"import resource; resource.setrlimit(resource.RLIMIT_AS, ({most}, {most})); "
    program += "import sys; from swarm.cli.main import run; sys.exit(run(sys.argv[1:]))"
    command = [sys.executable, "-c", program, "model", "show", str(tmp_path)]
    result = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
    assert result.returncode == 78, result.stderr
    assert re.fullmatch(r"swarm: There is not enough memory; .* is free .*\n", result.stderr)
