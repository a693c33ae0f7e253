"""Replies in the making, and those just made, which a reader may come back to.

A `LiveReply` keeps the events it has told. When its last reader goes it is suspended: the peers'
sessions are closed at once, the tokens are kept. A reader who comes back gets what was missed, and
the reply goes on with the very tokens it would have had, because each is a function of those before
and of the seed. A reply asked for with `background` runs to its end without a reader. Of a finished
reply nothing is kept but its events and its body.
"""

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

import msgspec
from msgspec import UNSET, UnsetType

from swarm.client.client import Client
from swarm.client.generation import Generation, Request
from swarm.errors import SwarmError
from swarm.gateway import sse
from swarm.gateway.admission import Slot
from swarm.gateway.choices import Choice
from swarm.gateway.dialect import Dialect, ReplyHeader
from swarm.gateway.metrics import GatewayMetrics
from swarm.gateway.refusal import Refusal, refusal_of
from swarm.gateway.schema import Provenance
from swarm.gateway.structured_output import Grammar

PING_S = 5.0
_OBJECTS_PER_EVENT = 4  # bytes that the choices of an unfinished reply hold for each byte of its events

_log = logging.getLogger(__name__)


def _nothing(choices: Sequence[Choice]) -> None:
    """Nobody wants to know."""


@dataclass(frozen=True, slots=True)
class ReplyPlan:
    """What a reply is, and how it is told."""

    head: ReplyHeader
    dialect: Dialect
    client: Client
    owner: str  # the key it belongs to
    grammar: Grammar | None = None
    include_swarm: bool = False
    background: bool = False
    deadline_s: float = 600.0
    on_end: Callable[[Sequence[Choice]], None] = _nothing  # told of a reply that is whole


@dataclass(slots=True, eq=False)
class LiveReply:
    """One reply: its choices, the events told so far, and the task that makes more."""

    plan: ReplyPlan
    choices: list[Choice]
    instruments: GatewayMetrics
    request_bytes: int = 0  # what it needs to go on
    failure: Refusal | None = None
    finished: bool = False
    idle_since: float | None = None  # no reader and nothing running
    _events: list[bytes] = field(default_factory=list)
    _event_bytes: int = 0
    _body: bytes = b""  # of a finished reply
    _readers: int = 0
    _driver: asyncio.Task[None] | None = None
    _news: asyncio.Event = field(default_factory=asyncio.Event)
    _stopping: bool = False
    _resumes_told: int = 0
    _failed_at_once: bool = False  # nothing else was told

    @property
    def id(self) -> str:
        return self.plan.head.id

    @property
    def size_bytes(self) -> int:
        """The memory it holds, about."""
        if self.finished:
            return self._event_bytes + len(self._body)
        return self.request_bytes + (1 + _OBJECTS_PER_EVENT) * self._event_bytes

    @property
    def running(self) -> bool:
        """Whether tokens are being made, and will be."""
        return self.busy and not self._stopping

    @property
    def busy(self) -> bool:
        """Whether its peers are still held; for a moment, this is so after it was stopped."""
        return self._driver is not None and not self._driver.done()

    def start(self, slot: Slot) -> None:
        """Make tokens, until the end or until nobody reads; the slot is given back then.

        Does nothing but give the slot back when another reader has started it meanwhile.
        """
        if self.finished or self.running:
            slot.release()
            return
        self._stopping = False
        self._driver = asyncio.create_task(self._drive(slot, self._driver), name=f"reply {self.id}")

    def cancel(self) -> None:
        """Stop for good."""
        self._stop()
        self._end(Refusal(409, "The reply was cancelled", reason="cancelled"))

    async def ended(self) -> None:
        """Wait until no token is made any more."""
        if self._driver is not None:
            await asyncio.wait({self._driver})

    @contextmanager
    def reading(self) -> Iterator[None]:
        """Hold the reply while it is read; the last reader to go suspends it."""
        self._readers += 1
        self.idle_since = None
        try:
            yield
        finally:
            self._readers -= 1
            if not self._readers:
                if not self.plan.background:
                    self._stop()
                self.idle_since = _now()

    async def first_event(self, within_s: float) -> None:
        """Wait until there is something to tell, but not longer. Raises the `Refusal` if it failed first."""
        if not self._events and not self.finished:
            await self._wait(within_s)
        if self.failure is not None and self._failed_at_once:
            raise self.failure

    async def events(self, after: int = -1) -> AsyncGenerator[bytes, None]:
        """Server-sent events from the one after number `after` on, with pings while nothing comes."""
        position = after + 1
        while True:
            if position < len(self._events):
                batch = self._events[position:]
                yield b"".join(
                    sse.with_id(self.id, position + place, lines) for place, lines in enumerate(batch)
                )
                position += len(batch)
            elif self.finished:
                return
            elif not await self._wait(PING_S):
                yield self.plan.dialect.ping

    async def whole(self) -> bytes:
        """The body of the finished reply. Raises the `Refusal` it ended with."""
        while not self.finished:
            await self._wait(PING_S)
        if self.failure is not None:
            raise self.failure
        return self._body

    def so_far(self) -> bytes:
        """The body as it is now, of a dialect that tells the state in it."""
        return self._body or self._write_body()

    def _stop(self) -> None:
        if self._driver is not None and self.running:
            self._stopping = True
            self._driver.cancel()

    async def _wait(self, timeout_s: float) -> bool:
        news = self._news
        try:
            async with asyncio.timeout(timeout_s):
                await news.wait()
        except TimeoutError:
            return False
        return True

    def _tell(self, *events: bytes) -> None:
        if self.finished or not events:  # cancelled, and a choice has not heard of it yet
            return
        self._events += events
        self._event_bytes += sum(map(len, events))
        news, self._news = self._news, asyncio.Event()
        news.set()

    async def _drive(self, slot: Slot, before: asyncio.Task[None] | None) -> None:
        """Run what is left of every choice. Ends in events, never in an exception."""
        try:
            if before is not None:
                await asyncio.wait({before})
            async with asyncio.timeout(self.plan.deadline_s), asyncio.TaskGroup() as group:
                for choice in self.choices:
                    if choice.finish_reason is None:
                        group.create_task(self._generate(choice))
            self._end(None)
        except TimeoutError:
            limit = f"{self.plan.deadline_s:.0f} s"
            self._end(
                Refusal(
                    504,
                    f"The reply took longer than {limit}",
                    "Ask for fewer tokens.",
                    reason="deadline_exceeded",
                )
            )
        except BaseExceptionGroup as group:
            self._end(first_refusal(group))
        finally:
            slot.release()
            self.idle_since = None if self._readers else _now()

    async def _generate(self, choice: Choice) -> None:
        plan, model = self.plan, self.plan.head.model
        generation = self._generation(choice)
        earlier, started_at = choice.resumes, _now()
        try:
            async for piece in generation:
                now, is_first = _now(), not choice.output_ids
                if is_first:
                    await _take_scores(choice, generation)
                    choice.ttft_s, choice.first_at = round(now - started_at, 4), now
                since_last_s = None if is_first or not choice.last_at else now - choice.last_at
                self.instruments.note_token(model, since_last_s, choice.ttft_s if is_first else None)
                choice.last_at = now
                choice.hops = generation.hops or choice.hops
                choice.resumes = earlier + generation.resumes
                self._tell(*plan.dialect.events(choice.push(piece)))
                self._tell_chain(is_first)
            if not choice.output_ids:
                await self._end_empty(choice, generation)
        finally:
            await generation.aclose()
        self.instruments.note_end(model, choice, _now() - started_at)

    async def _end_empty(self, choice: Choice, generation: Generation) -> None:
        """No token was asked for."""
        choice.hops, choice.resumes = generation.reply.hops, generation.reply.resumes
        await _take_scores(choice, generation)
        news = choice.end_empty(generation.reply.finish_reason)
        self._tell(*self.plan.dialect.events(news))

    def _generation(self, choice: Choice) -> Generation:
        plan = self.plan
        request: Request = replace(choice.request, output_ids=tuple(choice.output_ids))
        if choice.output_ids:  # the prompt is scored
            request = replace(request, prompt_logprobs=None)
        if plan.grammar is not None:
            request = replace(request, allowed=plan.grammar.follow())
        return plan.client.begin(request)

    def _tell_chain(self, is_first: bool) -> None:
        """Tell those who asked who answers: with the first token, and whenever a peer was replaced."""
        resumes = sum(len(choice.resumes) for choice in self.choices)
        if self.plan.include_swarm and (is_first or resumes > self._resumes_told):
            self._tell(*self.plan.dialect.aside(self._provenance()))
        self._resumes_told = resumes

    def _end(self, failure: Refusal | None) -> None:
        """Tell the last events, once."""
        if self.finished:
            return
        plan, self.failure = self.plan, failure
        if failure is not None:
            self._failed_at_once = not self._events
            self.instruments.note_failure(plan.head.model, failure.reason or failure.code)
            last = plan.dialect.failed(failure, self.choices)
        else:
            last = plan.dialect.last(self.choices, self._told_provenance())
            plan.on_end(self.choices)
        if failure is None or plan.dialect.tells_state:
            self._body = self._write_body()
        self._tell(*last)
        self.finished = True
        self.plan, self.choices = replace(plan, grammar=None, on_end=_nothing), []

    def _write_body(self) -> bytes:
        return msgspec.json.encode(self.plan.dialect.whole(self.choices, self._told_provenance()))

    def _told_provenance(self) -> Provenance | UnsetType:
        return self._provenance() if self.plan.include_swarm else UNSET

    def _provenance(self) -> Provenance:
        model = self.plan.client.model
        return Provenance(
            model=model.name,
            manifest=model.manifest,
            audited=False,
            choices=[choice.provenance() for choice in self.choices],
        )


async def _take_scores(choice: Choice, generation: Generation) -> None:
    if choice.prompt_scores is not None:
        await asyncio.to_thread(choice.take_scores, generation.prompt_logprobs)


def first_refusal(group: BaseExceptionGroup[BaseException]) -> Refusal:
    """The answer for choices that failed together."""
    error: BaseException = group
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    if isinstance(error, SwarmError):
        return refusal_of(error)
    # the edge of the program: a mistake of ours must end this reply only, and be seen
    _log.error("A reply failed", exc_info=error)
    return Refusal(
        500, "The gateway made a mistake", "Tell its operator the request id.", reason="internal_error"
    )


def _now() -> float:
    return asyncio.get_running_loop().time()
