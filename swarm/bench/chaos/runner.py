"""Runs scenarios one after the other on one stage, and makes the stage whole again in between."""

import asyncio
import logging
import tempfile
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from swarm.bench.chaos.leftovers import Baseline, left_behind
from swarm.bench.chaos.report import Result
from swarm.bench.chaos.scenarios import Scenario
from swarm.bench.chaos.scene import References, Scene
from swarm.bench.chaos.stage import Stage, StageConfig
from swarm.config import store_root
from swarm.errors import SwarmError, UsageError
from swarm.model.config import read_config
from swarm.model.store import resolve
from swarm.session.rules import SparePolicy
from swarm.testing.processes import even_spans
from swarm.testing.tiny_models import TinyModel, write_tiny_model

SPANS, MIN_BLOCKS = 3, 6
SCENARIO_LIMIT_S = 400.0
TINY_CONTEXT = 4096

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ChaosConfig:
    """What `swarm chaos` is told. Without a model, a tiny random one is made."""

    model: str | None = None
    seed: int = 0
    spares: SparePolicy = "auto"


@asynccontextmanager
async def open_stage(config: ChaosConfig) -> AsyncIterator[Stage]:
    """A stage of three spans with two replicas each; all of its files are gone at the end."""
    with tempfile.TemporaryDirectory(prefix="swarm-chaos-") as folder:
        home = Path(folder)
        model = config.model or _tiny_model(home / "tiny")
        shape = read_config(resolve(model, store_root()))
        if shape.num_blocks < MIN_BLOCKS:
            raise UsageError(
                f"{model} has {shape.num_blocks} blocks, the scenarios need {MIN_BLOCKS}",
                "Name another with --model.",
            )
        spans = even_spans(shape.num_blocks, SPANS)
        stage_config = StageConfig(
            model, shape.vocab_size, spans, home, seed=config.seed, spares=config.spares
        )
        async with Stage(stage_config) as stage:
            yield stage


async def run_scenarios(stage: Stage, scenarios: Sequence[Scenario]) -> AsyncGenerator[Result, None]:
    """Run them; gives each result as it comes."""
    references = References(stage)
    for scenario in scenarios:
        yield await run_scenario(scenario, Scene(stage, references))


async def run_scenario(scenario: Scenario, scene: Scene) -> Result:
    """Run one, heal the stage, and look for what was left behind."""
    _log.info("Scenario %s begins", scenario.name)
    before = await Baseline.take(scene.stage)
    try:
        await scene.references.of(scene.questions())
        async with asyncio.timeout(SCENARIO_LIMIT_S):
            await scenario.run(scene)
    except TimeoutError:
        scene.fail(f"not done after {SCENARIO_LIMIT_S:.0f} s")
    except SwarmError as error:
        scene.fail(str(error))
    finally:
        await scene.leave()
        await scene.stage.heal()
    return _result(scenario, scene, await left_behind(scene.stage, before, scene.disturbed))


def _result(scenario: Scenario, scene: Scene, leftovers: list[str]) -> Result:
    return Result(
        scenario=scenario.name,
        sessions=scene.sessions,
        tokens_ok=not scene.wrong_tokens,
        recoveries=scene.recoveries,
        stalls_s=tuple(reply.stall_s for reply in scene.seen),
        left_behind=tuple(leftovers),
        error="; ".join(scene.problems) or None,
    )


def _tiny_model(directory: Path) -> str:
    write_tiny_model(
        directory, TinyModel(num_blocks=MIN_BLOCKS, overrides={"max_position_embeddings": TINY_CONTEXT})
    )
    return str(directory)
