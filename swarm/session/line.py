"""A line of hops, each fed from its ledger: the one way in which a chain, a replay and a spare get on.

A hop is sent what it has not seen of its ledger, and what comes out goes into the next ledger. A hop
that takes over a span has seen nothing, so it is sent everything; there is nothing else to a replay.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from swarm.errors import HopLost, LossKind
from swarm.session.actions import SendStep, StopStep
from swarm.session.events import NewHop
from swarm.session.ledger import Ledger
from swarm.session.plan import PlannedHop


@dataclass(slots=True)
class Resume:
    """One loss and what it cost. `stall_s` is None until the conversation goes on."""

    at_token: int
    lost_peer: str
    kind: LossKind
    reason: str
    started_at: float
    replayed_tokens: int = 0
    exact: bool = False  # replayed step by step
    stall_s: float | None = None

    def end(self, now: float) -> None:
        """The conversation goes on."""
        if self.stall_s is None:
            self.stall_s = now - self.started_at


@dataclass(slots=True, eq=False)
class TrackedHop:
    """One hop as the chain knows it: where it stands, what is sent to it, and what was seen of it."""

    id: int
    planned: PlannedHop
    ledger: Ledger
    position: int  # how many tokens it holds for certain
    step: SendStep | None = None  # the one that is out
    exact: bool = False  # whether steps are repeated as they were first sent
    lost: HopLost | None = None
    resume: Resume | None = None  # what the loss is counted as
    leaving: bool = False
    slow: bool = False
    late: bool = False
    no_spare_before: float = 0.0

    @staticmethod
    def of(new: NewHop, ledger: Ledger) -> "TrackedHop":
        """A hop that was just opened."""
        return TrackedHop(new.id, new.planned, ledger, new.position)

    @property
    def start(self) -> int:
        """The first of its blocks."""
        return self.planned.span.start

    def settle(self) -> None:
        """Its step is out no longer."""
        self.step, self.late = None, False


def next_steps(line: Sequence[TrackedHop], results: Ledger | None) -> Iterator[SendStep]:
    """The next step of every hop that has not seen all of its ledger and has none out.

    Behind the last hop stand the `results`, which begin where they are wanted; None: they are not.
    """
    for hop, following in pairwise([*line, None]):
        if hop is None or hop.step is not None or hop.position == hop.ledger.end:
            continue
        end = hop.ledger.next_end(hop.position, hop.exact)
        into = following.ledger if following is not None else results
        reply_tokens = max(0, end - max(into.end, hop.position)) if into is not None else 0
        hop.step = SendStep(hop.id, hop.ledger, hop.position, end, reply_tokens, into)
        yield hop.step


def take_answer(hop: TrackedHop, step: SendStep) -> None:
    """The hop has taken its step, and what came out is known."""
    hop.settle()
    hop.position = step.end
    if step.into is not None and step.reply_tokens:
        step.into.append(step.reply_tokens)
        step.into.mark_step(step.into.end)  # the shape in which its rows were computed


def take_back_unanswered(
    line: Sequence[TrackedHop], position: int, results_known: int, is_exact: Callable[[int], bool]
) -> None:
    """Have every hop stand where its results are known, so that the rest up to `position` is sent again.

    Those of the last hop are known up to `results_known`.
    """
    known = results_known
    for hop in reversed(line):
        answered = min(known, hop.ledger.end)
        if hop.position > answered:
            exact = is_exact(position - answered)
            hop.position = hop.ledger.step_start(answered) if exact else answered
        known = hop.ledger.end


def stop_steps(line: Sequence[TrackedHop]) -> Iterator[StopStep]:
    """Let go of all that is out; every hop stands where it stood before."""
    for hop in line:
        if hop.step is not None:
            hop.settle()
            yield StopStep(hop.id)
