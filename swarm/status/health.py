"""Is a model working? From what the directory claims and what canaries have shown.

Pure. Claims alone make nothing healthy: without a recent canary through all blocks a model is
unknown. What was seen overrules what is claimed: a peer that failed its last canary counts as absent.
"""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from swarm.status.proofs import ModelProof, PeerProof
from swarm.values import Span, duration, listed, short_id, spans_of
from swarm.wire.records import PeerRecord, Snapshot

Health = Literal["healthy", "degraded", "broken", "unknown"]
Condition = Literal[
    "proven", "slow", "failing", "disputed", "unproven", "incompatible", "joining", "draining", "gone"
]

LATELY_S = 180.0  # a whole canary older than this proves nothing about now
BLIND_AFTER_S = 60.0  # without a crawl that worked
SLOW_FACTOR = 5.0  # times the median of the model's peers, per block
SLOW_FLOOR_MS = 20.0  # per block; below it nobody is called slow
NAMED_PEERS = 3  # with a reason each; of more, only how many
MIN_MEASURED = 3  # peers, before any is called slow


@dataclass(frozen=True, slots=True)
class Assessment:
    """The judgement on one model at one instant."""

    health: Health
    reasons: tuple[str, ...]  # the gravest first, each a sentence without its full stop
    conditions: dict[str, Condition]  # by peer
    working: tuple[int, ...]  # peers by block that are online and did not fail
    missing: tuple[Span, ...]
    weakest: tuple[Span, ...]

    @property
    def replicas(self) -> int:
        """Of the weakest block: so many peers from an outage."""
        return min(self.working)


def assess(snapshot: Snapshot, proof: ModelProof, now: float) -> Assessment:
    """Judge a model. `now` is Unix seconds."""
    slow = _slow_peers(snapshot.online(), proof)
    conditions = {
        record.peer: _condition(record, proof.peers.get(record.peer), record.peer in slow)
        for record in snapshot.peers
    }
    failing = [peer for peer, condition in conditions.items() if condition == "failing"]
    working = snapshot.without(failing).coverage()  # type: ignore[arg-type]  # these are peer ids
    fewest = min(working)
    missing = spans_of(block for block, count in enumerate(working) if count == 0)
    health, reasons = _judge(snapshot, proof, conditions, working, now)
    return Assessment(
        health=health,
        reasons=tuple(reasons),
        conditions=conditions,
        working=tuple(working),
        missing=tuple(missing),
        weakest=tuple(spans_of(block for block, count in enumerate(working) if count == fewest)),
    )


def _condition(record: PeerRecord, proof: PeerProof | None, slow: bool) -> Condition:
    if record.state != "online":
        return record.state
    if not record.speaks_ours:
        return "incompatible"
    if proof is None:
        return "unproven"
    if proof.verdict in ("failed", "disputed"):
        return "failing" if proof.verdict == "failed" else "disputed"
    if proof.passed_at is None:
        return "unproven"
    return "slow" if slow else "proven"


def _slow_peers(online: Sequence[PeerRecord], proof: ModelProof) -> set[str]:
    per_block = {
        record.peer: measured / len(shown.blocks)
        for record in online
        if (shown := proof.peers.get(record.peer)) and (measured := shown.ms_per_token) is not None
    }
    if len(per_block) < MIN_MEASURED:
        return set()
    limit = max(SLOW_FLOOR_MS, SLOW_FACTOR * statistics.median(per_block.values()))
    return {peer for peer, measured in per_block.items() if measured > limit}


def _judge(
    snapshot: Snapshot,
    proof: ModelProof,
    conditions: dict[str, Condition],
    working: Sequence[int],
    now: float,
) -> tuple[Health, list[str]]:
    weak = _weaknesses(snapshot, proof, conditions, working)
    if now - snapshot.taken_at > BLIND_AFTER_S:
        return "unknown", [f"the directory has not answered for {duration(now - snapshot.taken_at)}"]
    if min(working) == 0:
        return "broken", _holes(snapshot, proof, conditions, working) + weak
    passed_at = proof.passed.at if proof.passed else None
    if passed_at is not None and now - passed_at <= LATELY_S:
        return ("degraded" if weak else "healthy"), weak
    if proof.last_failure_at is not None and now - proof.last_failure_at <= LATELY_S:
        return "broken", [f"every block is claimed, yet canaries fail: {proof.last_failure}", *weak]
    reason = "no canary has gone through all blocks yet"
    if passed_at is not None:
        reason = f"the last canary through all blocks passed {duration(now - passed_at)} ago"
    return "unknown", [reason, *weak]


def _holes(
    snapshot: Snapshot, proof: ModelProof, conditions: dict[str, Condition], working: Sequence[int]
) -> list[str]:
    claimed = snapshot.coverage()
    empty = spans_of(block for block, count in enumerate(working) if count == 0 and claimed[block] == 0)
    broken = spans_of(block for block, count in enumerate(working) if count == 0 and claimed[block] > 0)
    reasons = []
    if empty:
        reasons.append(f"no peer hosts {blocks_text(empty)}")
    if broken:
        culprits = [
            record
            for record in snapshot.online()
            if conditions[record.peer] == "failing" and any(record.span.overlap(span) for span in broken)
        ]
        told = listed([f"{short_id(r.peer)} {_why(proof, r.peer)}" for r in culprits], 2)
        reasons.append(f"nobody who hosts {blocks_text(broken)} answers properly: peer {told}")
    return reasons


def _weaknesses(
    snapshot: Snapshot, proof: ModelProof, conditions: dict[str, Condition], working: Sequence[int]
) -> list[str]:
    reasons = []
    for condition, text in (
        ("failing", "fail their canaries"),
        ("disputed", "disagree"),
        ("slow", "are slow"),
    ):
        peers = [record.peer for record in snapshot.online() if conditions[record.peer] == condition]
        if len(peers) <= NAMED_PEERS:
            told = ("is slow" if condition == "slow" else _why(proof, peer) for peer in peers)
            reasons += [f"peer {short_id(peer)} {why}" for peer, why in zip(peers, told, strict=True)]
        else:
            reasons.append(f"{len(peers)} peers {text}: {listed([short_id(peer) for peer in peers])}")
    foreign = [record for record in snapshot.peers if conditions[record.peer] == "incompatible"]
    if foreign:
        versions = listed([str(version) for version in sorted({record.wire_version for record in foreign})])
        who = "1 peer speaks" if len(foreign) == 1 else f"{len(foreign)} peers speak"
        reasons.append(f"{who} another wire version ({versions}) and cannot be used until it is updated")
    single = spans_of(block for block, count in enumerate(working) if count == 1)
    if single:
        reasons.append(f"{blocks_text(single)} {'have' if _many(single) else 'has'} one working peer only")
    return reasons


def blocks_text(spans: Sequence[Span]) -> str:
    """``"block 4"``, or ``"blocks 4:9, 12:14"``."""
    return f"{'blocks' if _many(spans) else 'block'} {listed([_span_text(span) for span in spans])}"


def _many(spans: Sequence[Span]) -> bool:
    return sum(map(len, spans)) > 1


def _span_text(span: Span) -> str:
    return str(span) if len(span) > 1 else str(span.start)


def _why(proof: ModelProof, peer: str) -> str:
    shown = proof.peers.get(peer)
    return shown.reason if shown and shown.reason else "failed its canary"
