"""What canaries have shown about a model and its peers, as values.

Pure. Says nothing about what the directory claims; `status/health` puts the two together.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from swarm.values import Span

Proof = Literal["expected", "agreement", "none"]
"""What an answer was compared with: the answer this page computed from the model's own files; the
answers of other peers (and of the same peer before) to the same question; or nothing yet."""

Verdict = Literal["passed", "failed", "disputed", "answered", "busy"]
"""``answered``: in time, but with nothing to compare it with. ``busy``: it refused for lack of room."""


@dataclass(frozen=True, slots=True)
class PeerProof:
    """The last canary through one peer, and what all of them cost and measured there."""

    verdict: Verdict
    reason: str  # in a person's words, when it did not pass
    at: float  # Unix seconds
    proof: Proof
    blocks: Span
    passed_at: float | None = None
    ms_per_token: float | None = None  # compute and network, at one token a step
    rtt_ms: float | None = None
    runs: int = 0
    steps: int = 0  # answered by the peer, over all runs
    tokens: int = 0
    compute_s: float = 0.0  # as the peer counts it


@dataclass(frozen=True, slots=True)
class ChainProof:
    """A canary that went through all blocks."""

    at: float
    text: str  # what was generated; empty where this page has no tokenizer for the model
    ttft_s: float
    tokens_per_s: float
    peers: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ModelProof:
    """All that canaries have shown about a model."""

    peers: Mapping[str, PeerProof] = field(default_factory=dict)
    passed: ChainProof | None = None  # the last whole chain that passed
    last_failure: str = ""
    last_failure_at: float | None = None
    proof: Proof = "none"
    prompt: str = ""  # what the canary asks; empty where it sends made-up hidden states
    tokens_per_s: float | None = None  # median of the last whole chains
    ttft_s: float | None = None
    runs: int = 0
    tokens: int = 0  # pushed through each hop of a chain, over all runs
    interrupted: int = 0  # runs that lost a hop on their way
