"""Writes requirements/: every package that is installed, in one version, with the hashes of all its archives.

    build.txt       what builds those that come as source, and swarm itself
    run.txt         what the programs need
    torch.txt       torch as the registry has it, and the libraries that its builds for a GPU need
    torch-cpu.txt   torch without those, from an index of its own that pip may be set up for
    dev.txt         what checks and tests need on top
    clients/*.txt   programs that tests run unmodified against the gateway, as clients/*.in asks for them

uv finds the versions for every system and every Python that is supported. Of the builds for a CPU those are
hashed that pip finds on the machine where this runs; those known before are kept.
"""

import hashlib
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "requirements"
BUILD = ("editables", "hatchling", "setuptools", "wheel")
TORCH = re.compile(r"torch$|triton$|cuda-|nvidia-")
PYTHONS = ("3.11", "3.12", "3.13")
CPU_PLATFORMS = ("manylinux_2_28_x86_64", "manylinux_2_28_aarch64")
HEAD = "# Written by scripts/lock: do not edit.\n"


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        scratch = Path(folder)
        build_in, everything = scratch / "build.in", scratch / "everything.txt"
        build_in.write_text("\n".join(BUILD) + "\n")
        kept = (path for path in sorted(FOLDER.glob("*.txt")) if path.name != "torch-cpu.txt")
        everything.write_text("".join(path.read_text() for path in kept))
        known = resolve(everything, "pyproject.toml", str(build_in), "--extra", "dev", *sys.argv[1:])
        same = ("--constraint", str(everything))
        run = resolve(scratch / "run.txt", "pyproject.toml", *same).keys()
        build = resolve(scratch / "build.txt", str(build_in), *same).keys()
        torch = {name for name in known if TORCH.match(name)}
        write("build.txt", (known[name] for name in build))
        write("run.txt", (known[name] for name in run - torch))
        write("torch.txt", (known[name] for name in torch))
        write("dev.txt", (known[name] for name in known.keys() - run - build - torch))
        write("torch-cpu.txt", [cpu_build(known["torch"], scratch)])
    for asked in sorted((FOLDER / "clients").glob("*.in")):
        lock_clients(asked)


def resolve(result: Path, *arguments: str) -> dict[str, str]:
    """Have uv write into `result` what `arguments` need; gives the lines of each package by its name."""
    command = [
        sys.executable,
        "-m",
        "uv",
        "pip",
        "compile",
        "--universal",
        "--generate-hashes",
        "--no-annotate",
    ]
    command += ["--no-header", "--quiet", "--python-version", PYTHONS[0], "--output-file", str(result)]
    subprocess.run([*command, *arguments], cwd=ROOT, check=True)  # noqa: S603 - no shell, and all of it is ours
    blocks = re.finditer(r"^([a-z0-9-]+)==.*(?:\n +.*)*", result.read_text(), re.MULTILINE)
    return {match[1]: match[0] for match in blocks}


def lock_clients(asked: Path) -> None:
    """Renew one set of programs. A package may have a version of its own for each Python."""
    locked = asked.with_suffix(".txt")
    resolve(locked, str(asked.relative_to(ROOT)), *sys.argv[1:])
    locked.write_text(HEAD + locked.read_text())


def cpu_build(torch: str, scratch: Path) -> str:
    """The lines of torch's builds for a CPU, of the version that is in its other lines."""
    requirement = f"{torch.split()[0]}+cpu"
    pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary", ":all:"]
    for python in PYTHONS:
        for platform in CPU_PLATFORMS:
            chosen = ["--python-version", python, "--platform", platform, "--dest", str(scratch), requirement]
            # where pip finds none, there is none
            subprocess.run([*pip, *chosen], cwd=ROOT, check=False, stderr=subprocess.DEVNULL)  # noqa: S603
    hashes = {hashlib.sha256(wheel.read_bytes()).hexdigest() for wheel in scratch.glob("torch-*.whl")}
    before = FOLDER / "torch-cpu.txt"
    if before.exists() and f"{requirement} " in before.read_text():
        hashes |= set(re.findall(r"sha256:(\w+)", before.read_text()))
    if not hashes:
        sys.exit(f"pip finds no {requirement} here: name an index that has it with PIP_EXTRA_INDEX_URL")
    return " \\\n    ".join([requirement, *(f"--hash=sha256:{each}" for each in sorted(hashes))])


def write(name: str, packages: Iterable[str]) -> None:
    """Write one set, in the order of names."""
    (FOLDER / name).write_text(HEAD + "".join(f"{lines}\n" for lines in sorted(packages)))


if __name__ == "__main__":
    main()
