"""Runs scenarios one after the other on one harness, and makes the harness whole again in between."""

import asyncio
import logging
import tempfile
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from swarm.bench.chaos.harness import Harness, HarnessConfig
from swarm.bench.chaos.leftovers import Baseline, left_behind
from swarm.bench.chaos.replies import percentile
from swarm.bench.chaos.scenario_run import References, ScenarioRun
from swarm.bench.chaos.scenarios import Scenario
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
COLUMNS = ("scenario", "sessions", "tokens", "recoveries", "stall p50", "p95", "max s", "problems")

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ChaosConfig:
    """What `swarm chaos` is told. Without a model, a tiny random one is made."""

    model: str | None = None
    seed: int = 0
    spares: SparePolicy = "auto"


@dataclass(frozen=True, slots=True)
class Result:
    """One scenario's outcome. `stalls_s` has one entry for each session."""

    scenario: str
    sessions: int
    tokens_ok: bool
    recoveries: int
    stalls_s: tuple[float, ...]
    left_behind: tuple[str, ...]
    error: str | None

    @property
    def passed(self) -> bool:
        """Whether everything was as promised."""
        return self.tokens_ok and not self.left_behind and self.error is None

    def to_json(self) -> dict[str, Any]:
        """The line that `--json` prints."""
        return {
            "scenario": self.scenario,
            "sessions": self.sessions,
            "tokens_ok": self.tokens_ok,
            "recoveries": self.recoveries,
            "stall_s": summary(self.stalls_s),
            "left_behind": list(self.left_behind),
            "error": self.error,
        }

    def row(self) -> tuple[str, ...]:
        """The cells of the table."""
        stall = summary(self.stalls_s)
        return (
            self.scenario,
            str(self.sessions),
            "right" if self.tokens_ok else "WRONG",
            str(self.recoveries),
            *(f"{stall[key]:.2f}" for key in ("p50", "p95", "max")),
            "; ".join(filter(None, [self.error, *self.left_behind])) or "-",
        )


def summary(stalls_s: tuple[float, ...]) -> dict[str, float]:
    """Median, 95th percentile and maximum, in seconds."""
    return {
        "p50": round(percentile(stalls_s, 0.5), 4),
        "p95": round(percentile(stalls_s, 0.95), 4),
        "max": round(max(stalls_s, default=0.0), 4),
    }


@asynccontextmanager
async def open_harness(config: ChaosConfig) -> AsyncIterator[Harness]:
    """A harness of three spans with two replicas each; all of its files are gone at the end."""
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
        harness_config = HarnessConfig(
            model, shape.vocab_size, spans, home, seed=config.seed, spares=config.spares
        )
        async with Harness(harness_config) as harness:
            yield harness


async def run_scenarios(harness: Harness, scenarios: Sequence[Scenario]) -> AsyncGenerator[Result, None]:
    """Run them; gives each result as it comes."""
    references = References(harness)
    for scenario in scenarios:
        yield await run_scenario(scenario, ScenarioRun(harness, references))


async def run_scenario(scenario: Scenario, run: ScenarioRun) -> Result:
    """Run one, heal the harness, and look for what was left behind."""
    _log.info("Scenario %s begins", scenario.name)
    before = await Baseline.take(run.harness)
    try:
        await run.references.of(run.questions())
        async with asyncio.timeout(SCENARIO_LIMIT_S):
            await scenario.run(run)
    except TimeoutError:
        run.fail(f"not done after {SCENARIO_LIMIT_S:.0f} s")
    except SwarmError as error:
        run.fail(str(error))
    finally:
        await run.leave()
        await run.harness.heal()
    return _result(scenario, run, await left_behind(run.harness, before, run.disturbed))


def _result(scenario: Scenario, run: ScenarioRun, leftovers: list[str]) -> Result:
    return Result(
        scenario=scenario.name,
        sessions=run.sessions,
        tokens_ok=not run.wrong_tokens,
        recoveries=run.recoveries,
        stalls_s=tuple(reply.stall_s for reply in run.seen),
        left_behind=tuple(leftovers),
        error="; ".join(run.problems) or None,
    )


def _tiny_model(directory: Path) -> str:
    write_tiny_model(
        directory, TinyModel(num_blocks=MIN_BLOCKS, overrides={"max_position_embeddings": TINY_CONTEXT})
    )
    return str(directory)
