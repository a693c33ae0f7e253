"""Swarms in one process, over a tiny model, on virtual time."""

import asyncio
from collections.abc import Sequence

import pytest

from swarm.client.model import ClientModel, load_client_model
from swarm.model.sampling import Sampling, choose
from swarm.model.span import SpanStep
from swarm.model.weights import load_span
from swarm.testing.swarm import InProcessSwarm
from swarm.testing.tiny_models import TinyModel, write_tiny_model
from swarm.values import Span


class Reference:
    """The same model in one piece: what every reply must equal."""

    def __init__(self, directory) -> None:
        self.directory = directory
        self.ends: ClientModel = load_client_model(str(directory), directory.parent, "fp32")
        config = self.ends.config
        self.blocks = load_span(directory, config, Span(0, config.num_blocks), dtype=self.ends.head.dtype)

    def reply(self, prompt_ids: Sequence[int], count: int, sampling: Sampling | None = None) -> list[int]:
        """The first `count` tokens after a prompt, one step a token."""
        sampling, cache, output = sampling or Sampling(), self.blocks.new_cache(), []
        ids = list(prompt_ids)
        for _ in range(count):
            [hidden] = self.blocks.forward([SpanStep(cache, self.ends.head.embed(ids))])
            choice = choose(self.ends.head.logits(hidden[-1:])[0], sampling, prompt_ids, output)
            output.append(choice.token_id)
            ids = [choice.token_id]
        return output


@pytest.fixture(scope="session")
def reference(tmp_path_factory) -> Reference:
    directory = tmp_path_factory.mktemp("models") / "tiny"
    write_tiny_model(directory, TinyModel(num_blocks=6, overrides={"max_position_embeddings": 2048}))
    return Reference(directory)


@pytest.fixture
def virtual_swarm(reference):
    """Makes a swarm whose wall clock is the loop's: for use within `run_virtual`."""

    def make(**settings) -> InProcessSwarm:
        loop = asyncio.get_running_loop()
        return InProcessSwarm(reference.directory, now=lambda: 1e9 + loop.time(), **settings)

    return make
