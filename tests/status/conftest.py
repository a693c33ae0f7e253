"""What the tests of the status page share: a tiny model on disk, and waiting for what must come."""

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest

from swarm.testing.tiny_models import TinyModel, write_tiny_model


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory) -> Path:
    """A store root is its parent."""
    directory = tmp_path_factory.mktemp("store") / "models" / "tiny"
    write_tiny_model(directory, TinyModel(num_blocks=6))
    return directory


@pytest.fixture
def until() -> Callable:
    """Waits in real time for a condition; fails with its last value."""

    async def wait(read: Callable[[], object], timeout_s: float = 30.0) -> object:
        loop = asyncio.get_running_loop()
        ends_at = loop.time() + timeout_s
        while not (value := read()):
            assert loop.time() < ends_at, f"still {value!r} after {timeout_s} s"
            await asyncio.sleep(0.02)
        return value

    return wait
