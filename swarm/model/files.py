"""Directories that appear whole or not at all, locks between processes, checksums and JSON files.

Knows nothing of models. Progress is told to a callback `(stage, done, total)`; done and total count
bytes or items, total is 0 while it is unknown.
"""

import asyncio
import fcntl
import glob
import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

from swarm.errors import ConfigurationError

StageProgress = Callable[[str, int, int], None]

UNFINISHED = ".unfinished-"  # begins the name of what is not whole yet
LOOK_AGAIN_S = 0.3  # whether another process has let go of a lock
_CHUNK_BYTES = 2**20


def ignore_progress(stage: str, done: int, total: int) -> None:
    """The progress callback of those who do not care."""


@contextmanager
def new_directory(target: Path) -> Iterator[Path]:
    """A temporary sibling of `target` to fill; renamed to it at the end, removed on any exception.

    Two processes must not do this at once: hold a lock. Raises `ConfigurationError` when the disk is
    full or not writable.
    """
    with writing_to(target), scratch_directory(target.parent, target.name) as unfinished:
        yield unfinished
        unfinished.chmod(0o755)  # mkdtemp makes directories that only their owner can read
        unfinished.rename(target)


@contextmanager
def scratch_directory(parent: Path, name: str) -> Iterator[Path]:
    """An empty directory in `parent`, removed at the end, whatever happens.

    What a killed process left of an earlier one of that `name` is removed first.
    """
    prefix = f"{UNFINISHED}{name}-"
    parent.mkdir(parents=True, exist_ok=True)
    for leftover in parent.glob(f"{glob.escape(prefix)}*"):
        shutil.rmtree(leftover, ignore_errors=True)
    scratch = Path(tempfile.mkdtemp(prefix=prefix, dir=parent))
    try:
        yield scratch
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


@contextmanager
def writing_to(target: Path, variable: str = "SWARM_HOME") -> Iterator[None]:
    """Turn the operating system's refusal to write into a `ConfigurationError` that names `target`, and
    the environment variable that moves it."""
    try:
        yield
    except OSError as error:
        raise ConfigurationError(
            f"{target} cannot be written: {error.strerror or error}",
            f"Free disk space, or name another directory with {variable}.",
        ) from error


@contextmanager
def locked(path: Path, on_wait: Callable[[], None]) -> Iterator[None]:
    """Hold the lock file `path`; `on_wait` is called once when another process has it.

    The system releases the lock when its holder dies, so a killed process blocks nobody.
    """
    with writing_to(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            on_wait()
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


@contextmanager
def try_locked(path: Path) -> Iterator[bool]:
    """Hold the lock file `path`, unless another process does; gives whether it is held."""
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
        else:
            yield True
    finally:
        os.close(descriptor)


@asynccontextmanager
async def held(path: Path, on_wait: Callable[[], None]) -> AsyncIterator[None]:
    """As `locked`, within an event loop, which goes on while another process has the lock."""
    while True:
        with try_locked(path) as is_held:
            if is_held:
                yield
                return
        on_wait()
        await asyncio.sleep(LOOK_AGAIN_S)


def sha256_of(path: Path) -> str:
    """SHA-256 of a file, as 64 hex digits."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK_BYTES):
            digest.update(chunk)
    return digest.hexdigest()


def write_json(path: Path, value: Mapping[str, object]) -> None:
    """Write one JSON object, as people like to read it."""
    path.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
