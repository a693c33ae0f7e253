"""What this client knows about the peers of a model, and the chains it would take now.

Keeps the last snapshot, the round trips measured and who was lost lately, and asks the pure router.
What was seen first hand overrules the directory: a peer that did not answer is passed over for a
while, whatever its record says, unless nobody else has its blocks.
"""

import asyncio
import contextlib
import math
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from swarm.client.router import (
    RouteHints,
    missing_blocks,
    no_route,
    partition,
    peers_full,
    plan,
    unreached,
)
from swarm.errors import ClockOff, LossKind, NetworkError, NoRoute, SwarmError
from swarm.session.hop import ASSUMED_BYTES_PER_S
from swarm.session.plan import PLAIN_NUMERICS, Numerics, PlannedHop
from swarm.values import PeerId, Span
from swarm.wire.records import PeerRecord, Snapshot

SNAPSHOT_LIFE_S = 20.0  # older than this it is fetched anew
FETCH_TIMEOUT_S = 5.0
OBSERVATION_LIFE_S = 60.0
STOPGAP_MS = 1000.0  # a block; every real peer is expected to be faster
WARY_S = 60.0  # after one that never served here did not keep its word
MOST_KNOWN = 1000
FIRST_BAN_S, LONGEST_BAN_S = 5.0, 120.0
FIRST_RETRY_S, LONGEST_RETRY_S = 0.1, 0.5


@dataclass(slots=True)
class _PeerBan:
    """A peer that did not answer. Others are preferred until `until`, and until it gives a sign of life.

    It is not asked before `retry_at`.
    """

    losses: int
    lost_at: float  # Unix seconds, as the directory has them
    until: float
    retry_at: float
    reason: str
    kind: LossKind


@dataclass(frozen=True, slots=True)
class _Observation:
    """How fast a peer really was, until when that counts."""

    block_ms: float
    until: float


class Routes:
    """Plans chains over one model. `fetch` reads the directory."""

    def __init__(self, fetch: Callable[[], Awaitable[Snapshot]]) -> None:
        self._fetch = fetch
        self._snapshot: Snapshot | None = None
        self._fetched_at = 0.0
        self._rtt_ms: dict[PeerId, float] = {}
        self._bytes_per_s: dict[PeerId, float] = {}
        self._bans: dict[PeerId, _PeerBan] = {}
        self._observed: dict[PeerId, _Observation] = {}
        self._served: set[PeerId] = set()  # they have answered steps
        self._wary_until = 0.0  # till then, peers that have never served come last
        self._refreshing: asyncio.Task[Snapshot] | None = None

    async def close(self) -> None:
        """End a look-up that nobody waits for."""
        if self._refreshing is not None:
            self._refreshing.cancel()
            await asyncio.gather(self._refreshing, return_exceptions=True)

    async def plan(
        self,
        span: Span,
        numerics: Numerics | None = None,
        excluded: frozenset[PeerId] = frozenset(),
        with_lost: bool = True,
        kernels: str = "",
    ) -> tuple[PlannedHop, ...]:
        """The best chain over `span` now. Raises `NoRoute`, or `NetworkError` before the first snapshot.

        A snapshot at hand is used at once; a fresh one is fetched when that gives no chain. Peers lost
        lately are taken only `with_lost`, when there is no chain without them and it is their turn to be
        asked again; `excluded` ones never. Peers that have these `kernels` come first.
        """
        choose = self._plan_with_lost if with_lost else self.plan_at_hand
        if self._snapshot is None or _now() - self._fetched_at > SNAPSHOT_LIFE_S:
            await self.refresh()
            return choose(span, numerics, excluded, kernels)
        try:
            return choose(span, numerics, excluded, kernels)
        except NoRoute:
            await self.refresh()
        return choose(span, numerics, excluded, kernels)

    async def keep_fresh(self) -> None:
        """Fetch a snapshot before the one at hand grows old, so that a loss finds one that is new."""
        if self._snapshot is not None and _now() - self._fetched_at > SNAPSHOT_LIFE_S / 2:
            await self.refresh()

    def _plan_with_lost(
        self, span: Span, numerics: Numerics | None, excluded: frozenset[PeerId], kernels: str
    ) -> tuple[PlannedHop, ...]:
        banned, wary = self._banned(), _now() < self._wary_until
        with contextlib.suppress(NoRoute):
            if wary:
                return self._plan(span, numerics, excluded | banned | self._strangers(), kernels)
        with contextlib.suppress(NoRoute):
            if wary or not self._served:
                return self._plan(span, numerics, excluded | banned | self._hearsay(), kernels)
        try:
            return self._plan(span, numerics, excluded | banned, kernels)
        except NoRoute:
            not_now = self._not_to_be_asked() | self._not_needed(span, numerics)
            return self._plan(span, numerics, excluded | not_now, kernels)

    def plan_at_hand(
        self, span: Span, numerics: Numerics | None, excluded: frozenset[PeerId], kernels: str = ""
    ) -> tuple[PlannedHop, ...]:
        """The best chain over `span` by what is known already. Raises `NoRoute`."""
        return self._plan(span, numerics, excluded | self._banned(), kernels)

    def plan_around(self, span: Span, numerics: Numerics | None, stopgap: PeerId) -> tuple[PlannedHop, ...]:
        """The best chain over `span` by what is known, with `stopgap` for the blocks nobody hosts."""
        kinds = (Numerics(record.dtype, record.quantization) for record in self._answering())
        kind = numerics or next(kinds, PLAIN_NUMERICS)
        route: list[PlannedHop] = []
        for part, hosted in partition(span, self._answering(kind)):
            if hosted:
                route.extend(self._plan(part, kind, self._banned()))
            else:
                route.append(PlannedHop(stopgap, part, kind, expected_ms=STOPGAP_MS * len(part)))
        return tuple(route)

    async def refresh(self) -> Snapshot:
        """Fetch a snapshot; an old one serves on when the directory does not answer.

        All that ask at the same time share one look-up.
        """
        if self._refreshing is None or self._refreshing.done():
            self._refreshing = asyncio.create_task(self._look_up())
            self._refreshing.add_done_callback(lambda each: each.cancelled() or each.exception())  # seen
        return await asyncio.shield(self._refreshing)

    async def _look_up(self) -> Snapshot:
        try:
            async with asyncio.timeout(FETCH_TIMEOUT_S):
                self._snapshot = await self._fetch()
                self._forget_gone(self._snapshot)
        except ClockOff:
            if self._snapshot is None:
                raise
        except (TimeoutError, NetworkError):
            if self._snapshot is None:
                raise NetworkError(
                    "The directory does not answer", "Check the --join address and the network."
                ) from None
        self._fetched_at = _now()
        return self._snapshot

    def record(self, peer: PeerId) -> PeerRecord | None:
        """What a peer last announced."""
        peers = self._snapshot.peers if self._snapshot else ()
        return next((record for record in peers if record.peer == peer), None)

    def heard(self, peer: PeerId, rtt_s: float) -> None:
        """A peer answered in this time. That it takes a session does not mean yet that it serves it."""
        previous = self._rtt_ms.get(peer, rtt_s * 1e3)
        self._rtt_ms[peer] = previous + 0.3 * (rtt_s * 1e3 - previous)

    def served(self, peer: PeerId, bytes_per_s: float) -> None:
        """A peer answered a step, over a link of that rate: what it did before is forgiven."""
        self._bans.pop(peer, None)
        self._served.add(peer)
        self._bytes_per_s[peer] = bytes_per_s

    def bytes_per_s(self, peer: PeerId) -> float:
        """The rate of the link to a peer, as far as is known."""
        return self._bytes_per_s.get(peer, ASSUMED_BYTES_PER_S)

    def observed(self, peer: PeerId, span: Span, decode_s: float) -> None:
        """A peer took so long for one token through these blocks; for a while that overrules its record."""
        self._observed[peer] = _Observation(decode_s * 1e3 / len(span), _now() + OBSERVATION_LIFE_S)

    def lost(self, peer: PeerId, kind: LossKind, reason: str, bytes_per_s: float | None = None) -> None:
        """A peer did not answer, or refused; `reason` is a sentence for people.

        `bytes_per_s` is what its link may be no faster than, if that could be why.
        """
        if bytes_per_s is not None:
            self._bytes_per_s[peer] = bytes_per_s
        if peer not in self._served:
            self._wary_until = _now() + WARY_S
        now, ban = _now(), self._bans.get(peer)
        losses = ban.losses + 1 if ban else 1
        self._bans[peer] = _PeerBan(
            losses=losses,
            lost_at=self._directory_time(),
            until=now + min(LONGEST_BAN_S, FIRST_BAN_S * 2 ** (losses - 1)),
            retry_at=now + min(LONGEST_RETRY_S, FIRST_RETRY_S * 2 ** (losses - 1)),
            reason=reason,
            kind=kind,
        )

    def explain(self, span: Span, last: SwarmError) -> NoRoute:
        """The error for a span that could not be covered: what no peer that answers has, and why."""
        peers = self._snapshot.online() if self._snapshot else ()
        answering = [record for record in peers if record.peer_id not in self._bans]
        error = no_route(answering, span)
        missing = missing_blocks(answering, span)
        lost = {
            record.peer_id: self._bans[record.peer_id]
            for record in peers
            if record.peer_id in self._bans and any(record.span.overlap(hole) for hole in missing)
        }
        if not lost and isinstance(last, NoRoute):
            return last
        reason = ([ban.reason for ban in lost.values()][-1] if lost else last.what).rstrip(".")
        kinds = {ban.kind for ban in lost.values()}
        if kinds == {"unreached"} and not lost.keys() & self._served:  # who has served is no more
            return unreached(lost, missing, f"from here ({reason[:1].lower()}{reason[1:]})")
        if kinds == {"full"}:
            return peers_full(missing)
        return NoRoute(f"{error.what} ({reason[:1].lower()}{reason[1:]})", error.fix)

    def _banned(self) -> frozenset[PeerId]:
        """Who is passed over: for a while, and until a newer record of it is a sign of life."""
        now = _now()
        peers = self._snapshot.peers if self._snapshot and self._bans else ()
        issued_at = {record.peer_id: record.issued_at for record in peers}
        return frozenset(
            peer
            for peer, ban in self._bans.items()
            if ban.until > now or issued_at.get(peer, math.inf) <= ban.lost_at
        )

    def _strangers(self) -> frozenset[PeerId]:
        """Peers that have never answered a step here: what they claim is all that is known of them."""
        peers = self._snapshot.peers if self._snapshot else ()
        return frozenset(record.peer_id for record in peers) - self._served

    def _hearsay(self) -> frozenset[PeerId]:
        """Strangers that nobody tells of who is trusted to know them."""
        told = self._snapshot.hearsay if self._snapshot else ()
        return frozenset(map(PeerId, told)) - self._served

    def _forget_gone(self, snapshot: Snapshot) -> None:
        """Keep no more than some of peers that are in the directory no longer: there is no end to those."""
        here = {record.peer_id for record in snapshot.peers}
        for known in (self._rtt_ms, self._bytes_per_s, self._bans, self._observed):
            gone = [peer for peer in known if peer not in here]
            for peer in gone[: max(0, len(known) - MOST_KNOWN)]:
                del known[peer]
        if len(self._served) > MOST_KNOWN:
            self._served &= here

    def _directory_time(self) -> float:
        """What the clock says that records go by, as far as the last snapshot tells."""
        return self._snapshot.taken_at + _now() - self._fetched_at if self._snapshot else 0.0

    def _not_to_be_asked(self) -> frozenset[PeerId]:
        """Lost peers whose time to be asked again has not come: others of them get their turn."""
        now = _now()
        return frozenset(peer for peer, ban in self._bans.items() if ban.retry_at > now)

    def _not_needed(self, span: Span, numerics: Numerics | None) -> frozenset[PeerId]:
        """Lost peers that host no block that is missing: it is not for them that there is no chain."""
        holes = missing_blocks(self._answering(numerics), span)
        if self._snapshot is None or not holes:
            return frozenset()
        return self._banned() - {
            record.peer_id
            for record in self._snapshot.online()
            if any(record.span.overlap(hole) for hole in holes)
        }

    def _answering(self, numerics: Numerics | None = None) -> list[PeerRecord]:
        """Peers that can be talked to, were not lost lately and compute like this, or in any way."""
        banned = self._banned()
        return [
            record
            for record in (self._snapshot.online() if self._snapshot else ())
            if record.peer_id not in banned
            and numerics in (None, Numerics(record.dtype, record.quantization))
        ]

    def _plan(
        self, span: Span, numerics: Numerics | None, excluded: frozenset[PeerId], kernels: str = ""
    ) -> tuple[PlannedHop, ...]:
        if self._snapshot is None:
            raise NetworkError("The directory has not been read yet")
        now = _now()
        block_ms = {peer: seen.block_ms for peer, seen in self._observed.items() if seen.until > now}
        hints = RouteHints(self._rtt_ms, block_ms, excluded=excluded, numerics=numerics, kernels=kernels)
        return plan(self._snapshot, span, hints)


def _now() -> float:
    return asyncio.get_running_loop().time()
