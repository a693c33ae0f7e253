"""The failure table: how fast a long reply gets done when every step may fail, by strategy.

After Petals' table (Borzunov et al. 2023, section 4.2): failure probability per step, 1,024 tokens.
A failure cuts the link to the peer that serves a hop drawn by chance, for as long as `DOWN_S`, so
that its stream breaks and another replica has to take the hop over.

- restart: the request begins anew at every failure, as with a client that cannot resume;
- replay: the lost hop is replaced and the history replayed;
- spare: replicas follow with a warm cache and are promoted.
"""

import asyncio
import random
from collections.abc import AsyncGenerator, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

from swarm.bench.chaos.harness import Harness, HarnessPeer
from swarm.bench.chaos.replies import AskedPrompt, ask, make_questions, percentile
from swarm.client.client import Client
from swarm.client.generation import Generation
from swarm.network.memory import LinkConditions

Strategy = Literal["restart", "replay", "spare"]

PROBABILITIES = (0.0, 1e-4, 1e-3, 1e-2)
STRATEGIES: tuple[Strategy, ...] = ("restart", "replay", "spare")
PROMPT_TOKENS, TOKENS = 16, 1024
DOWN_S = 1.0
FIRST_LIMIT_S = 600.0  # for the reply without failures
LIMIT_FACTOR = 8  # over that; a strategy that is not done by then never will be

COLUMNS = (
    "failure per step", "strategy", "done", "steps/s", "failures", "recoveries", "replayed tokens",
    "stall p50", "p95", "max s", "tokens",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Cell:
    """One strategy under one probability. `stalls_s` are the waits for a new token after a failure."""

    probability: float
    strategy: Strategy
    tokens_done: int
    elapsed_s: float
    failures: int
    recoveries: int
    replayed_tokens: int
    stalls_s: tuple[float, ...]
    tokens_ok: bool

    @property
    def steps_per_s(self) -> float:
        """Tokens of the reply by the time it took."""
        return self.tokens_done / self.elapsed_s

    @property
    def done(self) -> bool:
        """Whether the reply came to its end."""
        return self.tokens_done == TOKENS

    def to_json(self) -> dict[str, Any]:
        """The line that `--json` prints."""
        entry = asdict(self)
        stalls = entry.pop("stalls_s")
        shares = {
            "p50": percentile(stalls, 0.5),
            "p95": percentile(stalls, 0.95),
            "max": max(stalls, default=0.0),
        }
        return {
            **entry,
            "steps_per_s": round(self.steps_per_s, 1),
            "stall_s": {name: round(value, 4) for name, value in shares.items()},
        }

    def row(self) -> tuple[str, ...]:
        """The cells of the table."""
        stalls = (
            percentile(self.stalls_s, 0.5),
            percentile(self.stalls_s, 0.95),
            max(self.stalls_s, default=0.0),
        )
        return (
            f"{self.probability:g}",
            self.strategy,
            "yes" if self.done else f"no, {self.tokens_done} tokens",
            f"{self.steps_per_s:.1f}" if self.done else "-",
            str(self.failures),
            str(self.recoveries),
            str(self.replayed_tokens),
            *(f"{value:.3f}" for value in stalls),
            "right" if self.tokens_ok else "WRONG",
        )


async def failure_table(harness: Harness) -> AsyncGenerator[Cell, None]:
    """Measure every cell; gives each as it comes."""
    question, _ = make_questions(harness.config.vocab_size, PROMPT_TOKENS, TOKENS, harness.config.seed)
    expected: Sequence[int] = ()
    limit_s = FIRST_LIMIT_S
    for probability in PROBABILITIES:
        for strategy in STRATEGIES:
            options = replace(harness.options, spares="always" if strategy == "spare" else "off")
            async with await harness.client(options) as client:
                trial = _StrategyTrial(harness, client, question, probability, strategy)
                await trial.run(limit_s)
            if not expected:
                expected, limit_s = tuple(trial.token_ids), LIMIT_FACTOR * trial.elapsed_s
            yield trial.cell(expected)
            await asyncio.sleep(DOWN_S)  # the last link that was cut is back


class _StrategyTrial:
    """One cell under way."""

    def __init__(
        self, harness: Harness, client: Client, question: AskedPrompt, probability: float, strategy: Strategy
    ) -> None:
        self._stage = harness
        self._client = client
        self._question = question
        self._probability = probability
        self._strategy: Strategy = strategy
        self._chance = random.Random(f"{harness.config.seed} {probability}")  # noqa: S311 - the same for all strategies
        self.token_ids: list[int] = []
        self.elapsed_s = 0.0
        self._failures = 0
        self._recoveries = 0
        self._replayed = 0
        self._stalls_s: list[float] = []
        self._failed_at: float | None = None

    async def run(self, limit_s: float) -> None:
        """Until the reply is whole, or the time is up."""
        started_at = _now()
        try:
            async with asyncio.timeout(limit_s):
                while not await self._attempt():
                    pass
        except TimeoutError:
            pass  # the cell says how far it came
        finally:
            self.elapsed_s = _now() - started_at

    def cell(self, expected: Sequence[int]) -> Cell:
        """What has come of it."""
        return Cell(
            probability=self._probability,
            strategy=self._strategy,
            tokens_done=len(self.token_ids),
            elapsed_s=round(self.elapsed_s, 3),
            failures=self._failures,
            recoveries=self._recoveries,
            replayed_tokens=self._replayed,
            stalls_s=tuple(self._stalls_s),
            tokens_ok=self.token_ids == list(expected[: len(self.token_ids)]),
        )

    async def _attempt(self) -> bool:
        """Ask; True when the reply came to its end, False when it has to begin anew."""
        generation = ask(self._client, self._question)
        count = 0
        try:
            async for piece in generation:
                count += 1
                if count > len(self.token_ids):
                    self._note_token(piece.token_id)
                if self._chance.random() < self._probability and count < TOKENS:
                    self._fail(generation)
                    if self._strategy == "restart":
                        return False
            return True
        finally:
            resumes = generation.resumes
            self._recoveries += len(resumes) if self._strategy != "restart" else count < TOKENS
            self._replayed += sum(resume.replayed_tokens for resume in resumes)
            await generation.aclose()

    def _note_token(self, token_id: int) -> None:
        self.token_ids.append(token_id)
        if self._failed_at is not None:
            self._stalls_s.append(_now() - self._failed_at)
            self._failed_at = None

    def _fail(self, generation: Generation) -> None:
        self._failures += 1
        if self._failed_at is None:
            self._failed_at = _now()
        _cut_for_a_while(self._stage.peer(self._chance.choice(generation.hops).peer))


def _cut_for_a_while(peer: HarnessPeer) -> None:
    peer.link.set_link(LinkConditions(cut=True))
    asyncio.get_running_loop().call_later(DOWN_S, peer.link.set_link)


def _now() -> float:
    return asyncio.get_running_loop().time()
