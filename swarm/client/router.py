"""Which peers answer: the cheapest chain that covers a span, from a snapshot.

Pure dynamic programming over (block, peer): staying on a peer costs its compute per block, moving
to another costs a round trip besides. `O(blocks x peers)`, all peers at once. What the caller knows of
its own (round trips measured, peers lost lately) comes in as arguments and overrules the records.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from swarm.errors import NoRoute, PeersFull
from swarm.session.plan import Numerics, PlannedHop
from swarm.values import PeerId, Span, spans_of
from swarm.wire.messages import FORMATS, WIRE_VERSION
from swarm.wire.records import PeerRecord, Snapshot

HOP_OVERHEAD_MS = 1.0  # protocol and scheduling, besides the round trip
MOST_KINDS = 16  # of numerics that are considered, the most common ones: anybody can make some up
RELAY_DETOUR = 2.0  # round trips through a relay, for one that was not measured: two ways instead of one
UNKNOWN_RATE_TOKENS_PER_S = 1.0  # of a peer that has not measured itself


@dataclass(frozen=True, slots=True)
class RouteHints:
    """What this client knows besides the snapshot."""

    rtt_ms: Mapping[PeerId, float] = field(default_factory=dict)
    block_ms: Mapping[PeerId, float] = field(default_factory=dict)  # measured of late; overrules the record
    unknown_rtt_ms: float = 30.0
    excluded: frozenset[PeerId] = frozenset()
    numerics: Numerics | None = None  # only peers that compute like this
    kernels: str = ""  # peers with this fingerprint first: they give the same bits


def plan(snapshot: Snapshot, span: Span, hints: RouteHints) -> tuple[PlannedHop, ...]:
    """The cheapest chain over `span`; raises `NoRoute` naming the blocks nobody hosts.

    Peers that compute alike are preferred: a chain of one kind of numerics, if there is one, is
    taken before any mixed chain, because another peer of that kind can replace a hop exactly. Where
    the kernels are named, a chain of peers that have them is taken before any other.
    """
    usable = [record for record in snapshot.online() if _usable(record, hints)]
    same_bits = [record for record in usable if hints.kernels and record.kernels == hints.kernels]
    if same_bits and (route := _cheapest(same_bits, span, hints)):
        return route
    alike: dict[Numerics, list[PeerRecord]] = {}
    for record in usable:
        alike.setdefault(_numerics(record), []).append(record)
    common = sorted(alike, key=lambda kind: (-len(alike[kind]), kind))[:MOST_KINDS]
    routes = [route for kind in sorted(common) if (route := _cheapest(alike[kind], span, hints))]
    if not routes and hints.numerics is None and (mixed := _cheapest(usable, span, hints)):
        routes = [mixed]
    if not routes:
        raise _hidden(snapshot, usable, span) or no_route(
            usable, span, _why_not_others(snapshot, span, hints)
        )
    return min(routes, key=lambda route: sum(hop.expected_ms for hop in route))


def missing_blocks(records: Iterable[PeerRecord], span: Span) -> list[Span]:
    """The blocks of `span` that none of the records hosts."""
    hosted = {block for record in records for block in record.span}
    return spans_of(block for block in span if block not in hosted)


def partition(span: Span, records: Iterable[PeerRecord]) -> list[tuple[Span, bool]]:
    """`span` in order, cut into what the records host (True) and what they do not (False)."""
    missing = missing_blocks(records, span)
    hosted = spans_of(block for block in span if not any(block in hole for hole in missing))
    return sorted([(part, True) for part in hosted] + [(hole, False) for hole in missing])


def no_route(usable: Iterable[PeerRecord], span: Span, besides: str = "") -> NoRoute:
    """The error that says which blocks are missing and what would help."""
    missing = ", ".join(map(str, missing_blocks(usable, span))) or str(span)
    return NoRoute(
        f"No live peer hosts blocks {missing}{besides}",
        f"Start one (swarm peer MODEL --blocks {missing.split(',')[0]} --join ADDR), or wait longer.",
    )


def peers_full(blocks: Iterable[Span]) -> PeersFull:
    """The error for blocks whose peers are all there and have no room."""
    return PeersFull(
        f"The peers that host blocks {', '.join(map(str, blocks))} have no room for another session",
        "Try again in a while, or start another peer for these blocks.",
    )


def unreached(peers: Iterable[PeerId], blocks: Iterable[Span], how: str) -> NoRoute:
    """The error for blocks that are hosted, by peers that are there and that cannot be reached, and `how`."""
    names = [f"…{peer[-8:]}" for peer in peers]
    who = f"Peer {names[0]} hosts" if len(names) == 1 else f"Peers {', '.join(names)} host"
    return NoRoute(
        f"{who} blocks {', '.join(map(str, blocks))} and cannot be reached {how}",
        "If it still runs, its owner can forward a port or let it take a relay; else start another.",
    )


def _hidden(snapshot: Snapshot, usable: Iterable[PeerRecord], span: Span) -> NoRoute | None:
    """The error when all that is missing is on peers that say themselves that nobody can dial them."""
    missing = missing_blocks(usable, span)
    hidden = [
        record
        for record in snapshot.peers
        if record.reachable == "no" and any(record.span.overlap(hole) for hole in missing)
    ]
    if not hidden or any(missing_blocks(hidden, hole) for hole in missing):
        return None
    return unreached([record.peer_id for record in hidden], missing, "by anybody")


def _why_not_others(snapshot: Snapshot, span: Span, hints: RouteHints) -> str:
    """What keeps peers that are there from being taken: another wire version, or other numerics."""
    there = [record for record in snapshot.peers if record.state == "online" and record.span.overlap(span)]
    versions = sorted({record.wire_version for record in there} - {WIRE_VERSION})
    if versions:
        spoken = ", ".join(map(str, versions))
        return f" (others speak wire version {spoken}, this program {WIRE_VERSION}: update the older ones)"
    kinds = sorted({_numerics(record) for record in there} - {hints.numerics})
    if hints.numerics is None or not kinds:
        return ""
    computed = ", ".join(map(str, kinds))
    return f" in {hints.numerics} (others compute in {computed})"


def _usable(record: PeerRecord, hints: RouteHints) -> bool:
    return (
        record.peer_id not in hints.excluded
        and record.dtype in FORMATS
        and (hints.numerics is None or _numerics(record) == hints.numerics)
    )


def _numerics(record: PeerRecord) -> Numerics:
    return Numerics(record.dtype, record.quantization)


def _block_ms(record: PeerRecord, hints: RouteHints) -> float:
    if record.peer_id in hints.block_ms:
        return hints.block_ms[record.peer_id]
    rate = record.decode_tokens_per_s or UNKNOWN_RATE_TOKENS_PER_S
    return 1000.0 / rate / len(record.span) * (1 + record.queue_depth)


def _rtt_ms(record: PeerRecord, hints: RouteHints) -> float:
    detour = RELAY_DETOUR if record.relayed else 1.0
    return hints.rtt_ms.get(record.peer_id, hints.unknown_rtt_ms * detour)


class _Reached(NamedTuple):
    """The cheapest way to have run every block up to one."""

    candidate: int  # on which it ends
    started: int  # first block of its last hop
    cost_ms: float


def _cheapest(
    candidates: Sequence[PeerRecord], span: Span, hints: RouteHints
) -> tuple[PlannedHop, ...] | None:
    """Block by block, all at once: a candidate goes on, or is moved to from the best of the block before."""
    starts = np.array([record.start for record in candidates])
    ends = np.array([record.end for record in candidates])
    block_ms = np.array([_block_ms(record, hints) for record in candidates])
    rtt_ms = np.array([_rtt_ms(record, hints) for record in candidates])
    cost_ms, started = np.full(len(candidates), np.inf), np.zeros(len(candidates), dtype=int)
    reached: list[_Reached] = []
    for block in span:
        move_ms = (reached[-1].cost_ms if reached else 0.0) + rtt_ms + HOP_OVERHEAD_MS
        moved = move_ms < cost_ms
        started[moved] = block
        hosting = (starts <= block) & (block < ends)
        cost_ms = np.where(hosting, np.where(moved, move_ms, cost_ms) + block_ms, np.inf)
        if not hosting.any():
            return None
        best = int(cost_ms.argmin())
        reached.append(_Reached(best, int(started[best]), float(cost_ms[best])))
    return _chain(candidates, span, reached)


def _chain(
    candidates: Sequence[PeerRecord], span: Span, reached: Sequence[_Reached]
) -> tuple[PlannedHop, ...]:
    hops: list[PlannedHop] = []
    end = span.end
    while end > span.start:
        last = reached[end - 1 - span.start]
        spent_before = reached[last.started - 1 - span.start].cost_ms if last.started > span.start else 0.0
        record = candidates[last.candidate]
        expected_ms = last.cost_ms - spent_before
        part = Span(last.started, end)
        hops.append(PlannedHop(record.peer_id, part, _numerics(record), expected_ms, record.kernels))
        end = last.started
    return tuple(reversed(hops))
