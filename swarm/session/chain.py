"""The chain of one session as a machine without I/O: events in, actions out; no clock, no loop, no rows.

Holds which hops serve, in order, what each has seen of its ledger, and the call under way. Decides what
is sent next (`_go_on`), what takes the place of a hop that is lost (`_repair`) or should be left
(`_move_in_time`), and when a call fails. Nothing is taken for known before its answer is there: whatever a
loss, a promotion or a cancelled call leaves behind, positions say what is certain, and the rest is sent
again. A hop has at most one step out; while hops are lost, the others first come to rest.
"""

import itertools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Literal

from swarm.errors import SwarmError
from swarm.session import actions, events
from swarm.session.actions import Action
from swarm.session.events import Event
from swarm.session.ledger import Ledger
from swarm.session.line import Resume, TrackedHop, next_steps, stop_steps, take_answer, take_back_unanswered
from swarm.session.plan import Numerics, common_numerics
from swarm.session.rules import ChainRules
from swarm.session.spares import Look, Spares
from swarm.values import Span

FIRST_RETRY_S, LONGEST_RETRY_S = 0.05, 1.0
CLOSE_WAIT_S = 1.0  # for peers to free a conversation that ends
CAUGHT_UP_TOKENS = 2  # a spare that lags no further takes over from a hop that is to be left


@dataclass(slots=True)
class _Extension:
    """The call under way."""

    started_at: float
    stuck_since: float | None = None  # the first loss since any hop got further
    furthest: dict[int, int] = field(default_factory=dict)  # by first block: how far any hop of it has come


@dataclass(slots=True)
class _Opening:
    """Hops are opened over a span, in place of neighbouring ones that are lost; in place of none at first."""

    id: int
    span: Span
    lost: Sequence[TrackedHop]
    ends_at: float
    retry_s: float = FIRST_RETRY_S


class Chain:
    """Events go into `handle`, which gives actions. `jitter` gives a chance in [0, 1) each time."""

    def __init__(self, rules: ChainRules, jitter: Callable[[], float]) -> None:
        self.jitter = jitter
        self.hops: list[TrackedHop] = []
        self.resumes: list[Resume] = []
        self.intake = Ledger()  # of the first hop: what the client sends
        self.spares = Spares(rules.spares, self._is_exact)
        self._rules = rules
        self._numerics: Numerics | None = None  # what the whole chain computes in, if it is the same
        self._call: _Extension | None = None
        self._opening: _Opening | None = None
        self.results = Ledger()  # of the last hop, from where they are wanted
        self._numbers = itertools.count(1)
        self._actions: list[Action] = []
        self._now = 0.0

    @property
    def position(self) -> int:
        """How many tokens the conversation holds."""
        return self.intake.end if self.hops else 0

    @property
    def held(self) -> int:
        """How many tokens every hop holds for certain."""
        return min((hop.position for hop in self.hops), default=0)

    def handle(self, event: Event, now: float) -> list[Action]:  # noqa: C901 - a table
        """Take in what is wanted or was seen at a time, in seconds; gives what is to be done, in order."""
        self._now = now
        match event:
            case events.ExtendWanted():
                self._extend(event)
            case events.Answered():
                self._answered(event.step)
            case events.HopsOpened():
                self._opened(event)
            case events.OpenFailed():
                self._open_failed(event)
            case events.Lost():
                self._lost(event)
            case events.LeavingSoon() | events.Slow() | events.Late():
                self._noticed(event)
            case events.Ticked() if self._opening is None:
                look = Look(now, event.unix_now, event.records, self.position, len(self.resumes))
                self._do(self.spares.look(self.hops, look, lambda: next(self._numbers)))
            case events.CallCancelled():
                self._stop()
            case events.RewindWanted():
                self._rewind(event.position)
            case events.TakenUp():
                self._take_up(event)
            case events.EndWanted():
                self._end(event.keep)
        self._go_on()
        wanted, self._actions = self._actions, []
        return wanted

    def _go_on(self) -> None:
        """What is to be done next, as all stands now."""
        if self._call is not None and self._is_done():
            self._finish()
        if self._call is None:
            self._move_in_time()
        elif self._opening is None:
            self._give_up_late()
            lost = [hop for hop in self.hops if hop.lost is not None]
            if not lost or (self._is_at_rest() and self._repair(self._call, lost)):
                self._do(next_steps(self.hops, self.results))
        self._do(self.spares.feed())

    # A call and its end

    def _extend(self, event: events.ExtendWanted) -> None:
        self._call = _Extension(self._now)
        self.intake.append(event.tokens)
        self.results = Ledger(self.intake.end - event.reply_tokens)
        if self.hops:
            self._set_out()
        else:
            self._open(self._rules.blocks, [])

    def _is_done(self) -> bool:
        ends = {self.results.end, *(hop.position for hop in self.hops)}
        return bool(self.hops) and ends == {self.position}

    def _finish(self) -> None:
        for resume in self.resumes:
            resume.end(self._now)
        self._call = None
        self._do([actions.ReturnResult()])
        self.spares.wake()

    def _fail(self, span: Span, error: SwarmError) -> None:
        """Give the call up. The rows are kept where there is a chain: the conversation can go on later."""
        self._call = self._opening = None
        self._forget_unopened()
        self._do([actions.FailCall(span, error)])

    def _stop(self) -> None:
        """The call is cancelled: nothing is out for it any more, and what is certain stays so."""
        if self._opening is not None:
            self._do([actions.CancelOpening(self._opening.id)])
        self._do(stop_steps(self.hops))
        self._call = self._opening = None
        self._forget_unopened()

    def _forget_unopened(self) -> None:
        if not self.hops:
            self.intake.truncate(0)

    def _set_out(self) -> None:
        """The hops are to catch up with the conversation: from here on, in steps or in chunks."""
        for hop in self.hops:
            hop.exact = self._repeats(hop)

    def _answered(self, step: actions.SendStep) -> None:
        hop = self._find(step.hop)
        if hop is None or hop.step is not step:
            return
        take_answer(hop, step)
        if hop not in self.hops:
            return  # it is a spare
        hop.ledger.mark_step(step.end)
        if self._call is not None and hop.position > self._call.furthest.get(hop.start, -1):
            self._call.furthest[hop.start], self._call.stuck_since = hop.position, None

    # Losses

    def _lost(self, event: events.Lost) -> None:
        hop = next((hop for hop in self.hops if hop.id == event.hop), None)
        if hop is None:
            self._do(self.spares.lost(event.hop, self._now))
        elif hop.lost is None:
            hop.settle()
            hop.lost = event.error

    def _repair(self, call: _Extension, lost: Sequence[TrackedHop]) -> bool:
        """Make losses good: by a spare where there is one, else by opening others. Says whether all are.

        The call fails when what takes the place of lost hops gets no further for as long as the patience
        lasts. How long a loss went unnoticed does not count.
        """
        new = [hop for hop in lost if hop.resume is None]
        for hop in new:
            self._note_loss(hop, call.started_at)
        if new:
            call.stuck_since = call.stuck_since if call.stuck_since is not None else self._now
            if self._now > call.stuck_since + self._rules.patience_s and new[0].lost is not None:
                self._fail(new[0].planned.span, new[0].lost)
                return False
        rest = [hop for hop in lost if not self._promote(hop)]
        if rest:
            run = self._first_run(rest)
            self._open(Span(run[0].start, run[-1].planned.span.end), run)
            return False
        self._set_out()
        return True

    def _note_loss(self, hop: TrackedHop, started_at: float) -> None:
        if hop.lost is not None:
            hop.resume = Resume(self.position, hop.lost.peer, hop.lost.kind, hop.lost.reason, started_at)
            self.resumes.append(hop.resume)
            self._do([actions.ReportLoss(hop.id, hop.lost)])

    def _promote(self, hop: TrackedHop) -> bool:
        """Put the hop's spare in its place, if it has one."""
        spare = self.spares.take(hop)
        if spare is None:
            return False
        lag, exact = spare.lag, spare.exact and self._is_exact(spare.lag)
        self._do(stop_steps(spare.hops))
        self._do(actions.PromoteHop(each.id) for each in spare.hops)
        self._put([hop], spare.hops)
        self._note_replay([hop], lag, exact)
        return True

    def _first_run(self, lost: Sequence[TrackedHop]) -> list[TrackedHop]:
        """The first of the lost hops, with those that stand side by side behind it."""
        behind = self.hops[self.hops.index(lost[0]) :]
        return list(itertools.takewhile(lambda hop: hop in lost, behind))

    def _put(self, old: Sequence[TrackedHop], new: Sequence[TrackedHop]) -> None:
        """Put hops where neighbouring ones were, which are closed; where none were, it is the first chain."""
        first = self.hops.index(old[0]) if old else 0
        self.hops[first : first + len(old)] = new
        # it may know more, or less
        take_back_unanswered(self.hops, self.position, self.results.end, self._is_exact)
        for hop in old:
            self._do(self.spares.close(hop))
            self._do([actions.CloseHop(hop.id)])

    def _begin_again(self) -> None:
        """Rebuild every ledger from the tokens, because what a new hop needs was kept by nobody."""
        end = self.position
        self._do(self.spares.close_all())
        for hop in self.hops:
            hop.ledger, hop.position = Ledger(), 0
        self._recall(self.hops[0].ledger, end)

    def _recall(self, intake: Ledger, end: int) -> None:
        self.intake = intake
        intake.recall(end)
        self._do([actions.RecallRows(intake, end)])

    def _note_replay(self, hops: Sequence[TrackedHop], tokens: int, exact: bool) -> None:
        for hop in hops:
            if hop.resume is not None:
                hop.resume.replayed_tokens, hop.resume.exact = tokens, exact

    # Openings

    def _open(self, span: Span, lost: Sequence[TrackedHop]) -> None:
        self._do(self.spares.cancel_openings())
        self._opening = _Opening(next(self._numbers), span, lost, self._now + self._rules.patience_s)
        self._do([actions.OpenChain(self._opening.id, span, {hop.id: hop.position for hop in lost})])

    def _opened(self, event: events.HopsOpened) -> None:
        opening = self._opening
        if opening is None or event.opening != opening.id:
            self._do(self.spares.opened(event, self.hops))
            return
        self._opening = None
        if not self.hops:
            self._numerics = common_numerics(new.planned for new in event.hops)
        ledgers = {hop.start: hop.ledger for hop in opening.lost} or {opening.span.start: self.intake}
        hops = [TrackedHop.of(new, ledgers.get(new.planned.span.start) or Ledger()) for new in event.hops]
        self._put(opening.lost, hops)
        if any(hop.position < hop.ledger.start for hop in self.hops):
            self._begin_again()
        tokens = self.position - min(hop.position for hop in hops)
        self._note_replay(opening.lost, tokens, all(self._repeats(hop) for hop in hops))
        self._set_out()

    def _open_failed(self, event: events.OpenFailed) -> None:
        """Open again after a while, longer each time, until the patience ends."""
        opening = self._opening
        if opening is None or event.opening != opening.id:
            self.spares.open_failed(event.opening, self._now)
            return
        delay_s = opening.retry_s * (0.5 + self.jitter() / 2)
        opening.retry_s = min(LONGEST_RETRY_S, 2 * opening.retry_s)
        if self._now + delay_s > opening.ends_at:
            self._fail(opening.span, event.error)
            return
        replaces = {hop.id: hop.position for hop in opening.lost}
        self._do([actions.OpenChain(opening.id, opening.span, replaces, delay_s, event.error)])

    # Leaving a hop before it is lost

    def _noticed(self, event: events.LeavingSoon | events.Slow | events.Late) -> None:
        hop = next((hop for hop in self.hops if hop.id == event.hop), None)
        if hop is None:
            return
        match event:
            case events.LeavingSoon():
                hop.leaving = True
            case events.Slow():
                hop.slow = True
            case events.Late():
                hop.late = hop.step is not None

    def _move_in_time(self) -> None:
        """While no call is under way, leave every hop that is to be left and whose spare has caught up."""
        for hop in list(self.hops):
            spare = self.spares.of(hop)
            if not (hop.leaving or hop.slow) or hop.lost is not None or spare is None:
                continue
            if spare.lag <= CAUGHT_UP_TOKENS:
                kind: Literal["leaving", "slow"] = "leaving" if hop.leaving else "slow"
                hop.resume = Resume(self.position, hop.planned.peer, kind, f"it is {kind}", self._now)
                self.resumes.append(hop.resume)
                self._promote(hop)
                hop.resume.end(self._now)

    def _give_up_late(self) -> None:
        """A hop that is late is given up when its spare knows all that was sent to it."""
        for hop in self.hops:
            spare = self.spares.of(hop)
            if hop.late and spare is not None and spare.lag == 0:
                hop.late = False
                self._do([actions.GiveUpHop(hop.id, "it answers far too late")])

    # What else may be wanted

    def _rewind(self, position: int) -> None:
        self._do(self.spares.rewind(position))
        for hop in self.hops:
            hop.ledger.truncate(position)
            hop.position = min(hop.position, position)
        self.results.truncate(position)

    def _take_up(self, event: events.TakenUp) -> None:
        """Go on with what the peers still hold; the first ledger is filled again, so it can have a spare."""
        held = min(event.end, *(new.position for new in event.hops))
        self._numerics = common_numerics(new.planned for new in event.hops)
        self.hops = [TrackedHop.of(new, Ledger(held)) for new in event.hops]
        for hop in self.hops:
            hop.position = held
        self.hops[0].ledger = Ledger()
        self._recall(self.hops[0].ledger, held)
        self.results = Ledger(held)

    def _end(self, keep: bool) -> None:
        self._stop()
        self._do(self.spares.cancel_openings())
        self._do(actions.CloseHop(hop.id, 0.0 if keep else CLOSE_WAIT_S, keep) for hop in self.hops)
        self._do(self.spares.close_all(0.0 if keep else CLOSE_WAIT_S))
        self.hops, self.intake, self.results = [], Ledger(), Ledger()

    # Small questions

    def _find(self, number: int) -> TrackedHop | None:
        return next((hop for hop in (*self.hops, *self.spares.hops) if hop.id == number), None)

    def _is_at_rest(self) -> bool:
        return all(hop.step is None for hop in self.hops)

    def _is_exact(self, tokens: int) -> bool:
        return self._rules.is_exact(tokens, self._numerics)

    def _repeats(self, hop: TrackedHop) -> bool:
        """Whether what the hop has not seen is sent in the steps it was sent in at first."""
        return self._is_exact(self.position - hop.position) and hop.ledger.knows_steps_since(hop.position)

    def _do(self, wanted: Iterable[Action]) -> None:
        self._actions.extend(wanted)
