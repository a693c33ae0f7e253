"""Replies in a simulated swarm: planned by the router that clients run, and planned again when a hop is lost.

What a client does about a loss is told here in its own words, not run: it hears of it (a broken stream, or
silence for a lease), plans the lost blocks without the peers that did not answer, waits while nobody hosts
them, and sends the new peers what they have not seen.
"""

from dataclasses import dataclass, field

import numpy as np

from swarm.bench.simulate.world import SimPeer, World
from swarm.client.client import ClientOptions
from swarm.client.router import RouteHints, plan
from swarm.errors import NoRoute
from swarm.session.plan import PlannedHop
from swarm.values import ModelDigest, PeerId, Span
from swarm.wire.messages import WIRE_VERSION
from swarm.wire.records import PeerRecord, Snapshot

MEDIAN_TOKENS, TOKENS_SIGMA = 200, 1.0
PREFILL_FACTOR = 20.0  # so many times faster are rows that are sent together
BROKEN_S, DIAL_S = 0.05, 0.1  # to hear of a broken stream; to find that a peer does not answer
SILENT_SHARE = 0.5  # of the peers that go without a word: a machine that sleeps, a link that is cut
ASK_AGAIN_S, SELDOM_S = 0.5, 5.0  # while nobody hosts a block: at first, and doubling up to
_MODEL = ModelDigest("0" * 64)


@dataclass(slots=True)
class Replies:
    """What became of the requests."""

    completed: int = 0
    errors: int = 0  # although every block had a live peer
    unhosted: int = 0  # given up because some block had none for longer than a client waits
    stalls_s: list[float] = field(default_factory=list)
    tokens_per_s: list[float] = field(default_factory=list)


@dataclass(slots=True, eq=False)
class _SimReply:
    began_s: float
    tokens: int
    hops: tuple[PlannedHop, ...]
    stalled_s: float = 0.0
    over: bool = False
    turn: int = 0  # so that an end that was put off is not the end


class Requests:
    """Has requests come into a world, `per_hour` on average. Make it before the world runs."""

    def __init__(self, world: World, per_hour: float, seed: int) -> None:
        self.replies = Replies()
        self._world, self._per_hour = world, per_hour
        self._rng = np.random.default_rng([seed, 1])
        self._using: dict[str, set[_SimReply]] = {}
        self._patience_s, self._lease_s = ClientOptions().patience_s, ClientOptions().lease_s
        world.on_left = self._lose
        if per_hour > 0:
            world.at(0.0, self._next)

    def _next(self) -> None:
        self._world.at(self._world.now_s + float(self._rng.exponential(3600 / self._per_hour)), self._next)
        tokens = max(1, int(MEDIAN_TOKENS * self._rng.lognormal(0.0, TOKENS_SIGMA)))
        reply = _SimReply(self._world.now_s, tokens, ())
        self._find(reply, Span(0, self._world.blocks), self._world.now_s, 0.0)

    def _find(self, reply: _SimReply, span: Span, since_s: float, lost_s: float) -> None:
        """Plan the blocks that have no hop, or wait and try again."""
        now_s, tried_s, gone = self._world.now_s, 0.0, set[PeerId]()
        while True:
            try:
                hops = plan(self._snapshot(), span, RouteHints(excluded=frozenset(gone)))
            except NoRoute:
                self._wait(reply, span, since_s, lost_s)
                return
            dead = {hop.peer for hop in hops if not self._serves(hop)}
            if not dead:
                break
            gone |= dead
            tried_s += DIAL_S
        reply.hops = tuple(sorted((*reply.hops, *hops), key=lambda hop: hop.span.start))
        self._go_on(reply, hops, lost_s + now_s - since_s + tried_s)

    def _wait(self, reply: _SimReply, span: Span, since_s: float, lost_s: float) -> None:
        waited_s = self._world.now_s - since_s
        if waited_s < self._patience_s:
            again_s = self._world.now_s + min(SELDOM_S, max(ASK_AGAIN_S, waited_s))
            self._world.at(again_s, lambda: self._find(reply, span, since_s, lost_s))
            return
        if (self._world.replicas[span.start : span.end] > 0).all():
            self.replies.errors += 1
        else:
            self.replies.unhosted += 1
        self._end(reply)

    def _go_on(self, reply: _SimReply, new: tuple[PlannedHop, ...], stall_s: float) -> None:
        token_s = sum(hop.expected_ms for hop in reply.hops) / 1e3
        seen = min(reply.tokens, int((self._world.now_s - reply.began_s) / max(1e-3, token_s)))
        stall_s += seen * sum(hop.expected_ms for hop in new) / 1e3 / PREFILL_FACTOR
        if reply.turn:
            self.replies.stalls_s.append(stall_s)
        reply.stalled_s += stall_s
        reply.turn += 1
        for hop in new:
            self._using.setdefault(hop.peer, set()).add(reply)
            if peer := self._peer(hop.peer):
                peer.queue += 1
        ends_s = reply.began_s + reply.stalled_s + reply.tokens * token_s
        turn = reply.turn
        self._world.at(max(self._world.now_s, ends_s), lambda: self._complete(reply, turn))

    def _complete(self, reply: _SimReply, turn: int) -> None:
        if reply.over or reply.turn != turn:
            return
        if sum(len(hop.span) for hop in reply.hops) < self._world.blocks:
            return  # a hop was lost, and no other is found yet
        self.replies.completed += 1
        took_s = max(1e-3, self._world.now_s - reply.began_s)
        self.replies.tokens_per_s.append(reply.tokens / took_s)
        self._end(reply)

    def _end(self, reply: _SimReply) -> None:
        reply.over = True
        for hop in reply.hops:
            self._leave_hop(reply, hop)
        reply.hops = ()

    def _leave_hop(self, reply: _SimReply, hop: PlannedHop) -> None:
        self._using.get(hop.peer, set()).discard(reply)
        if peer := self._peer(hop.peer):
            peer.queue = max(0, peer.queue - 1)

    def _lose(self, peer: SimPeer, planned: bool) -> None:
        """A peer has gone, or left its blocks. One that says so is left while it still serves."""
        replies = sorted(self._using.pop(peer.stay.peer, set()), key=lambda reply: reply.began_s)
        silent = not planned and self._rng.random() < SILENT_SHARE
        lost_s = 0.0 if planned else self._lease_s if silent else BROKEN_S
        for reply in replies:
            lost = [hop for hop in reply.hops if hop.peer == peer.stay.peer]
            reply.hops = tuple(hop for hop in reply.hops if hop.peer != peer.stay.peer)
            for hop in lost:
                self._find(reply, hop.span, self._world.now_s, lost_s)

    def _serves(self, hop: PlannedHop) -> bool:
        peer = self._peer(hop.peer)
        return (
            peer is not None and peer.state == "online" and peer.span.start <= hop.span.start < peer.span.end
        )

    def _peer(self, name: str) -> SimPeer | None:
        return self._world.here.get(name)

    def _snapshot(self) -> Snapshot:
        columns, now_s = self._world.columns, self._world.now_s
        told = [columns.peers[slot] for slot in np.flatnonzero(columns.told & columns.online)]
        records = tuple(self._record(peer, now_s) for peer in told if peer is not None)
        return Snapshot(_MODEL, self._world.blocks, records, now_s)

    def _record(self, peer: SimPeer, now_s: float) -> PeerRecord:
        """What it announces. A reply is at a peer for about its blocks' share of the time."""
        rate = peer.stay.blocks_per_s / len(peer.span)
        return PeerRecord(
            peer=peer.stay.peer, model=_MODEL, issued_at=now_s, expires_at=now_s + 30, sequence=0,
            start=peer.span.start, end=peer.span.end, state="online", dtype="bf16", quantization="none",
            decode_tokens_per_s=rate, prefill_tokens_per_s=rate * PREFILL_FACTOR, free_tokens=10**6,
            queue_depth=peer.queue * len(peer.span) // self._world.blocks,
            wire_version=WIRE_VERSION, software="",
        )  # fmt: skip
