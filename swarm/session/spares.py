"""Spares: hops that follow another one, so that a loss or a leave costs only what they lag behind.

A `Spare` is a second line over one hop's blocks, mostly of one hop, fed from the same ledger at low
priority. Which hops get one, when it is fed and when it is given up is decided here; when it takes over,
in `session/chain`. Pure, as that.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from swarm.session import actions, events
from swarm.session.actions import Action
from swarm.session.ledger import Ledger
from swarm.session.line import TrackedHop, next_steps, stop_steps
from swarm.session.rules import SparePolicy, is_worth_a_spare
from swarm.values import PeerId
from swarm.wire.records import PeerRecord

MAX_LAG_TOKENS = 8  # a spare is fed when it is so far behind
RETRY_AFTER_S = 5.0  # when no spare could be had


@dataclass(slots=True, eq=False)
class Spare:
    """Follows the ledger of one hop. `exact`: step by step so far, so its caches are the hop's to the bit."""

    hops: list[TrackedHop]
    exact: bool
    max_lag: int = MAX_LAG_TOKENS
    feeding: bool = False

    @property
    def lag(self) -> int:
        """How many rows the slowest hop of it has not seen."""
        return self.hops[0].ledger.end - min(hop.position for hop in self.hops)


@dataclass(frozen=True, slots=True)
class Look:
    """What decides about spares when every hop is looked at."""

    now: float
    unix_now: float
    records: Mapping[PeerId, PeerRecord]
    position: int
    losses: int


@dataclass(slots=True)
class Spares:
    """The spares of one chain, by the hop they follow. `is_exact` tells whether so many rows are repeated
    in the steps that were sent first."""

    policy: SparePolicy
    is_exact: Callable[[int], bool]
    _spares: dict[TrackedHop, Spare] = field(default_factory=dict)
    _openings: dict[int, TrackedHop] = field(default_factory=dict)

    def of(self, hop: TrackedHop) -> Spare | None:
        """The spare that follows a hop."""
        return self._spares.get(hop)

    @property
    def hops(self) -> list[TrackedHop]:
        """All hops of all spares."""
        return [hop for spare in self._spares.values() for hop in spare.hops]

    def look(self, hops: Sequence[TrackedHop], look: Look, number: Callable[[], int]) -> Iterator[Action]:
        """Open a spare for every hop that wants one; a hop that is to be left has its spare hurry."""
        for hop in hops:
            must_move = hop.leaving or hop.slow or hop.late
            spare = self._spares.get(hop)
            if spare is not None and must_move:
                spare.max_lag = 1
                self._start_feeding(spare)
            elif spare is None and self._may_follow(hop, look.now) and (must_move or self._wants(hop, look)):
                opening = number()
                self._openings[opening] = hop
                yield actions.OpenSpare(opening, hop.id, "active" if must_move else "spare")

    def opened(self, event: events.HopsOpened, chain: Sequence[TrackedHop]) -> Iterator[Action]:
        """A spare was opened; it is of no use when the hop it was for is gone."""
        hop = self._openings.pop(event.opening, None)
        if hop is None or hop not in chain or hop.lost is not None:
            yield from (actions.CloseHop(new.id) for new in event.hops)
            return
        ledgers = [hop.ledger, *(Ledger() for _ in event.hops[1:])]
        tracked = [TrackedHop.of(new, ledger) for new, ledger in zip(event.hops, ledgers, strict=True)]
        spare = self._spares[hop] = Spare(tracked, exact=hop.ledger.knows_steps_since(0))
        self._start_feeding(spare)

    def open_failed(self, opening: int, now: float) -> None:
        """No spare could be had; it is tried again in a while."""
        hop = self._openings.pop(opening, None)
        if hop is not None:
            hop.no_spare_before = now + RETRY_AFTER_S

    def cancel_openings(self) -> Iterator[Action]:
        """Open no spare now: two takes of one session must not meet on a peer."""
        yield from (actions.CancelOpening(opening) for opening in self._openings)
        self._openings.clear()

    def wake(self) -> None:
        """The ledgers have grown."""
        for spare in self._spares.values():
            self._start_feeding(spare)

    def feed(self) -> Iterator[Action]:
        """The next steps of those spares that are being fed."""
        for spare in self._spares.values():
            spare.feeding = spare.feeding and spare.lag > 0
            if spare.feeding:
                yield from next_steps(spare.hops, results=None)

    def rewind(self, position: int) -> Iterator[Action]:
        """Forget everything from `position` on. The shared ledger is the chain's to cut."""
        for spare in self._spares.values():
            yield from stop_steps(spare.hops)
            for hop in spare.hops:
                if hop is not spare.hops[0]:
                    hop.ledger.truncate(position)
                hop.position = min(hop.position, position)
            spare.feeding = False

    def take(self, hop: TrackedHop) -> Spare | None:
        """The spare of a hop, which is no spare any more."""
        return self._spares.pop(hop, None)

    def lost(self, gone: int, now: float) -> Iterator[Action]:
        """A hop of a spare is gone, and so the spare is of no use."""
        for hop, spare in list(self._spares.items()):
            for each in spare.hops:
                if each.id == gone:
                    each.settle()
                    hop.no_spare_before = now + RETRY_AFTER_S
                    yield from self.close(hop)

    def close(self, hop: TrackedHop, wait_s: float = 0.0) -> Iterator[Action]:
        """Let the spare of a hop go, if it has one."""
        spare = self._spares.pop(hop, None)
        if spare is not None:
            yield from stop_steps(spare.hops)
            yield from (actions.CloseHop(each.id, wait_s) for each in spare.hops)

    def close_all(self, wait_s: float = 0.0) -> Iterator[Action]:
        """Let all spares go."""
        for hop in list(self._spares):
            yield from self.close(hop, wait_s)

    def _start_feeding(self, spare: Spare) -> None:
        if not spare.feeding and spare.lag >= spare.max_lag:
            spare.feeding, exact = True, self.is_exact(spare.lag)
            spare.exact = spare.exact and exact
            for hop in spare.hops:
                hop.exact = exact

    def _may_follow(self, hop: TrackedHop, now: float) -> bool:
        is_whole = hop.ledger.start == 0  # else a spare could never catch up
        is_opening = hop in self._openings.values()
        return is_whole and not is_opening and hop.lost is None and now >= hop.no_spare_before

    def _wants(self, hop: TrackedHop, look: Look) -> bool:
        if self.policy != "auto" or look.position == 0:
            return self.policy == "always"
        record = look.records.get(hop.planned.peer)
        return record is not None and is_worth_a_spare(record, look.position, look.losses, look.unix_now)
