"""Swarms in one process over a tiny model, for tests of the client's parts."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TypeVar

import pytest

from swarm.model.compute import InlineCompute
from swarm.testing.clock import run_virtual
from swarm.testing.swarm import InProcessSwarm
from swarm.testing.tiny_models import TinyModel, write_tiny_model
from swarm.values import parse_span

Result = TypeVar("Result")


@pytest.fixture(scope="session")
def tiny_directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("client") / "tiny"
    write_tiny_model(directory, TinyModel(num_blocks=6))
    return directory


@pytest.fixture
def play(tiny_directory: Path) -> Callable[..., Result]:
    """Runs a coroutine function with a swarm whose peers host `spans`, in virtual time."""

    def run(
        scene: Callable[[InProcessSwarm], Awaitable[Result]], spans: str = "0:6", cost_s: float = 0.01
    ) -> Result:
        async def main() -> Result:
            loop = asyncio.get_running_loop()
            swarm = InProcessSwarm(
                tiny_directory, now=lambda: 1e9 + loop.time(), compute=lambda: InlineCompute(cost_s)
            )
            async with swarm:
                await swarm.add_peers([parse_span(span) for span in spans.split()])
                return await scene(swarm)

        return run_virtual(main())

    return run
