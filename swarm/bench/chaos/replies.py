"""Replies under observation: their tokens, when each came, and the longest silence between two.

The undisturbed reply to the same question is what a disturbed one must equal, token for token.
"""

import asyncio
import math
import random
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from swarm.client.client import Client
from swarm.client.generation import Generation
from swarm.client.reply import ResumeReport
from swarm.errors import SwarmError
from swarm.model.sampling import Sampling

OnToken = Callable[[int], None]  # how many tokens are out


@dataclass(frozen=True, slots=True)
class AskedPrompt:
    """What is asked. The same question, the same reply."""

    prompt_ids: tuple[int, ...]
    seed: int | None  # of the sampling; None takes the likeliest token
    max_tokens: int

    @property
    def sampling(self) -> Sampling:
        """How the tokens are chosen."""
        if self.seed is None:
            return Sampling(temperature=0.0)
        return Sampling(temperature=0.9, top_p=0.95, seed=self.seed)


@dataclass(slots=True)
class Observed:
    """One reply: `times_s` are the loop's, when each token came."""

    question: AskedPrompt
    started_at: float
    token_ids: list[int] = field(default_factory=list)
    times_s: list[float] = field(default_factory=list)
    resumes: tuple[ResumeReport, ...] = ()
    error: SwarmError | None = None
    expected_ttft_s: float | None = None  # set when it was the first token that was disturbed

    @property
    def gaps_s(self) -> list[float]:
        """Between one token and the next."""
        return [after - before for before, after in zip(self.times_s, self.times_s[1:], strict=False)]

    @property
    def median_s(self) -> float:
        """The usual time between tokens."""
        return statistics.median(self.gaps_s) if self.gaps_s else 0.0

    @property
    def stall_s(self) -> float:
        """The longest wait for a token, less the usual one."""
        if self.expected_ttft_s is not None:
            return max(0.0, self.ttft_s - self.expected_ttft_s)
        return max(self.gaps_s, default=0.0) - self.median_s

    @property
    def ttft_s(self) -> float:
        """From asking to the first token."""
        return self.times_s[0] - self.started_at if self.times_s else 0.0


def make_questions(
    vocab_size: int, prompt_tokens: int, max_tokens: int, seed: int
) -> tuple[AskedPrompt, AskedPrompt]:
    """A greedy question and a sampled one, both from the seed."""
    chance = random.Random(f"{seed} {prompt_tokens}")  # noqa: S311 - repeatable on purpose
    greedy, sampled = (
        AskedPrompt(tuple(chance.randrange(3, vocab_size) for _ in range(prompt_tokens)), each, max_tokens)
        for each in (None, seed)
    )
    return greedy, sampled


def ask(client: Client, question: AskedPrompt) -> Generation:
    """The reply to a question, not begun yet. It never ends before its last token."""
    return client.generate(
        question.prompt_ids,
        sampling=question.sampling,
        max_tokens=question.max_tokens,
        stop_token_ids=frozenset(),
    )


async def observe(
    generation: Generation, question: AskedPrompt, on_token: OnToken = lambda count: None
) -> Observed:
    """Read a reply to its end, or to the error that ended it."""
    clock = asyncio.get_running_loop().time
    observed = Observed(question, clock())
    try:
        async for piece in generation:
            observed.token_ids.append(piece.token_id)
            observed.times_s.append(clock())
            on_token(len(observed.token_ids))
    except SwarmError as error:
        observed.error = error
    finally:
        observed.resumes = generation.resumes
        await generation.aclose()
    return observed


def percentile(values: Sequence[float], share: float) -> float:
    """The smallest value that at least this share of all does not exceed (nearest rank)."""
    if not values:
        return 0.0
    return sorted(values)[math.ceil(len(values) * share) - 1]
