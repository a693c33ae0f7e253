"""Peers over a tiny model on the memory network, in virtual time."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TypeVar

import pytest
from peer_scene import Scene

from swarm.model.compute import InlineCompute
from swarm.testing.clock import run_virtual
from swarm.testing.swarm import InProcessSwarm
from swarm.testing.tiny_models import TinyModel, write_tiny_model
from swarm.values import Span

Result = TypeVar("Result")
Play = Callable[[Scene], Awaitable[Result]]


@pytest.fixture(scope="session")
def tiny_directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("peer") / "tiny"
    write_tiny_model(directory, TinyModel(num_blocks=6))
    return directory


@pytest.fixture
def play(tiny_directory: Path) -> Callable[..., Result]:
    """Runs a coroutine function with a `Scene`, in virtual time; a batch of the peer takes `cost_s`."""

    def run(scene: Play[Result], cost_s: float = 0.0) -> Result:
        async def main() -> Result:
            loop, naps_s = asyncio.get_running_loop(), [0.0]
            swarm = InProcessSwarm(
                tiny_directory,
                now=lambda: 1e9 + loop.time() + sum(naps_s),
                compute=lambda: InlineCompute(cost_s),
            )
            async with swarm:
                return await scene(Scene(swarm, await swarm.add_peer(Span(1, 4)), naps_s.append))

        return run_virtual(main())

    return run
