"""For tests with real processes: every process of a test carries a mark, and those that stay are found.

The mark is an environment variable, which children inherit; so nothing escapes, p2pd included.
"""

import asyncio
import contextlib
import logging
import os
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Callable, Coroutine, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import psutil
import pytest

from swarm.cli import main as cli
from swarm.testing.tiny_models import TinyModel, write_tiny_model

Result = TypeVar("Result")

VARIABLE = "LIVE_TEST_MARK"
LEAVE_S = 20.0  # for children to notice that their parent is gone, and to leave, on a busy machine


@dataclass(frozen=True)
class Mark:
    """What a test starts with `environment` is found again by `living`."""

    home: str
    scratch: str  # for temporary files: who is killed cannot take them along
    value: str = field(default_factory=lambda: uuid.uuid4().hex)

    @property
    def environment(self) -> dict[str, str]:
        return {
            VARIABLE: self.value,
            "OMP_NUM_THREADS": "1",
            "SWARM_HOME": self.home,
            "TMPDIR": self.scratch,
        }

    def living(self) -> list[str]:
        """Command lines of the marked processes that still run."""
        return [
            " ".join(process.info["cmdline"])
            for process in psutil.process_iter(["cmdline"])
            if self._has(process)
        ]

    def assert_nothing_left(self) -> None:
        """Fail unless all marked processes end within a few seconds."""
        deadline = time.monotonic() + LEAVE_S
        while (left := self.living()) and time.monotonic() < deadline:
            time.sleep(0.1)
        assert left == []

    def start(self, *arguments: str, **settings: object) -> subprocess.Popen[str]:
        """Start `swarm ARGUMENTS`, with pipes for what it says."""
        return subprocess.Popen(
            [sys.executable, "-m", "swarm", *arguments],
            **{"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE} | settings,
            text=True,
            env={**os.environ, **self.environment},
        )

    def _has(self, process: psutil.Process) -> bool:
        with contextlib.suppress(psutil.Error):
            return process.status() != psutil.STATUS_ZOMBIE and process.environ().get(VARIABLE) == self.value
        return False


class Background:
    """An event loop in a thread, for tests that are no coroutines: commands bring a loop of their own."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever)
        self._thread.start()

    def run(self, work: Coroutine[Any, Any, Result]) -> Result:
        """Run a coroutine to its end."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


@pytest.fixture
def mark(tmp_path: Path) -> Iterator[Mark]:
    """A mark for one test; nothing that carries it may be left at the end."""
    with tempfile.TemporaryDirectory() as scratch:  # a short path: sockets stand in it
        mark = Mark(str(tmp_path / "home"), scratch)
        yield mark
        mark.assert_nothing_left()


@pytest.fixture(scope="module")
def module_mark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mark]:
    """A mark in our own environment, so that all processes started in this module carry it."""
    with tempfile.TemporaryDirectory() as scratch, pytest.MonkeyPatch.context() as patch:
        mark = Mark(str(tmp_path_factory.mktemp("home")), scratch)
        for name, value in mark.environment.items():
            patch.setenv(name, value)
        yield mark
        mark.assert_nothing_left()


@pytest.fixture(scope="module")
def background() -> Iterator[Background]:
    """A running event loop beside the test's own thread."""
    background = Background()
    yield background
    background.close()


@pytest.fixture
def command(capfd: pytest.CaptureFixture[str]) -> Iterator[Callable[..., tuple[int, str, str]]]:
    """Runs `swarm ARGUMENTS` in this process (sparing the seconds of its imports): code, stdout, stderr."""
    root, own = logging.getLogger(), logging.getLogger("swarm")
    before = (root.handlers[:], root.level, own.level)

    def run(*arguments: str) -> tuple[int, str, str]:
        code = cli.run(arguments)
        return code, *capfd.readouterr()

    yield run
    root.handlers[:], root.level = before[0], before[1]
    own.setLevel(before[2])


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A directory with a random model of six blocks."""
    directory = tmp_path_factory.mktemp("live") / "tiny"
    write_tiny_model(directory, TinyModel(num_blocks=6, overrides={"max_position_embeddings": 512}))
    return str(directory)
