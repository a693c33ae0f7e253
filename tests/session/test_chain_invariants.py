"""Whatever happens, in whatever order: no row is lost, none counts twice, and what is opened is closed.

The machine is driven by peers that are simulated down to the rows: what comes out of a hop says which rows
it holds, so a result is right only when every hop of its chain held every row once, in order.
"""

import itertools

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from swarm.errors import HopLost, NoRoute
from swarm.session import ledger
from swarm.session.actions import (
    CancelOpening,
    CloseHop,
    FailCall,
    OpenChain,
    OpenSpare,
    RecallRows,
    ReturnResult,
    SendStep,
    StopStep,
)
from swarm.session.chain import Chain
from swarm.session.events import (
    Answered,
    CallCancelled,
    EndWanted,
    Event,
    ExtendWanted,
    HopsOpened,
    Late,
    LeavingSoon,
    Lost,
    NewHop,
    OpenFailed,
    RewindWanted,
    Ticked,
)
from swarm.session.ledger import Ledger
from swarm.session.plan import Numerics, PlannedHop
from swarm.session.rules import ChainRules
from swarm.values import PeerId, Span

BLOCKS, PATIENCE_S = Span(0, 4), 5.0
Row = tuple[int, tuple[int, ...]]  # the block it is at, and the tokens it comes from

some_tokens = st.sampled_from([1, 2, 9])
chance = st.randoms(use_true_random=False)


def cut(span: Span, random) -> list[Span]:
    """Some hops that cover a span."""
    edges = [span.start, *(block for block in list(span)[1:] if random.random() < 0.4), span.end]
    return [Span(start, end) for start, end in itertools.pairwise(edges)]


class ChainUnderTrouble(RuleBasedStateMachine):
    """The driver and the peers of one chain."""

    def __init__(self) -> None:
        super().__init__()
        self.patch = pytest.MonkeyPatch()
        self.patch.setattr(ledger, "CHUNK_TOKENS", 4)  # so that few rows are many steps
        rules = ChainRules(BLOCKS, PATIENCE_S, "exact", "always")
        self.chain, self.now = Chain(rules, lambda: 0.5), 0.0
        self.numbers = iter(range(1, 10**9))
        self.tokens: list[int] = []  # of the conversation
        self.rows: dict[Ledger, dict[int, Row]] = {}
        self.spans: dict[int, Span] = {}  # of all hops that are open
        self.caches: dict[int, list[Row]] = {}
        self.left: list[tuple[Span, list[Row]]] = []  # what lost peers still hold
        self.out: dict[int, SendStep] = {}
        self.openings: dict[int, OpenChain | OpenSpare] = {}
        self.calling = False
        self.wanted = 0  # results of the last rows

    # The driver

    def tell(self, event: Event) -> None:  # noqa: C901 - a table
        for action in self.chain.handle(event, self.now):
            match action:
                case SendStep():
                    self.send(action)
                case StopStep():
                    del self.out[action.hop]
                case OpenChain():
                    assert not any(isinstance(other, OpenSpare) for other in self.openings.values())
                    self.openings[action.opening] = action
                case OpenSpare():
                    assert not any(isinstance(other, OpenChain) for other in self.openings.values())
                    self.openings[action.opening] = action
                case CancelOpening():
                    del self.openings[action.opening]
                case CloseHop():
                    assert action.hop not in self.out
                    self.left.append((self.spans.pop(action.hop), self.caches.pop(action.hop)))
                case RecallRows():
                    self.rows[action.ledger] = {at: (0, (self.tokens[at],)) for at in range(action.end)}
                case ReturnResult():
                    self.calling = False
                    assert self.results() == [
                        (BLOCKS.end, tuple(self.tokens[: at + 1]))
                        for at in range(len(self.tokens) - self.wanted, len(self.tokens))
                    ]
                case FailCall():
                    self.calling = False
                    del self.tokens[self.chain.position :]

    def send(self, step: SendStep) -> None:
        cache = self.caches[step.hop]
        assert step.hop not in self.out
        assert step.start <= len(cache), "a row is missing"
        assert step.start < step.end
        rows = self.rows[step.ledger]
        cache[step.start :] = [rows[at] for at in range(step.start, step.end)]
        self.out[step.hop] = step

    def answer(self, number: int) -> None:
        step = self.out.pop(number)
        for at in range(step.end - step.reply_tokens, step.end):
            assert step.into is not None
            self.rows.setdefault(step.into, {})[at] = self.passed(number, at)
        self.tell(Answered(step))

    def results(self) -> list[Row]:
        """What came out of the last hop and is told."""
        results = self.chain.results
        return [self.rows[results][at] for at in range(results.start, results.end)]

    def passed(self, number: int, at: int) -> Row:
        """What comes out of a hop at a position: it depends on all that the hop holds up to there."""
        span, held = self.spans[number], self.caches[number][: at + 1]
        assert all(block == span.start for block, _ in held)
        if span.start == 0:
            return span.end, tuple(tokens[0] for _, tokens in held)
        assert all(len(tokens) == index + 1 for index, (_, tokens) in enumerate(held))
        assert all(held[-1][1][: len(tokens)] == tokens for _, tokens in held)
        return span.end, held[-1][1]

    def open(self, spans: list[Span], held: dict[int, tuple[int, list[Row]]]) -> tuple[NewHop, ...]:
        """Hops on the spans; by its first block, what a peer that is found again still holds."""
        new = []
        for span in spans:
            number, (position, cache) = next(self.numbers), held.get(span.start, (0, []))
            self.spans[number], self.caches[number] = span, list(cache)
            planned = PlannedHop(PeerId(str(number)), span, Numerics("bf16", "none"), 1.0)
            new.append(NewHop(number, planned, position))
        return tuple(new)

    def come_about(self, opening: int, random) -> None:
        action = self.openings.pop(opening)
        held = {}
        if isinstance(action, OpenChain):
            spans = cut(action.span, random)
            for number, position in action.replaces.items():
                span = self.spans[number]
                if span in spans and random.random() < 0.5:
                    held[span.start] = (position, self.caches[number])
        else:
            spans = cut(self.spans[action.hop], random)
        self.tell(HopsOpened(opening, self.open(spans, held)))

    # What may happen

    @precondition(lambda self: not self.calling)
    @rule(count=some_tokens, random=chance)
    def extend(self, count: int, random) -> None:
        intake = self.rows.setdefault(self.chain.intake, {})
        first = len(self.tokens)
        self.tokens += [next(self.numbers) for _ in range(count)]
        intake |= {at: (0, (self.tokens[at],)) for at in range(first, first + count)}
        self.calling, self.wanted = True, random.choice([1, count])
        self.tell(ExtendWanted(count, self.wanted))

    @precondition(lambda self: self.out)
    @rule(random=chance)
    def a_hop_answers(self, random) -> None:
        self.answer(random.choice(sorted(self.out)))

    @precondition(lambda self: self.out)
    @rule()
    def all_answer(self) -> None:
        while self.out:
            self.answer(min(self.out))

    @precondition(lambda self: self.openings)
    @rule(random=chance)
    def an_opening_comes_about(self, random) -> None:
        self.come_about(random.choice(sorted(self.openings)), random)

    @precondition(lambda self: self.openings)
    @rule(random=chance)
    def an_opening_fails(self, random) -> None:
        opening = random.choice(sorted(self.openings))
        del self.openings[opening]
        self.tell(OpenFailed(opening, NoRoute("Nobody is there")))

    @precondition(lambda self: self.spans)
    @rule(random=chance)
    def a_hop_is_lost(self, random) -> None:
        number = random.choice(sorted(self.spans))
        self.out.pop(number, None)
        self.tell(Lost(number, HopLost(str(number), "broken", "it is gone")))

    @precondition(lambda self: self.spans)
    @rule(random=chance, event=st.sampled_from([Late, LeavingSoon]))
    def a_hop_is_noticed(self, random, event) -> None:
        self.tell(event(random.choice(sorted(self.spans))))

    @rule(seconds=st.sampled_from([0.5, 6.0]))
    def time_passes(self, seconds: float) -> None:
        self.now += seconds
        self.tell(Ticked(unix_now=1e9 + self.now))

    @precondition(lambda self: self.calling)
    @rule()
    def the_call_is_cancelled(self) -> None:
        self.calling = False
        self.tell(CallCancelled())
        del self.tokens[self.chain.position :]

    @precondition(lambda self: not self.calling and self.tokens)
    @rule(random=chance)
    def the_conversation_is_edited(self, random) -> None:
        position = random.randrange(len(self.tokens))
        del self.tokens[position:]
        self.tell(RewindWanted(position))

    # What always holds

    @invariant()
    def every_open_hop_has_one_owner(self) -> None:
        owned = [hop.id for hop in (*self.chain.hops, *self.chain.spares.hops)]
        assert len(owned) == len(set(owned))
        assert set(owned) == set(self.spans)

    @invariant()
    def the_chain_covers_the_blocks(self) -> None:
        covered = [block for hop in self.chain.hops for block in hop.planned.span]
        assert covered in ([], list(BLOCKS))

    @invariant()
    def the_chain_holds_the_conversation(self) -> None:
        assert self.calling or self.chain.position == len(self.tokens)

    @invariant()
    def somebody_is_waited_for_while_a_call_is_under_way(self) -> None:
        assert not self.calling or self.out or self.openings

    def teardown(self) -> None:
        """In the end all goes well, and the call gets its result; then the session is ended."""
        self.patch.undo()
        for _ in range(10_000):
            if not self.calling:
                break
            if self.openings:
                number = min(self.openings)
                action = self.openings.pop(number)
                span = action.span if isinstance(action, OpenChain) else self.spans[action.hop]
                self.tell(HopsOpened(number, self.open([span], {})))
            else:
                self.answer(min(self.out))
        assert not self.calling
        self.tell(EndWanted())
        assert (self.spans, self.out, self.openings) == ({}, {}, {})


ChainUnderTrouble.TestCase.settings = settings(max_examples=60, stateful_step_count=60, deadline=None)
TestChainUnderTrouble = ChainUnderTrouble.TestCase
