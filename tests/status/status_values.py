"""Values for the tests of the status page: records, proofs and states of a small model."""

from swarm.status.proofs import ChainProof, ModelProof, PeerProof
from swarm.status.snapshot import SwarmState, summarize
from swarm.values import ModelDigest, Span
from swarm.wire.records import ModelRecord, PeerRecord, Snapshot

NOW = 1_800_000_000.0
DIGEST = "ab" * 32


def record(peer: str, start: int, end: int, **changes) -> PeerRecord:
    fields = {
        "peer": peer, "model": DIGEST, "issued_at": NOW - 3, "expires_at": NOW + 27, "sequence": 1,
        "start": start, "end": end, "state": "online", "dtype": "fp32", "quantization": "none",
        "decode_tokens_per_s": 20.0, "prefill_tokens_per_s": 400.0, "free_tokens": 4096, "queue_depth": 0,
        "started_at": NOW - 3600, "wire_version": 1, "software": "0.1.0",
    }  # fmt: skip
    return PeerRecord(**(fields | changes))


def model_record(**changes) -> ModelRecord:
    fields = {
        "peer": "sponsor", "model": DIGEST, "issued_at": NOW, "expires_at": NOW + 30, "sequence": 1,
        "name": "tiny", "num_blocks": 6, "hidden_size": 48, "model_type": "llama",
    }  # fmt: skip
    return ModelRecord(**(fields | changes))


def snapshot(*records: PeerRecord, num_blocks: int = 6, taken_at: float = NOW) -> Snapshot:
    return Snapshot(ModelDigest(DIGEST), num_blocks, records, taken_at)


def shown(verdict: str = "passed", **changes) -> PeerProof:
    passed_at = NOW - 10 if verdict in ("passed", "answered") else None
    fields = {
        "verdict": verdict, "reason": "", "at": NOW - 10, "proof": "expected", "blocks": Span(0, 3),
        "passed_at": passed_at, "ms_per_token": 12.0, "rtt_ms": 2.0, "runs": 1, "steps": 4, "tokens": 8,
    }  # fmt: skip
    return PeerProof(**(fields | changes))


def proof(
    peers: dict[str, PeerProof] | None = None, passed_ago_s: float | None = 10.0, **changes
) -> ModelProof:
    passed = (
        ChainProof(NOW - passed_ago_s, " Paris.", 0.2, 15.0, ("a", "b")) if passed_ago_s is not None else None
    )
    fields = {
        "peers": peers or {}, "passed": passed, "proof": "expected", "prompt": "The capital of France is",
        "tokens_per_s": 15.0, "ttft_s": 0.2, "runs": 3,
    }  # fmt: skip
    return ModelProof(**(fields | changes))


def state(*records: PeerRecord, at: float = NOW, shown_by: ModelProof | None = None, **model) -> SwarmState:
    about = model_record(**model)
    seen = snapshot(*records, num_blocks=about.num_blocks, taken_at=at)
    return SwarmState(at, at, (summarize(about, seen, shown_by or proof(), at),))
