"""One run of a scenario: one client on the harness, its replies, and what a scenario does to them.

Keeps what was seen, and the first thing that was not as it should be. Undisturbed replies to the
same questions are made once and shared by all scenes.
"""

import asyncio
import random
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace

from swarm.bench.chaos.harness import Harness, HarnessPeer
from swarm.bench.chaos.replies import AskedPrompt, Observed, ask, make_questions, observe
from swarm.client.client import Client, ClientOptions
from swarm.client.generation import Generation
from swarm.errors import SwarmError

LOOK_EVERY_S = 0.001
PLANNED = ("slow", "leaving")  # moves before a loss
PROMPT_TOKENS, AT_TOKEN, MAX_TOKENS = 150, 50, 120  # a loss meets 200 tokens of history

Act = Callable[["ScenarioRun", Sequence[HarnessPeer]], Awaitable[None]]  # given the chain's peers


class ScenarioFailed(SwarmError):
    """A scenario did not go as it has to."""

    code = "scenario_failed"


@dataclass(slots=True)
class References:
    """Undisturbed replies, each made when it is first asked for."""

    harness: Harness
    _replies: dict[AskedPrompt, Observed] = field(default_factory=dict)

    async def of(self, questions: Sequence[AskedPrompt]) -> list[Observed]:
        """The undisturbed replies. To be called while nothing is disturbed. Raises `ScenarioFailed`."""
        if missing := [question for question in questions if question not in self._replies]:
            async with await self.harness.client(replace(self.harness.options, spares="off")) as client:
                replies = await asyncio.gather(*(observe(ask(client, each), each) for each in missing))
            for reply in replies:
                if reply.error is not None:
                    raise ScenarioFailed(f"The undisturbed reply failed: {reply.error}")
                self._replies[reply.question] = reply
        return [self._replies[question] for question in questions]


@dataclass(slots=True)
class ScenarioRun:
    """One run of one scenario. `client` is set while `open_client` holds."""

    harness: Harness
    references: References
    client: Client | None = None
    seen: list[Observed] = field(default_factory=list)
    wrong_tokens: bool = False
    disturbed: set[HarnessPeer] = field(default_factory=set)
    problems: list[str] = field(default_factory=list)
    noise_s: float = 0.0  # the longest gap that came about without any disturbance, doubled
    replay_s: float = 0.0  # what the undisturbed reply took to its first token: the cost of its history
    chance: random.Random = field(init=False)
    _compared: int = 0  # replies of client processes

    def __post_init__(self) -> None:
        self.chance = random.Random(self.harness.config.seed)  # noqa: S311 - repeatable on purpose

    async def join(self, options: ClientOptions | None = None, through: Sequence[str] = ()) -> Client:
        """Open the client of this run, in place of the one it had."""
        await self.leave()
        self.client = await self.harness.client(options, through)
        return self.client

    async def leave(self) -> None:
        """Close the client."""
        client, self.client = self.client, None
        if client is not None:
            await client.close()

    def questions(
        self, prompt_tokens: int = PROMPT_TOKENS, max_tokens: int = MAX_TOKENS
    ) -> tuple[AskedPrompt, AskedPrompt]:
        """A greedy question and a sampled one."""
        return make_questions(
            self.harness.config.vocab_size, prompt_tokens, max_tokens, self.harness.config.seed
        )

    async def ask_during(
        self, act: Act, questions: Sequence[AskedPrompt] | None = None, at_token: int = AT_TOKEN
    ) -> list[Observed]:
        """Ask the questions at once, act when the first reply has `at_token` tokens, compare all tokens.

        At token 0 the act begins while the prompt is under way.
        """
        questions = questions or self.questions()
        expected = await self.references.of(questions)
        self.noise_s = 2 * max(max(reply.gaps_s) for reply in expected)
        self.replay_s = max(reply.ttft_s for reply in expected)
        client = self.client or await self.join()
        generations = [ask(client, question) for question in questions]
        due = asyncio.Event()

        def count(tokens: int) -> None:
            if tokens == at_token:
                due.set()

        async def disturb() -> None:
            await (due.wait() if at_token else _has_chain(generations[0]))
            await asyncio.sleep(self.chance.uniform(0, 2) * expected[0].median_s)  # in the middle of a step
            await act(self, [self.harness.peer(hop.peer) for hop in generations[0].hops])

        disturbing = asyncio.create_task(disturb())
        replies = await asyncio.gather(
            *(
                observe(generation, each, count)
                for generation, each in zip(generations, questions, strict=True)
            )
        )
        if any(reply.error for reply in replies):
            disturbing.cancel()
        await asyncio.gather(disturbing, return_exceptions=any(reply.error for reply in replies))
        for reply, undisturbed in zip(replies, expected, strict=True):
            if not at_token:
                reply.expected_ttft_s = undisturbed.ttft_s
            self._take(reply, undisturbed.token_ids)
        return replies

    async def ask(self) -> list[Observed]:
        """Ask and compare without doing anything."""
        return await self.ask_during(_nothing)

    def require(self, condition: bool, problem: str) -> None:
        """Note a problem unless the condition holds."""
        if not condition:
            self.problems.append(problem)

    def require_stall_below(self, limit_s: float) -> None:
        """Note a problem when some reply stood still for longer."""
        longest = max((reply.stall_s for reply in self.seen), default=0.0)
        self.require(
            longest <= limit_s, f"a reply stood still for {longest:.2f} s, the bound is {limit_s:.2f} s"
        )

    def compare(self, reply: object, expected: object) -> None:
        """Compare what a client process said with what it should have."""
        self._compared += 1
        if reply != expected:
            self.wrong_tokens = True
            self.problems.append(f"the client said {reply!r:.200} instead of {expected!r:.200}")

    def fail(self, problem: str) -> None:
        """The scenario could not come to its end, so what was asked has not been answered."""
        self.problems.append(problem)
        self.wrong_tokens = True

    @property
    def sessions(self) -> int:
        """How many replies were compared."""
        return len(self.seen) + self._compared

    @property
    def recoveries(self) -> int:
        """How often replies went on over other hops."""
        return sum(len(reply.resumes) for reply in self.seen)

    @property
    def losses(self) -> int:
        """How many of them were not moves away from a slow or leaving peer, made while it still served."""
        return sum(resume.kind not in PLANNED for reply in self.seen for resume in reply.resumes)

    def _take(self, reply: Observed, expected: Sequence[int]) -> None:
        self.seen.append(reply)
        if reply.error is not None:
            self.problems.append(str(reply.error))
        if reply.token_ids != list(expected)[: len(reply.token_ids)] or reply.error is not None:
            self.wrong_tokens = True


async def until(condition: Callable[[], bool]) -> None:
    """Look again and again, often enough to act within one step."""
    while True:
        if condition():
            return
        await asyncio.sleep(LOOK_EVERY_S)


async def _has_chain(generation: Generation) -> None:
    await until(lambda: bool(generation.hops))


async def _nothing(run: ScenarioRun, chain: Sequence[HarnessPeer]) -> None:
    pass
