"""Which blocks one peer takes: the window in which it helps most.

What helps, in this order: a block that nobody hosts is hosted; it grows less likely that all peers of a
block go before one of them is replaced; the block that can bear least bears more; chains get few hops.
All peers weigh alike, and each takes the best of what the others have left, so that the sum only grows.
Peers that come at the same moment know each other from the directory: each works out what those with
lower ids will take. Of windows as good as equal each takes another, drawn from its id.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Literal

import numpy as np

from swarm.peer.placement.cover import Claims, Cover, Floats, typical_rate
from swarm.values import PeerId, Span
from swarm.wire.records import Snapshot

HOLE_WEIGHT = 1e5  # for each block that nobody hosts
RISK_WEIGHT = 100.0  # for each block that is a hole soon, times the odds
# for each block that bears what it should; eight times that for one that bears half of it
RATE_WEIGHT = 0.03
HOP_WEIGHT = 0.01  # for a hop more in every chain
ENOUGH_ODDS = 1e-6  # of a hole; more replicas than that takes are for speed alone
WEAKEST_SHARE = 0.125  # of a fair rate; a block that bears even less is not weighed higher
AS_GOOD_AS_EQUAL = 0.02
MOST_ANTICIPATED = 512  # of the peers that come at the same moment
SLOW_FACTOR = 3.0  # a peer so much slower than the others of its blocks only slows a chain down

Role = Literal["serve", "spare"]


@dataclass(frozen=True, slots=True)
class Ability:
    """What one peer can do."""

    peer: PeerId
    fitting_blocks: int
    blocks_per_s: float | None  # of one session, one token at a time; None when not measured
    going_odds: float = 0.1  # that it is gone within `cover.REPLACE_S`

    def rate_tokens_per_s(self, length: int, typical: float) -> float:
        """Through a span of so many blocks; `typical` when it is not known."""
        return self.blocks_per_s / length if self.blocks_per_s else typical


@dataclass(frozen=True, slots=True)
class Placement:
    """A span, and how much a peer helps by hosting it; in the weights above."""

    span: Span
    gain: float


def choose(claims: Claims, num_blocks: int, ability: Ability) -> Placement:
    """The best span for a peer that is not among the claims, or whose claim there is still a wish."""
    others = claims.without(ability.peer)
    cover = Cover.of(others.only(~others.choosing), num_blocks)
    typical = typical_rate(others)
    for each in _going_first(others, ability.peer):
        taken = best_window(cover, each, typical)
        rate = each.rate_tokens_per_s(len(taken.span), typical)
        cover = cover.joined_by(taken.span, rate, each.going_odds)
    return best_window(cover, ability, typical)


def _going_first(claims: Claims, own: PeerId) -> list[Ability]:
    """Of the peers that are still choosing those with a lower id, in the order in which they choose."""
    choosing = [index for index in map(int, np.flatnonzero(claims.choosing)) if claims.peers[index] < own]
    first = sorted(choosing, key=lambda index: claims.peers[index])[:MOST_ANTICIPATED]
    lengths = claims.ends - claims.starts
    return [
        Ability(PeerId(claims.peers[each]), int(lengths[each]), None, float(claims.going_odds[each]))
        for each in first
    ]


def best_window(cover: Cover, ability: Ability, typical: float) -> Placement:
    """The window that helps most beside what is there, whichever of its lengths that has."""
    gains = {
        length: _gains(cover, ability, length, typical)
        for length in _lengths(min(ability.fitting_blocks, cover.num_blocks))
    }
    best = max(float(each.max()) for each in gains.values())
    candidates = [
        (length, int(start))
        for length, each in gains.items()
        for start in np.flatnonzero(each >= best - AS_GOOD_AS_EQUAL * abs(best))
    ]
    length, start = max(candidates, key=lambda each: _preference(cover, ability.peer, *each))
    return Placement(Span(start, start + length), float(gains[length][start]))


def gain_of(cover: Cover, ability: Ability, span: Span, typical: float) -> float:
    """How much the peer helps by hosting a span beside what is there."""
    return float(_gains(cover, ability, len(span), typical)[span.start])


def _gains(cover: Cover, ability: Ability, length: int, typical: float) -> Floats:
    """The gain of each window of a length, by its start."""
    rate = ability.rate_tokens_per_s(length, typical)
    odds, rates = cover.hole_odds, cover.rates_tokens_per_s
    fair = float((rates.sum() + rate * length) / cover.num_blocks)
    risk = np.maximum(0.0, odds - np.maximum(ENOUGH_ODDS, odds * ability.going_odds))
    by_block = (
        HOLE_WEIGHT * (cover.claimed == 0)
        + RISK_WEIGHT * risk
        + RATE_WEIGHT * (_lack(rates, fair) - _lack(rates + rate, fair))
    )
    sums = np.concatenate(([0.0], by_block.cumsum()))
    return np.asarray(sums[length:] - sums[:-length] - HOP_WEIGHT / length)


def _lack(rates: Floats, fair: float) -> Floats:
    """How much each block lacks of a fair rate: 1 when it has that, eight times as much at half of it."""
    return np.asarray((fair / np.maximum(rates, WEAKEST_SHARE * fair)) ** 3)


def _lengths(most: int) -> list[int]:
    """Lengths of a span that are looked at: all of what fits, and in steps down to one block."""
    return sorted({max(1, round(most * share)) for share in (1, 0.85, 0.7, 0.5, 0.35, 0.25, 0.12, 0.05)})


def _preference(cover: Cover, peer: PeerId, length: int, start: int) -> tuple[bool, int, int]:
    """Of equal windows: one that begins or ends where another does, which leaves no small gaps and makes no
    more hops; then a long one; then by the peer's id."""
    aligned = bool(cover.edges[start] or cover.edges[start + length])
    draw = blake2b(f"{peer}/{start}/{length}".encode(), digest_size=8).digest()
    return aligned, length, int.from_bytes(draw)


def worst_window(coverage: Sequence[int], length: int) -> Span:
    """The worst-covered window of `length` blocks (or the whole model when it is shorter).

    Windows are compared by their sorted coverage, and the earlier one wins a tie.
    """
    length = min(length, len(coverage))
    windows = (Span(start, start + length) for start in range(len(coverage) - length + 1))
    return min(windows, key=lambda window: (sorted(coverage[window.start : window.end]), window.start))


def coverage_to_come(snapshot: Snapshot) -> list[int]:
    """How many peers host each block or will in a moment: joining ones count, leaving ones do not, nor do
    those that nobody can dial."""
    return [
        int(count) for count in Cover.of(Claims.of(snapshot, snapshot.taken_at), snapshot.num_blocks).claimed
    ]


def role_of(claims: Claims, ability: Ability, span: Span) -> tuple[Role, str]:
    """Whether clients will take the peer for their chains, or only when others are lost; and why."""
    if not ability.blocks_per_s:
        return "serve", ""
    lengths = claims.ends - claims.starts
    beside = claims.online & (claims.starts <= span.start) & (claims.ends >= span.end)
    own_ms, others_ms = 1e3 * len(span) / ability.blocks_per_s, 0.0
    known = beside & (claims.rates_tokens_per_s > 0)
    if known.sum() < 2:
        return "serve", ""
    others_ms = 1e3 * len(span) / float(np.median(claims.rates_tokens_per_s[known] * lengths[known]))
    if own_ms <= SLOW_FACTOR * others_ms:
        return "serve", ""
    return "spare", (
        f"{int(known.sum())} others run blocks {span} in {others_ms:.0f} ms a token, this peer takes "
        f"{own_ms:.0f} ms. Clients will use it when those are lost, and let it follow as a spare."
    )
