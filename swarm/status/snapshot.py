"""What a snapshot means for people: is the model whole, where is it weakest, who hosts it.

Pure. The same summary serves `swarm status` and the status page.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from swarm.values import Span, spans_of
from swarm.wire.records import ModelRecord, PeerRecord, Snapshot


@dataclass(frozen=True, slots=True)
class PeerStatus:
    """One peer as people see it. `seen_s` is how old its record is."""

    peer: str
    name: str
    blocks: str
    state: str
    dtype: str
    quantization: str
    relayed: bool
    decode_tokens_per_s: float
    free_tokens: int
    queue_depth: int
    uptime_s: float
    seen_s: float
    software: str


@dataclass(frozen=True, slots=True)
class ModelStatus:
    """One model as people see it."""

    name: str
    manifest: str
    num_blocks: int
    whole: bool
    coverage: tuple[int, ...]  # online peers by block
    missing: tuple[str, ...]  # spans without one
    replicas: int  # of the weakest block: so many peers from an outage
    weakest: tuple[str, ...]  # spans with so few
    peers: tuple[PeerStatus, ...]


def summarize(model: ModelRecord, snapshot: Snapshot) -> ModelStatus:
    """The state of one model at the snapshot's instant."""
    coverage = snapshot.coverage()
    fewest = min(coverage)
    return ModelStatus(
        name=model.name,
        manifest=model.model,
        num_blocks=model.num_blocks,
        whole=fewest > 0,
        coverage=tuple(coverage),
        missing=tuple(map(str, snapshot.holes())),
        replicas=fewest,
        weakest=tuple(map(str, _blocks_with(coverage, fewest))),
        peers=tuple(_peer(record, snapshot.taken_at) for record in sorted(snapshot.peers, key=_order)),
    )


def _blocks_with(coverage: Sequence[int], count: int) -> list[Span]:
    return spans_of(block for block, covered in enumerate(coverage) if covered == count)


def _order(record: PeerRecord) -> tuple[int, int, str]:
    return record.start, record.end, record.peer


def _peer(record: PeerRecord, now: float) -> PeerStatus:
    return PeerStatus(
        peer=record.peer,
        name=record.public_name,
        blocks=str(record.span),
        state=record.state,
        dtype=record.dtype,
        quantization=record.quantization,
        relayed=record.relayed,
        decode_tokens_per_s=record.decode_tokens_per_s,
        free_tokens=record.free_tokens,
        queue_depth=record.queue_depth,
        uptime_s=max(0.0, now - record.started_at),
        seen_s=max(0.0, now - record.issued_at),
        software=record.software,
    )
