"""What a snapshot means for people: does the model work, where is it weakest, who hosts it.

Pure. The same summary serves `swarm status` and the status page. Every text that comes from a peer
has been cleaned, every number is finite; no address and no place is in here.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from swarm.peer.placement.choice import coverage_to_come, worst_window
from swarm.plain_text import one_line
from swarm.status.health import BLIND_AFTER_S, Assessment, Condition, Health, assess
from swarm.status.proofs import ModelProof, PeerProof, Proof
from swarm.values import Span
from swarm.wire.records import ModelRecord, PeerRecord, Snapshot

MAX_NAME = 48  # characters shown of a peer's name
MAX_MODEL_NAME = 80
MAX_WORD = 16  # of a dtype, a version and the like


@dataclass(frozen=True, slots=True)
class PeerStatus:
    """One peer as people see it. Times are Unix seconds, None where nothing was measured."""

    peer: str
    name: str  # as the peer calls itself; empty when it chose none
    blocks: str
    state: str  # what its record says
    condition: Condition  # what was seen
    reason: str  # why it failed
    dtype: str
    quantization: str
    relayed: bool
    announced_tokens_per_s: float
    ms_per_token: float | None  # through its span, measured by this page
    rtt_ms: float | None
    free_tokens: int
    queue_depth: int
    sessions_resumed: int  # since it started, as it says
    uptime_s: float
    seen_at: float
    proven_at: float | None
    software: str
    canary_runs: int
    canary_steps: int
    canary_tokens: int
    canary_compute_s: float


@dataclass(frozen=True, slots=True)
class ModelStatus:
    """One model as people see it."""

    name: str
    manifest: str
    num_blocks: int
    model_type: str
    health: Health
    reasons: tuple[str, ...]
    whole: bool  # every block has a peer that is online and did not fail
    claimed: tuple[int, ...]  # online peers by block, as they say
    coverage: tuple[int, ...]  # without those that fail
    missing: tuple[str, ...]  # spans without one
    replicas: int  # of the weakest block: so many peers from an outage
    weakest: tuple[str, ...]  # spans with so few
    wanted: str  # the span that a new peer should host
    tokens_per_s: float | None  # as measured by canaries; None while it does not work
    ttft_s: float | None
    proof: Proof
    proven_at: float | None  # when a canary last went through all blocks and passed
    canary_prompt: str
    canary_text: str
    canary_runs: int
    canary_tokens: int
    canary_interrupted: int
    peers: tuple[PeerStatus, ...]  # by their blocks, those that are gone at the end


@dataclass(frozen=True, slots=True)
class SwarmState:
    """The swarm at one instant. `seen_at` is the last crawl that worked; None before the first."""

    at: float  # Unix seconds
    seen_at: float | None
    models: tuple[ModelStatus, ...] = ()
    models_left_out: int = 0

    @property
    def health(self) -> Health:
        """Of the swarm as a whole: healthy or broken only when all that is known says so."""
        known = {model.health for model in self.models if model.health != "unknown"}
        if self.blind or not known:
            return "unknown"
        return known.pop() if len(known) == 1 else "degraded"

    @property
    def blind(self) -> bool:
        """Whether the directory has not answered for a while, so that nothing here is current."""
        return self.seen_at is None or self.at - self.seen_at > BLIND_AFTER_S


def summarize(
    model: ModelRecord, snapshot: Snapshot, proof: ModelProof, now: float, gone: Sequence[PeerRecord] = ()
) -> ModelStatus:
    """The state of one model. `gone` are peers that were there lately."""
    judged = assess(snapshot, proof, now)
    passed = proof.passed
    works = judged.health in ("healthy", "degraded")
    peers = [_peer(record, judged, proof.peers.get(record.peer), now) for record in _ordered(snapshot)]
    absent = [_peer(record, None, proof.peers.get(record.peer), now) for record in gone]
    return ModelStatus(
        name=one_line(model.name, MAX_MODEL_NAME),
        manifest=model.model,
        num_blocks=model.num_blocks,
        model_type=one_line(model.model_type, MAX_WORD),
        health=judged.health,
        reasons=judged.reasons,
        whole=judged.replicas > 0,
        claimed=tuple(snapshot.coverage()),
        coverage=judged.working,
        missing=tuple(map(str, judged.missing)),
        replicas=judged.replicas,
        weakest=tuple(map(str, judged.weakest)),
        wanted=str(_wanted(snapshot, judged)),
        tokens_per_s=proof.tokens_per_s if works else None,
        ttft_s=proof.ttft_s if works else None,
        proof=proof.proof,
        proven_at=passed.at if passed else None,
        canary_prompt=proof.prompt,
        canary_text=one_line(passed.text, 120) if passed else "",
        canary_runs=proof.runs,
        canary_tokens=proof.tokens,
        canary_interrupted=proof.interrupted,
        peers=tuple(peers + absent),
    )


def _wanted(snapshot: Snapshot, judged: Assessment) -> Span:
    """The worst-covered window as long as the model's peers usually host; at first, the whole model."""
    if judged.missing:
        return judged.missing[0]
    failing = [record.peer_id for record in snapshot.peers if judged.conditions[record.peer] == "failing"]
    lengths = sorted(len(record.span) for record in snapshot.online())
    usual = lengths[len(lengths) // 2] if lengths else snapshot.num_blocks
    return worst_window(coverage_to_come(snapshot.without(failing)), usual)


def _ordered(snapshot: Snapshot) -> list[PeerRecord]:
    return sorted(snapshot.peers, key=lambda record: (record.start, record.end, record.peer))


def _peer(record: PeerRecord, judged: Assessment | None, proof: PeerProof | None, now: float) -> PeerStatus:
    return PeerStatus(
        peer=record.peer,
        name=one_line(record.public_name, MAX_NAME),
        blocks=str(record.span),
        state=record.state if judged else "gone",
        condition=judged.conditions[record.peer] if judged else "gone",
        reason=_reason(record, proof),
        dtype=one_line(record.dtype, MAX_WORD),
        quantization=one_line(record.quantization, MAX_WORD),
        relayed=record.relayed,
        announced_tokens_per_s=round(record.decode_tokens_per_s, 2),
        ms_per_token=proof.ms_per_token if proof else None,
        rtt_ms=proof.rtt_ms if proof else None,
        free_tokens=_bounded(record.free_tokens),
        queue_depth=_bounded(record.queue_depth),
        sessions_resumed=_bounded(record.sessions_resumed),
        uptime_s=round(_age(record.started_at, now), 1) if record.started_at else 0.0,
        seen_at=round(min(record.issued_at, now), 1),
        proven_at=proof.passed_at if proof else None,
        software=one_line(record.software, MAX_WORD),
        canary_runs=proof.runs if proof else 0,
        canary_steps=proof.steps if proof else 0,
        canary_tokens=proof.tokens if proof else 0,
        canary_compute_s=round(proof.compute_s, 4) if proof else 0.0,
    )


def _reason(record: PeerRecord, proof: PeerProof | None) -> str:
    if not record.speaks_ours:
        return f"speaks wire version {record.wire_version}"
    return proof.reason if proof else ""


def _age(since: float, now: float) -> float:
    age = now - since
    return max(0.0, age) if math.isfinite(age) else 0.0


def _bounded(count: int) -> int:
    return min(max(0, count), 10**12)
