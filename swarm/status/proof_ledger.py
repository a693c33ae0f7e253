"""Adds up canary runs into what they have shown: the one place where a run becomes a verdict.

Holds a bounded memory: the last runs of a model, and one entry for each peer of its snapshot. The
clock is an argument.
"""

import statistics
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from swarm.plain_text import one_line
from swarm.status.agreement import Opinion, Trace, opinions, tolerance_of
from swarm.status.canary import CanaryRun, HopResult
from swarm.status.proofs import ChainProof, ModelProof, PeerProof, Proof, Verdict
from swarm.status.schedule import ScheduledCanary
from swarm.values import short_id

KEPT_RUNS = 24  # compared with each other; compared in pairs
KEPT_SPEEDS = 9  # whole chains whose median is told
MAX_REASON = 100

_VERDICTS: dict[Opinion, tuple[Verdict, str]] = {
    "agreed": ("passed", ""),
    "alone": ("answered", ""),
    "outvoted": ("failed", "answers unlike the others"),
    "disputed": ("disputed", "answers unlike another peer, and nobody knows who is right"),
    "inconsistent": ("failed", "answers the same question differently each time"),
}
_OPINION_REASONS = frozenset(reason for _, reason in _VERDICTS.values())


@dataclass(slots=True)
class ProofLedger:
    """What canaries have shown about one model so far."""

    prompt: str = ""
    expects: bool = False  # the right answer is known
    _proof: ModelProof = field(default_factory=ModelProof)
    _peers: dict[str, PeerProof] = field(default_factory=dict)
    _exercised_at: dict[str, float] = field(default_factory=dict)
    _traces: deque[list[Trace]] = field(default_factory=lambda: deque(maxlen=KEPT_RUNS))
    _speeds: deque[ChainProof] = field(default_factory=lambda: deque(maxlen=KEPT_SPEEDS))

    @property
    def proof(self) -> ModelProof:
        """Everything shown, as of now."""
        return self._proof

    @property
    def exercised_at(self) -> dict[str, float]:
        """When each peer's whole span was last run."""
        return self._exercised_at

    @property
    def failing(self) -> frozenset[str]:
        """Peers that failed their last canary."""
        return frozenset(peer for peer, proof in self._peers.items() if proof.verdict == "failed")

    def keep_only(self, peers: Iterable[str]) -> None:
        """Forget peers that are gone."""
        kept = set(peers)
        for held in (self._peers, self._exercised_at):
            for peer in held.keys() - kept:
                del held[peer]

    def note_run(self, run: CanaryRun, turn: ScheduledCanary, now: float) -> None:
        """Take in a finished run of that turn."""
        self._exercised_at.update(dict.fromkeys(turn.exercised, now))
        if not self.expects:
            self._traces.append(_trace(run))
        views = {} if self.expects else opinions(list(self._traces))
        for result in run.hops:
            if result.steps or result.fault:
                self._note_hop(result, views, now)
        self._review(views)
        failed = [hop for hop in run.hops if hop.fault and not hop.busy]
        passed = run.whole and self._is_borne_out(run)
        self._note_chain(run, passed, failed, now)

    def _is_borne_out(self, run: CanaryRun) -> bool:
        """A whole run counts when no hop of it is in doubt."""
        return all(self._peers[hop.planned.peer].verdict in ("passed", "answered") for hop in run.hops)

    def _note_hop(self, result: HopResult, views: dict[str, Opinion], now: float) -> None:
        before = self._peers.get(result.planned.peer)
        verdict, reason = self._verdict(result, views)
        passes = verdict in ("passed", "answered")
        if verdict == "busy" and before is not None:
            verdict, reason = before.verdict, before.reason  # nothing was learnt
        self._peers[result.planned.peer] = PeerProof(
            verdict=verdict,
            reason=one_line(reason, MAX_REASON),
            at=now,
            proof="expected" if self.expects else _kind_of(verdict),
            blocks=result.planned.span,
            passed_at=now if passes else before.passed_at if before else None,
            ms_per_token=_smoothed(before.ms_per_token if before else None, result.ms_per_token),
            rtt_ms=_smoothed(before.rtt_ms if before else None, result.rtt_ms),
            runs=(before.runs if before else 0) + 1,
            steps=(before.steps if before else 0) + result.steps,
            tokens=(before.tokens if before else 0) + result.tokens,
            compute_s=(before.compute_s if before else 0.0) + result.compute_ms / 1e3,
        )

    def _review(self, views: dict[str, Opinion]) -> None:
        """A new run may settle what earlier ones left open about peers that are not in it."""
        for peer, opinion in views.items():
            before = self._peers.get(peer)
            if before is None or before.reason not in _OPINION_REASONS:
                continue  # gone, or it failed on its own
            verdict, reason = _VERDICTS[opinion]
            passed_at = before.at if verdict in ("passed", "answered") else before.passed_at
            self._peers[peer] = replace(
                before, verdict=verdict, reason=reason, passed_at=passed_at, proof=_kind_of(verdict)
            )

    def _verdict(self, result: HopResult, views: dict[str, Opinion]) -> tuple[Verdict, str]:
        if result.busy:
            return "busy", result.fault
        if result.fault:
            return "failed", result.fault
        return ("passed", "") if self.expects else _VERDICTS[views[result.planned.peer]]

    def _note_chain(self, run: CanaryRun, passed: bool, failed: list[HopResult], now: float) -> None:
        proof = self._proof
        chain = proof.passed
        if passed:
            chain = ChainProof(
                now, run.text, run.ttft_s, run.tokens_per_s, tuple(hop.planned.peer for hop in run.hops)
            )
            self._speeds.append(chain)
        failure = "; ".join(
            f"peer {short_id(hop.planned.peer)} {one_line(hop.fault, MAX_REASON)}" for hop in failed[:2]
        )
        self._proof = replace(
            proof,
            peers=dict(self._peers),
            passed=chain,
            last_failure=failure or proof.last_failure,
            last_failure_at=now if failure else proof.last_failure_at,
            proof=self._kind(),
            prompt=self.prompt,
            tokens_per_s=_median([speed.tokens_per_s for speed in self._speeds]),
            ttft_s=_median([speed.ttft_s for speed in self._speeds]),
            runs=proof.runs + 1,
            tokens=proof.tokens + max((hop.tokens for hop in run.hops), default=0),
            interrupted=proof.interrupted + run.interrupted,
        )

    def _kind(self) -> Proof:
        if self.expects:
            return "expected"
        return "agreement" if any(proof.proof == "agreement" for proof in self._peers.values()) else "none"


def _kind_of(verdict: Verdict) -> Proof:
    return "none" if verdict == "answered" else "agreement"


def _trace(run: CanaryRun) -> list[Trace]:
    """The hops up to the first that did not answer."""
    traces = []
    for hop in run.hops:
        if hop.left is None:
            break
        numerics = hop.planned.numerics
        tolerance = tolerance_of(numerics.dtype, numerics.quantization)
        traces.append(Trace(hop.planned.peer, hop.planned.span.end, hop.left, tolerance))
    return traces


def _smoothed(before: float | None, measured: float | None) -> float | None:
    if before is None or measured is None:
        return measured if before is None else before
    return before + 0.3 * (measured - before)


def _median(values: list[float]) -> float | None:
    return round(statistics.median(values), 4) if values else None
