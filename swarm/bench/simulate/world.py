"""A swarm in which only time is simulated: peers come, choose, load, serve, look, move and go.

The rules are those that peers run (`peer/placement`), and they see what the directory would tell them:
a peer that went without a word is in it until its record has run out. Everything happens in the order of
one queue of events, so the same trace gives the same course.
"""

import heapq
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from time import perf_counter
from typing import TypeVar

import numpy as np

from swarm.bench.simulate.bound import Server, most_tokens_per_s
from swarm.bench.simulate.rules import Rule
from swarm.bench.simulate.trace import WARM_UP_S, Stay
from swarm.peer.announcer import RECORD_LIFE_S
from swarm.peer.mover import SETTLE_S
from swarm.peer.placement.choice import Ability
from swarm.peer.placement.cover import CHOOSING_S, Claims, going_odds
from swarm.peer.placement.moves import PresentPlace, may_go
from swarm.values import PeerId, Span

CHOOSE_AGAIN_S = 1.0  # as `swarm peer` does, once it can have heard of those that came with it
LOAD_S, LOAD_BLOCK_S = 5.0, 2.0  # to load a span: to begin with, and for each block
SAMPLE_EVERY_S = 900.0

Result = TypeVar("Result")


@dataclass(slots=True, eq=False)
class SimPeer:
    """One stay of a volunteer."""

    stay: Stay
    slot: int
    span: Span
    state: str = "joining"  # then "online", "moving" (to blocks that it does not serve yet), "gone"
    looks: int = 0
    queue: int = 0  # replies that run through it
    loads: int = 0  # so that what was begun before a move is not ended after it

    @property
    def ability(self) -> Ability:
        return Ability(PeerId(self.stay.peer), self.stay.fits_blocks, self.stay.blocks_per_s)


class Columns:
    """The directory's records as columns with free places; what `Claims` are cut out of."""

    def __init__(self, most: int) -> None:
        self.peers: list[SimPeer | None] = [None] * most
        self.starts, self.ends = np.zeros(most, dtype=int), np.zeros(most, dtype=int)
        self.rates, self.since_s = np.zeros(most), np.zeros(most)
        self.told, self.online = np.zeros(most, dtype=bool), np.zeros(most, dtype=bool)
        self._free = list(range(most - 1, -1, -1))

    def take(self) -> int:
        """A free place."""
        return self._free.pop()

    def give(self, slot: int) -> None:
        """The record in it has run out."""
        self.peers[slot], self.told[slot] = None, False
        self._free.append(slot)

    def claims(self, now_s: float) -> Claims:
        """What somebody who asks now is told."""
        [at] = np.nonzero(self.told)
        uptimes_s, joining = now_s - self.since_s[at], ~self.online[at]
        return Claims(
            [peer.stay.peer for slot in at if (peer := self.peers[slot])],
            self.starts[at],
            self.ends[at],
            self.rates[at],
            going_odds(uptimes_s, np.ones(len(at)), joining),
            ~joining,
            joining & (uptimes_s < CHOOSING_S),
        )


@dataclass(slots=True)
class SimTally:
    """What was seen since the time that is measured began."""

    hole_block_s: float = 0.0
    unhosted_block_s: float = 0.0  # that even an oracle could not have had hosted
    moves: int = 0
    peer_s: float = 0.0
    decisions: int = 0
    decisions_s: float = 0.0  # of real time, so not the same in two runs
    fetched_records: int = 0
    weakest: list[float] = field(default_factory=list)  # tokens/s that the weakest blocks bear, sampled
    fair: list[float] = field(default_factory=list)  # and would, were all blocks equal
    covered: list[float] = field(default_factory=list)  # share of blocks, sampled
    peers: list[int] = field(default_factory=list)


class World:
    """Plays a trace under a rule. `at` adds what else is to happen; `run` once."""

    def __init__(self, rule: Rule, blocks: int, stays: Sequence[Stay], until_s: float) -> None:
        self.rule, self.blocks, self.until_s = rule, blocks, until_s
        self.now_s = -WARM_UP_S
        self.tally = SimTally()
        self.replicas = np.zeros(blocks, dtype=int)  # peers that serve each block, in truth
        self.here: dict[str, SimPeer] = {}
        self.columns = Columns(_most_at_once(stays))
        self.on_left: Callable[[SimPeer, bool], None] = lambda peer, planned: None
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._order = 0
        self._fits_total, self._there = 0, 0
        self.speed_total = 0.0
        for stay in stays:
            if stay.from_s < until_s:
                self.at(stay.from_s, lambda stay=stay: self._come(stay))  # type: ignore[misc]
        self.at(0.0, self._sample)

    def at(self, when_s: float, act: Callable[[], None]) -> None:
        """Have something happen."""
        self._order += 1
        heapq.heappush(self._events, (when_s, self._order, act))

    def run(self) -> SimTally:
        """Play all of it."""
        while self._events and self._events[0][0] < self.until_s:
            when_s, _, act = heapq.heappop(self._events)
            self._pass(when_s)
            act()
        self._pass(self.until_s)
        return self.tally

    def _pass(self, when_s: float) -> None:
        measured_s = when_s - max(0.0, self.now_s)
        if measured_s > 0:
            self.tally.hole_block_s += measured_s * int((self.replicas == 0).sum())
            self.tally.unhosted_block_s += measured_s * max(0, self.blocks - self._fits_total)
            self.tally.peer_s += measured_s * self._there
        self.now_s = max(self.now_s, when_s)

    def _come(self, stay: Stay) -> None:
        peer = SimPeer(stay, self.columns.take(), Span(0, 1))
        self.columns.peers[peer.slot] = self.here[stay.peer] = peer
        self.columns.since_s[peer.slot] = self.now_s
        self._fits_total += stay.fits_blocks
        self.speed_total += stay.blocks_per_s
        self._there += 1
        self._choose(peer)
        self._announce(peer)
        self.at(self.now_s + CHOOSE_AGAIN_S, lambda: self._choose_again(peer))
        self.at(max(stay.until_s, self.now_s), lambda: self._leave(peer))

    def _choose(self, peer: SimPeer) -> None:
        peer.span = self._decide(lambda claims: self.rule.first(claims, self.blocks, peer.ability))

    def _choose_again(self, peer: SimPeer) -> None:
        if peer.state == "gone":
            return
        if self.rule.name == "ours":
            self._choose(peer)
            self._announce(peer)
        self._load(peer)

    def _load(self, peer: SimPeer) -> None:
        peer.loads += 1
        loads, takes_s = peer.loads, LOAD_S + LOAD_BLOCK_S * len(peer.span)

        def done() -> None:
            if peer.state != "gone" and peer.loads == loads:
                self._serve(peer)
                if loads == 1:
                    self._look_later(peer)

        self.at(self.now_s + takes_s, done)

    def _serve(self, peer: SimPeer) -> None:
        peer.state = "online"
        self.replicas[peer.span.start : peer.span.end] += 1
        self._announce(peer)

    def _stop_serving(self, peer: SimPeer) -> None:
        if peer.state == "online":
            self.replicas[peer.span.start : peer.span.end] -= 1

    def _look_later(self, peer: SimPeer) -> None:
        after_s = self.rule.next_look_s(int(self.columns.told.sum()), PeerId(peer.stay.peer), peer.looks)
        peer.looks += 1
        if after_s is not None:
            self.at(self.now_s + after_s, lambda: self._look(peer))

    def _look(self, peer: SimPeer) -> None:
        if peer.state == "gone":
            return
        if peer.state == "online":
            since_s = float(self.columns.since_s[peer.slot])
            standing = PresentPlace(peer.span, self.now_s - since_s, LOAD_S + LOAD_BLOCK_S * len(peer.span))
            better = self._decide(
                lambda claims: self.rule.better(claims, self.blocks, peer.ability, standing, self.now_s)
            )
            if better is not None:
                self._begin_move(peer, better)
        self._look_later(peer)

    def _begin_move(self, peer: SimPeer, span: Span) -> None:
        """Say so; ours looks once more before it lets go."""
        old = peer.span
        self._stop_serving(peer)
        peer.state, peer.span = "moving", span
        self._announce(peer)
        if self.rule.lets_sessions_move:
            self.at(self.now_s + SETTLE_S, lambda: self._go(peer, old))
        else:
            self._go(peer, old)

    def _go(self, peer: SimPeer, old: Span) -> None:
        if peer.state == "gone":
            return
        own = PeerId(peer.stay.peer)
        if self.rule.lets_sessions_move and not may_go(
            self.columns.claims(self.now_s), self.blocks, own, old
        ):
            peer.span = old
            self._serve(peer)
            return
        if self.now_s > 0:
            self.tally.moves += 1
        self.on_left(peer, self.rule.lets_sessions_move)
        self._load(peer)

    def _leave(self, peer: SimPeer) -> None:
        self._stop_serving(peer)
        peer.state = "gone"
        if self.here.get(peer.stay.peer) is peer:
            del self.here[peer.stay.peer]
        self._fits_total -= peer.stay.fits_blocks
        self.speed_total -= peer.stay.blocks_per_s
        self._there -= 1
        if peer.stay.planned:
            self.columns.give(peer.slot)
        else:  # renewed at a third of its life, so it has two thirds left, or a little more
            self.at(self.now_s + RECORD_LIFE_S * 5 / 6, lambda: self.columns.give(peer.slot))
        self.on_left(peer, peer.stay.planned)

    def _announce(self, peer: SimPeer) -> None:
        columns, slot, online = self.columns, peer.slot, peer.state == "online"
        columns.starts[slot], columns.ends[slot] = peer.span.start, peer.span.end
        columns.rates[slot] = peer.stay.blocks_per_s / len(peer.span) if online else 0.0
        columns.online[slot], columns.told[slot] = online, True

    def _decide(self, rule: Callable[[Claims], Result]) -> Result:
        begun = perf_counter()
        claims = self.columns.claims(self.now_s)
        result = rule(claims)
        if self.now_s > 0:
            self.tally.decisions += 1
            self.tally.decisions_s += perf_counter() - begun
            self.tally.fetched_records += len(claims)
        return result

    def _sample(self) -> None:
        servers = [
            Server(peer.span.start, peer.span.end, peer.stay.blocks_per_s)
            for peer in self.columns.peers
            if peer is not None and peer.state == "online"
        ]
        self.tally.weakest.append(most_tokens_per_s(servers, self.blocks))
        self.tally.fair.append(self.speed_total / self.blocks)
        self.tally.covered.append(float((self.replicas > 0).mean()))
        self.tally.peers.append(self._there)
        self.at(self.now_s + SAMPLE_EVERY_S, self._sample)


def _most_at_once(stays: Sequence[Stay]) -> int:
    """How many records there can be at a time."""
    changes: Counter[float] = Counter()
    for stay in stays:
        changes[stay.from_s] += 1
        changes[stay.until_s + RECORD_LIFE_S] -= 1
    most = held = 0
    for when_s in sorted(changes):
        held += changes[when_s]
        most = max(most, held)
    return most + len([stay for stay in stays if stay.until_s <= stay.from_s]) + 1
