"""The rules of placement that are compared: ours as peers run it, Petals' as published, and chance.

Each answers two questions from the claims in the directory: which span does a newcomer take, and where
does a peer move to. The oracle is no rule: what could be hosted at best is worked out by `world`.
"""

from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Protocol

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from swarm.peer.placement.choice import Ability, choose
from swarm.peer.placement.cover import Claims, Floats, typical_rate
from swarm.peer.placement.moves import PresentPlace, better_place, next_look_s
from swarm.values import PeerId, Span


class Rule(Protocol):
    """How peers choose."""

    name: str
    lets_sessions_move: bool  # a move is a leave, not a death, for those who use the peer

    def first(self, claims: Claims, blocks: int, ability: Ability) -> Span: ...

    def better(
        self, claims: Claims, blocks: int, ability: Ability, standing: PresentPlace, at_s: float
    ) -> Span | None: ...

    def next_look_s(self, peers: int, peer: PeerId, looks: int) -> float | None: ...


class Ours:
    """What `swarm peer` runs."""

    name = "ours"
    lets_sessions_move = True

    def first(self, claims: Claims, blocks: int, ability: Ability) -> Span:
        return choose(claims, blocks, ability).span

    def better(
        self, claims: Claims, blocks: int, ability: Ability, standing: PresentPlace, at_s: float
    ) -> Span | None:
        better = better_place(claims, blocks, ability, standing)
        return better.span if better else None

    def next_look_s(self, peers: int, peer: PeerId, looks: int) -> float | None:
        return next_look_s(peers, peer, looks)


class Chance:
    """A span drawn anywhere, for good."""

    name = "random"
    lets_sessions_move = True

    def first(self, claims: Claims, blocks: int, ability: Ability) -> Span:
        length = min(ability.fitting_blocks, blocks)
        draw = blake2b(f"{ability.peer}/{len(claims)}".encode(), digest_size=8).digest()
        start = int.from_bytes(draw) % (blocks - length + 1)
        return Span(start, start + length)

    def better(
        self, claims: Claims, blocks: int, ability: Ability, standing: PresentPlace, at_s: float
    ) -> Span | None:
        return None

    def next_look_s(self, peers: int, peer: PeerId, looks: int) -> float | None:
        return None


@dataclass(slots=True)
class Petals:
    """Petals' `block_selection.py`: the window whose sorted throughputs are least; a move when the weakest
    block bears less than 0.75 of what it would if everybody moved to their best, looked at every two
    minutes or so.

    What the weakest block would bear is worked out once in ten minutes for all peers, not by each.
    """

    name: str = "petals"
    lets_sessions_move: bool = False
    _balanced: tuple[float, float] = field(default=(-np.inf, 0.0))  # (when, throughput)

    BALANCE_QUALITY = 0.75
    EPS = 1e-3
    CHECK_EVERY_S = 120.0
    BALANCED_FOR_S = 600.0
    MOST_PASSES = 4

    def first(self, claims: Claims, blocks: int, ability: Ability) -> Span:
        others = claims.without(ability.peer)
        return _span(_best_start(_throughputs(others, blocks), _fit(ability, blocks)), _fit(ability, blocks))

    def better(
        self, claims: Claims, blocks: int, ability: Ability, standing: PresentPlace, at_s: float
    ) -> Span | None:
        throughputs = _throughputs(claims, blocks)
        initial = float(throughputs.min())
        own, length = standing.span, len(standing.span)
        rate = ability.rate_tokens_per_s(length, typical_rate(claims))
        throughputs[own.start : own.end] -= rate * (1 + self.EPS)
        if initial > self.EPS and throughputs.min() <= 0:
            return None  # the swarm would be disjoint
        start = _best_start(throughputs, length)
        if start == own.start:
            return None
        if at_s - self._balanced[0] > self.BALANCED_FOR_S:
            self._balanced = (at_s, self._balance(claims, blocks))
        best = self._balanced[1]
        if best < initial or best < self.EPS or initial / best >= self.BALANCE_QUALITY - self.EPS:
            return None
        return _span(start, length)

    def next_look_s(self, peers: int, peer: PeerId, looks: int) -> float | None:
        draw = blake2b(f"{peer}/{looks}".encode(), digest_size=4).digest()
        share = (1 + int.from_bytes(draw)) / (1 + 2**32)
        return float(-self.CHECK_EVERY_S * np.log(share))

    def _balance(self, claims: Claims, blocks: int) -> float:
        """What the weakest block bears when each peer in turn has moved to its best."""
        throughputs, starts, moved = _throughputs(claims, blocks), claims.starts.copy(), True
        lengths = claims.ends - claims.starts
        rates = np.where(claims.rates_tokens_per_s > 0, claims.rates_tokens_per_s, typical_rate(claims))
        for _ in range(self.MOST_PASSES):
            moved = False
            for each in range(len(claims)):
                length = int(lengths[each])
                throughputs[starts[each] : starts[each] + length] -= rates[each] * (1 + self.EPS)
                start = _best_start(throughputs, length)
                throughputs[starts[each] : starts[each] + length] += rates[each] * self.EPS
                moved = moved or start != starts[each]
                starts[each] = start
                throughputs[start : start + length] += rates[each]
            if not moved:
                break
        return float(throughputs.min())


def _fit(ability: Ability, blocks: int) -> int:
    return min(ability.fitting_blocks, blocks)


def _span(start: int, length: int) -> Span:
    return Span(start, start + length)


def _throughputs(claims: Claims, blocks: int) -> Floats:
    rates = np.where(claims.rates_tokens_per_s > 0, claims.rates_tokens_per_s, typical_rate(claims))
    changes = np.zeros(blocks + 1)
    np.add.at(changes, claims.starts, rates)
    np.subtract.at(changes, claims.ends, rates)
    return np.asarray(np.round(np.cumsum(changes[:-1]), 9))


def _best_start(throughputs: Floats, length: int) -> int:
    windows = np.sort(sliding_window_view(throughputs, length), axis=1)
    return int(np.lexsort(windows.T[::-1])[0])
