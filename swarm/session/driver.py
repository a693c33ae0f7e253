"""A session: one conversation's hidden states on their way through a chain of hops.

`Session` owns the streams, the rows, the timers and the tasks, and decides nothing: what is seen goes as
events into `session/chain`, and the actions that come back are carried out, each in a task of its own that
tells how it ended. What is done to one hop is done in the order in which it was decided.
"""

import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import count
from typing import Any
from weakref import WeakKeyDictionary

import torch

from swarm.errors import HopLost, NetworkError, NoRoute, ProtocolError, SessionRefused, SwarmError
from swarm.session import actions, events
from swarm.session.actions import Action
from swarm.session.chain import Chain
from swarm.session.events import Event, NewHop
from swarm.session.hop import Hop
from swarm.session.ledger import Ledger
from swarm.session.line import Resume
from swarm.session.opener import Opener, SessionState
from swarm.session.plan import PlannedHop
from swarm.session.rows import Rows
from swarm.session.rules import is_slow
from swarm.wire.tensors import CODECS

LOOK_EVERY_S = 0.5
COMPARE_EVERY_S = 5.0
STEPS_TO_JUDGE = 12

_logger = logging.getLogger(__name__)


@dataclass(slots=True)
class _OpenHop:
    """A hop, and the last thing that is being done to it."""

    hop: Hop
    task: asyncio.Task[None] | None = None


class Session:
    """The chain of one conversation. `extend` adds rows and gives the results of the last ones.

    Rows are [tokens, hidden]. Calls wait for each other. Cancelling a call leaves the session whole.
    `recall` gives the rows from position 0 to another again, for the case that peers lose what only
    they still held. `unix_now` is the wall clock, as records have it.
    """

    def __init__(
        self,
        opener: Opener,
        chain: Chain,
        recall: Callable[[int], torch.Tensor],
        unix_now: Callable[[], float],
    ) -> None:
        self.opener = opener
        self.chain = chain
        self._recall = recall
        self._unix_now = unix_now
        self._hops: dict[int, _OpenHop] = {}
        self._rows: WeakKeyDictionary[Ledger, Rows] = WeakKeyDictionary()
        self._numbers = count(1)  # of hops
        self._events: deque[Event] = deque()
        self._is_acting = False
        self._tasks: set[asyncio.Task[None]] = set()
        self._openings: dict[int, asyncio.Task[None]] = {}
        self._watching: asyncio.Task[None] | None = None
        self._compared_at = 0.0
        self._turn = asyncio.Lock()
        self._call: asyncio.Future[None] | None = None
        self._state: SessionState | None = None

    @property
    def position(self) -> int:
        """How many tokens the conversation holds."""
        return self.chain.position

    @property
    def held(self) -> int:
        """How many tokens every hop holds for certain."""
        return self.chain.held

    @property
    def hops(self) -> tuple[Hop, ...]:
        """The hops of the chain as it is now."""
        return tuple(self._hops[hop.id].hop for hop in self.chain.hops)

    @property
    def resumes(self) -> Sequence[Resume]:
        """The losses so far, and what each cost."""
        return self.chain.resumes

    async def extend(self, rows: torch.Tensor, reply_tokens: int = 1) -> torch.Tensor:
        """Push rows [tokens, hidden] through all blocks; gives the hidden states of the last `reply_tokens`.

        Survives the loss of any hops. Raises `NoRoute` when some blocks are on no live peer for
        longer than the patience; the rows are kept, and the conversation can go on later.
        """
        if not 1 <= reply_tokens <= len(rows):
            raise ValueError(f"{len(rows)} rows have no {reply_tokens} results")
        async with self._turn:
            if self._watching is None:
                self._watching = self._spawn(self._watch())
            intake = self.chain.intake
            self._rows_of(intake).put(intake.end, rows)
            self._call = asyncio.get_running_loop().create_future()
            try:
                self._tell(events.ExtendWanted(len(rows), reply_tokens))
                await self._call
            except BaseException:
                await self._cancel_call()
                raise
            finally:
                self._call = None
            results = self.chain.results
            return self._rows_of(results).get(results.start, results.end)

    async def rewind(self, position: int) -> None:
        """Forget everything from `position` on."""
        async with self._turn:
            self._tell(events.RewindWanted(position))

    async def take_up(self, state: SessionState, end: int) -> int:
        """Find again what peers still hold of an earlier process's session, up to position `end`.

        Gives the position from which on rows have to be sent. Raises what `Opener.reopen` raises.
        """
        async with self._turn:
            self._tell(events.TakenUp(self._adopt(await self.opener.reopen(state)), end))
            return self.position

    def export(self) -> SessionState | None:
        """Where the session stands, for `take_up` by a later process; None before there is a chain.

        The same object as long as nothing has changed.
        """
        if not self.chain.hops:
            return None
        settings, hops = self.opener.settings, self.hops
        rewinds = tuple(hop.rewinds for hop in hops)
        planned = tuple(hop.planned for hop in hops)
        state = self._state
        if state is None or (state.epoch, state.rewinds, state.hops) != (settings.epoch, rewinds, planned):
            key = settings.key.seed.hex()
            self._state = SessionState(key, settings.epoch, settings.codec, planned, rewinds)
        return self._state

    async def close(self) -> None:
        """Free the session on every peer."""
        await self._end(events.EndWanted())

    async def leave(self) -> None:
        """End the streams only: the peers keep the session for a while, for `take_up`."""
        await self._end(events.EndWanted(keep=True))

    async def _end(self, event: events.EndWanted) -> None:
        if self._watching is not None:
            self._watching.cancel()
            self._watching = None
        if self._call is not None:
            self._call.cancel()
        self._tell(event)
        while self._tasks:
            await asyncio.wait(self._tasks)

    async def _cancel_call(self) -> None:
        """Nobody waits for the call any more; whatever it has under way comes to its end first."""
        self._tell(events.CallCancelled())
        while stopping := [task for task in self._tasks if task.cancelling()]:
            await asyncio.wait(stopping)

    # Events in, actions out

    def _tell(self, event: Event) -> None:
        """Take an event in and carry out what follows from it, and from what that brings about at once."""
        self._events.append(event)
        if self._is_acting:
            return  # told while actions are carried out: it comes next
        self._is_acting = True
        try:
            while self._events:
                for action in self.chain.handle(self._events.popleft(), _now()):
                    self._carry_out(action)
        finally:
            self._is_acting = False

    def _carry_out(self, action: Action) -> None:  # noqa: C901 - a table: an action a line
        match action:
            case actions.SendStep():
                self._on_hop(action.hop, lambda hop: self._step(hop, action))
            case actions.StopStep():
                task = self._hops[action.hop].task
                if task is not None:
                    task.cancel()
            case actions.ReturnResult():
                self._answer_call(None)
            case actions.OpenChain():
                self._openings[action.opening] = self._spawn(self._open_chain(action))
            case actions.OpenSpare():
                self._openings[action.opening] = self._spawn(
                    self._open_spare(action, self._hops[action.hop].hop.planned)
                )
            case actions.CancelOpening():
                self._openings.pop(action.opening).cancel()
            case actions.PromoteHop():
                self._on_hop(action.hop, lambda hop: hop.promote())
            case actions.GiveUpHop():
                self._hops[action.hop].hop.give_up(action.reason)
            case actions.CloseHop():
                self._on_hop(action.hop, lambda hop: hop.drop() if action.keep else hop.close(action.wait_s))
                del self._hops[action.hop]
            case actions.RecallRows():
                self._rows_of(action.ledger).put(0, self._recall(action.end))
            case actions.ReportLoss():
                hop, loss = self._hops[action.hop].hop, action.error
                self.opener.planner.lost(hop.planned.peer, loss.kind, str(loss), hop.bytes_per_s)
            case actions.FailCall():
                error = self.opener.planner.explain(action.span, action.error)
                error.__cause__ = action.error
                self._answer_call(error)

    def _on_hop(self, number: int, work: Callable[[Hop], Coroutine[Any, Any, None]]) -> None:
        """Do something to a hop when what is being done to it has ended."""
        entry = self._hops[number]
        before = entry.task

        async def in_turn(before: asyncio.Task[None]) -> None:
            await asyncio.wait({before})
            await work(entry.hop)

        if before is None or before.done():
            entry.task = self._spawn(work(entry.hop))
        else:
            entry.task = self._spawn(in_turn(before))

    def _spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[None]) -> None:
        """An error that is no event is the call's."""
        self._tasks.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is not None and not self._answer_call(error):
            _logger.error("A session failed while nobody waited for it", exc_info=error)

    def _answer_call(self, error: BaseException | None) -> bool:
        """End the call, if it is still waited for."""
        if self._call is None or self._call.done():
            return False
        if error is not None:
            self._call.set_exception(error)
        else:
            self._call.set_result(None)
        return True

    # What takes time

    async def _step(self, hop: Hop, step: actions.SendStep) -> None:
        hop.rewind(step.start)
        try:
            output = await hop.step(self._rows_of(step.ledger).get(step.start, step.end), step.reply_tokens)
        except HopLost as error:
            self._tell(events.Lost(step.hop, error))
            return
        # Nothing waits from here on: an answer that was kept is told of, and one that was stopped is neither.
        if step.into is not None and step.reply_tokens:
            self._rows_of(step.into).put(step.into.end, output)
        self.opener.planner.served(hop.planned.peer, hop.bytes_per_s)
        self._tell(events.Answered(step))

    async def _open_chain(self, action: actions.OpenChain) -> None:
        if action.because is not None:
            self.opener.tell_waiting(action.span, action.because)
        lost = {self._hops[number].hop: position for number, position in action.replaces.items()}
        for hop in lost:
            await self.opener.let_go(hop)
        await asyncio.sleep(action.after_s)
        try:
            hops = await self.opener.open_chain(action.span, lost)
        except (NoRoute, NetworkError, ProtocolError, SessionRefused) as error:
            self._open_failed(action.opening, error)
            return
        if not lost:  # the first chain has settled how rows travel
            intake = self.chain.intake
            given = self._rows.pop(intake)
            self._rows_of(intake).put(0, given.get(0, intake.end))
        self._opened(action.opening, hops)

    async def _open_spare(self, action: actions.OpenSpare, planned: PlannedHop) -> None:
        try:
            hops = await self.opener.open_beside(planned, action.role)
        except SwarmError as error:  # a spare is a help, never a reason to fail
            _logger.info("No spare for blocks %s: %s", planned.span, error)
            self._open_failed(action.opening, error)
        else:
            self._opened(action.opening, hops)

    def _opened(self, opening: int, hops: Sequence[Hop]) -> None:
        del self._openings[opening]
        new = self._adopt(hops)
        self._tell(events.HopsOpened(opening, new))
        for each, hop in zip(new, hops, strict=True):
            if hop.lost is not None:
                self._tell(events.Lost(each.id, hop.lost))

    def _open_failed(self, opening: int, error: SwarmError) -> None:
        del self._openings[opening]
        self._tell(events.OpenFailed(opening, error))

    def _adopt(self, hops: Sequence[Hop]) -> tuple[NewHop, ...]:
        """Number hops that were opened, and hear of their losses."""
        new = []
        for hop in hops:
            number = next(self._numbers)
            self._hops[number] = _OpenHop(hop)
            hop.on_lost = partial(self._lost, number)
            new.append(NewHop(number, hop.planned, hop.position))
        return tuple(new)

    def _lost(self, number: int, error: HopLost) -> None:
        self._tell(events.Lost(number, error))

    async def _watch(self) -> None:
        """Look at every hop twice a second, and tell what is seen."""
        planner = self.opener.planner
        while True:
            await asyncio.sleep(LOOK_EVERY_S)
            self._look_for_slow()
            for entry in list(self._hops.values()):
                await entry.hop.keep_alive()
            with contextlib.suppress(SwarmError):  # an old snapshot serves on
                await planner.keep_fresh()
            for number, entry in list(self._hops.items()):
                if entry.hop.leaving_in_s is not None:
                    self._tell(events.LeavingSoon(number))
                if entry.hop.is_late:
                    self._tell(events.Late(number))
            peers = {hop.planned.peer for hop in self.chain.hops}
            records = {peer: record for peer in peers if (record := planner.record(peer)) is not None}
            self._tell(events.Ticked(self._unix_now(), records))

    def _look_for_slow(self) -> None:
        """Find the hops that have become much slower than others would be."""
        if _now() - self._compared_at < COMPARE_EVERY_S:
            return
        self._compared_at = _now()
        planner = self.opener.planner
        for tracked, hop in zip(self.chain.hops, self.hops, strict=True):
            if hop.stats.steps < STEPS_TO_JUDGE or not hop.decode_s:
                continue
            planned = hop.planned
            planner.observed(planned.peer, planned.span, hop.decode_s)
            try:
                others = planner.plan_at_hand(planned.span, planned.numerics, frozenset([planned.peer]))
            except (NoRoute, NetworkError):
                continue
            if is_slow(hop.decode_s, sum(other.expected_ms for other in others) / 1e3):
                self._tell(events.Slow(tracked.id))

    def _rows_of(self, ledger: Ledger) -> Rows:
        rows = self._rows.get(ledger)
        if rows is None:
            settings = self.opener.settings
            rows = self._rows[ledger] = Rows(settings.hidden_size, CODECS[settings.codec])
        return rows


def _now() -> float:
    return asyncio.get_running_loop().time()
