"""One canary: a small generation through a given chain, which is never replaced on its way.

Hidden states come back to this page after every hop, so what is wrong is known by hop. Where the
right states are known, the generation goes on with them behind a hop that is lost or wrong, so that
one bad peer hides nobody behind it. Judges no one without a reference; that is `status/agreement`.
"""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from torch import Tensor

from swarm.errors import HopLost, LossKind, NetworkError, ProtocolError, SessionRefused
from swarm.network.transport import Network
from swarm.security.session_key import SessionKey
from swarm.session.hop import Hop, HopSettings
from swarm.session.plan import PlannedHop
from swarm.session.remote_hop import open_hop
from swarm.status.agreement import Fingerprint, alike, tolerance_of
from swarm.status.question import CanaryQuestion, Fingerprints
from swarm.values import ModelDigest
from swarm.wire.messages import NO_ROOM

OPEN_TIMEOUT_S = 5.0
LEASE_S = 3.0
MAX_KV_TOKENS = 64
RUN_TIMEOUT_S = 40.0
BROKE_PROTOCOL = "broke the protocol"
# A loss as it stands after a peer's name. Never the other end's own text: it would be published.
IN_WORDS: Mapping[LossKind, str] = {
    "silent": "went silent",
    "stalled": "went silent",
    "broken": "broke off",
    "late": "takes too long",
    "refused": "refused the request",
    "full": "refused the request",
}
_BUSY = frozenset({NO_ROOM, "draining"})


@dataclass(slots=True)
class HopResult:
    """What one hop did in a canary. `fault` is empty when nothing was wrong."""

    planned: PlannedHop
    fault: str = ""
    busy: bool = False
    left: Fingerprint | None = None  # of the first step, when it was answered
    steps: int = 0
    tokens: int = 0
    compute_ms: float = 0.0
    decode_ms: float = 0.0  # waiting for all steps but the first
    rtt_ms: float | None = None

    @property
    def ms_per_token(self) -> float | None:
        """Compute and network, at one token a step; of the first step when there was only one."""
        return self.decode_ms / (self.steps - 1) if self.steps > 1 else None


@dataclass(slots=True)
class CanaryRun:
    """A finished canary. `whole`: every hop answered every step, and rightly as far as can be told."""

    hops: list[HopResult]
    token_ids: list[int] = field(default_factory=list)
    whole: bool = False
    interrupted: bool = False
    ttft_s: float = 0.0
    tokens_per_s: float = 0.0
    text: str = ""


@dataclass(frozen=True, slots=True)
class Canary:
    """Asks one question of chains over one model."""

    network: Network
    model: ModelDigest
    question: CanaryQuestion
    fingerprints: Fingerprints

    async def run(self, chain: Sequence[PlannedHop]) -> CanaryRun:
        """Run it through a chain. What goes wrong is in the result; nothing is raised for it."""
        run = CanaryRun([HopResult(planned) for planned in chain])
        started_at = _now()
        hops = await self._open_all(run.hops)
        try:
            async with asyncio.timeout(RUN_TIMEOUT_S):
                await self._generate(run, hops, started_at)
        except TimeoutError:
            _blame_silent(run.hops)
        finally:
            await asyncio.gather(*(hop.close() for hop in hops if hop is not None))
        run.whole = len(run.token_ids) == self.question.steps and not any(hop.fault for hop in run.hops)
        run.interrupted = any(hop.fault and 0 < hop.steps < self.question.steps for hop in run.hops)
        run.text = self.question.text(run.token_ids)
        return run

    async def _generate(self, run: CanaryRun, hops: list[Hop | None], started_at: float) -> None:
        rows: Tensor | None = self.question.first_rows()
        first_at = started_at
        for step in range(self.question.steps):
            for index, result in enumerate(run.hops):
                if rows is None:
                    return
                rows = await self._through(result, hops, index, step, rows)
            if rows is None:
                return
            token_id = self.question.choose(rows)
            run.token_ids.append(token_id)
            first_at = _now() if step == 0 else first_at
            rows = self.question.next_rows(step, token_id)
        run.ttft_s = first_at - started_at
        elapsed_s = _now() - first_at
        run.tokens_per_s = (self.question.steps - 1) / elapsed_s if elapsed_s > 0 else 0.0

    async def _through(
        self, result: HopResult, hops: list[Hop | None], index: int, step: int, rows: Tensor
    ) -> Tensor | None:
        """One step of one hop; gives the right rows for the next hop, None when nobody knows them."""
        hop, last = hops[index], index == len(hops) - 1
        answer: Tensor | None = None
        if hop is not None:
            started_at = _now()
            try:
                answer = await hop.step(rows, 1 if last else len(rows))
            except HopLost as error:
                result.fault = result.fault or IN_WORDS.get(error.kind, BROKE_PROTOCOL)
                hops[index] = None
                await hop.drop()
            else:
                self._note(result, hop, step, answer, _now() - started_at)
        return self._checked(result, step, answer, 1 if last else len(rows))

    def _checked(self, result: HopResult, step: int, answer: Tensor | None, count: int) -> Tensor | None:
        reference = self.question.reference
        if reference is None:
            return answer
        right = reference.states[step][result.planned.span.end][-count:]
        if answer is None:
            return right
        numerics = result.planned.numerics
        tolerance = tolerance_of(numerics.dtype, numerics.quantization)
        if not alike(self.fingerprints.of(answer), self.fingerprints.of(right), tolerance):
            result.fault = result.fault or "answers wrongly"
            return right
        return answer

    def _note(self, result: HopResult, hop: Hop, step: int, answer: Tensor, elapsed_s: float) -> None:
        if step == 0:
            result.left = self.fingerprints.of(answer)
        else:
            result.decode_ms += elapsed_s * 1e3
        result.steps, result.tokens = hop.stats.steps, hop.stats.tokens
        result.compute_ms = hop.stats.compute_ms

    async def _open_all(self, results: list[HopResult]) -> list[Hop | None]:
        settings = HopSettings(
            key=SessionKey.new(),
            epoch=1,
            manifest=self.model,
            codec="fp32",
            hidden_size=self.question.hidden_size,
            max_tokens=MAX_KV_TOKENS,
            lease_s=LEASE_S,
            open_timeout_s=OPEN_TIMEOUT_S,
            trace="canary",
        )
        return list(await asyncio.gather(*(self._open(result, settings) for result in results)))

    async def _open(self, result: HopResult, settings: HopSettings) -> Hop | None:
        try:
            hop = await open_hop(self.network, result.planned, settings)
        except SessionRefused as refusal:
            result.busy = refusal.fault_code in _BUSY
            result.fault = "has no room" if result.busy else "refused the request"
        except ProtocolError:
            result.fault = BROKE_PROTOCOL
        except NetworkError:
            result.fault = "does not answer"
        else:
            result.rtt_ms = hop.rtt_s * 1e3
            return hop
        return None


def _blame_silent(results: list[HopResult]) -> None:
    """The run took too long: the hop that answered least held it up."""
    slowest = min(results, key=lambda result: result.steps)
    slowest.fault = slowest.fault or f"takes longer than {RUN_TIMEOUT_S:.0f} s"


def _now() -> float:
    return asyncio.get_running_loop().time()
