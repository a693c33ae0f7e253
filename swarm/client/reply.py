"""What a request gives: pieces while it runs, a reply when it is done, and how it came about.

Plain values. `Reply` serialises to the object that `--json` prints.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

from swarm.errors import LossKind
from swarm.model.head import ScoredToken
from swarm.session.hop import Hop
from swarm.session.line import Resume

FinishReason = Literal["stop", "length"]


@dataclass(frozen=True, slots=True)
class Piece:
    """One token of a reply. `text` may be empty while a character or stop string is incomplete."""

    text: str
    token_id: int
    logprob: float
    top_logprobs: tuple[tuple[int, float], ...] = ()  # (token id, logprob), likeliest first
    finish_reason: FinishReason | None = None  # set on the last piece
    stopped_by: str | None = None  # the stop string that ended the reply, if one did


@dataclass(frozen=True, slots=True)
class HopReport:
    """What one hop of the chain did for a reply; times and bytes are per token."""

    peer: str
    blocks: str
    dtype: str
    quant: str
    compute_ms: float
    network_ms: float
    bytes_per_token: int


@dataclass(frozen=True, slots=True)
class ResumeReport:
    """A loss in mid-reply, and what it cost."""

    at_token: int  # of the conversation
    lost_peer: str
    kind: LossKind  # for code
    reason: str  # for people
    replayed_tokens: int
    stall_s: float
    recovery: Literal["fast", "exact"]


@dataclass(frozen=True, slots=True)
class Reply:
    """A whole reply. `token_ids` includes the token that ended it."""

    model: str
    manifest: str
    text: str
    token_ids: tuple[int, ...]
    finish_reason: FinishReason
    prompt_tokens: int
    completion_tokens: int
    ttft_s: float  # from the request to the first token
    tokens_per_s: float  # after the first token
    hops: tuple[HopReport, ...]
    resumes: tuple[ResumeReport, ...]
    prompt_logprobs: tuple[ScoredToken, ...] = ()  # of all but the first, where they were asked for

    def to_json(self) -> dict[str, Any]:
        """The object that `swarm generate --json` prints."""
        return asdict(self)


def report_hops(hops: Sequence[Hop]) -> tuple[HopReport, ...]:
    """The chain as it is now, with averages over what each hop has done."""
    return tuple(
        HopReport(
            peer=hop.planned.peer,
            blocks=str(hop.planned.span),
            dtype=hop.planned.numerics.dtype,
            quant=hop.planned.numerics.quantization,
            compute_ms=round(hop.stats.compute_ms / max(1, hop.stats.tokens), 3),
            network_ms=round(hop.stats.network_ms / max(1, hop.stats.tokens), 3),
            bytes_per_token=(hop.stats.sent_bytes + hop.stats.received_bytes) // max(1, hop.stats.tokens),
        )
        for hop in hops
    )


def report_resumes(resumes: Sequence[Resume]) -> tuple[ResumeReport, ...]:
    """The losses that were survived."""
    return tuple(
        ResumeReport(
            at_token=resume.at_token,
            lost_peer=resume.lost_peer,
            kind=resume.kind,
            reason=resume.reason,
            replayed_tokens=resume.replayed_tokens,
            stall_s=round(resume.stall_s or 0.0, 3),
            recovery="exact" if resume.exact else "fast",
        )
        for resume in resumes
    )
