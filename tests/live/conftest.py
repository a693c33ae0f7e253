"""For tests with real processes: every process of a test carries a mark, and those that stay are found.

The mark is an environment variable, which children inherit; so nothing escapes, p2pd included.
"""

import asyncio
import contextlib
import os
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field

import psutil
import pytest

from swarm.testing.tiny_models import TinyModel, write_tiny_model

VARIABLE = "LIVE_TEST_MARK"
LEAVE_S = 5.0  # time that children have to notice that their parent is gone


@dataclass(frozen=True)
class Mark:
    """What a test starts with `environment` is found again by `living`."""

    value: str = field(default_factory=lambda: uuid.uuid4().hex)

    @property
    def environment(self) -> dict[str, str]:
        return {VARIABLE: self.value, "OMP_NUM_THREADS": "1", "SWARM_LOG_FORMAT": "human"}

    def living(self) -> list[str]:
        """Command lines of the marked processes that still run."""
        return [" ".join(process.info["cmdline"]) for process in psutil.process_iter(["cmdline"]) if self._has(process)]

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

    async def run(self, *arguments: str) -> tuple[int, str, str]:
        """Run `swarm ARGUMENTS` to its end: exit code, what it printed, what it told."""
        process = self.start(*arguments)
        with process:
            out, err = await asyncio.to_thread(process.communicate)
        return process.returncode, out, err

    def _has(self, process: psutil.Process) -> bool:
        with contextlib.suppress(psutil.Error):
            return process.status() != psutil.STATUS_ZOMBIE and process.environ().get(VARIABLE) == self.value
        return False


@pytest.fixture
def mark() -> Iterator[Mark]:
    """A mark for one test; nothing that carries it may be left at the end."""
    mark = Mark()
    yield mark
    mark.assert_nothing_left()


@pytest.fixture(scope="module")
def module_mark() -> Iterator[Mark]:
    """A mark in our own environment, so that all processes started in this module carry it."""
    mark = Mark()
    with pytest.MonkeyPatch.context() as patch:
        for name, value in mark.environment.items():
            patch.setenv(name, value)
        yield mark
    mark.assert_nothing_left()


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A directory with a random model of six blocks."""
    directory = tmp_path_factory.mktemp("live") / "tiny"
    write_tiny_model(directory, TinyModel(num_blocks=6, overrides={"max_position_embeddings": 512}))
    return str(directory)
