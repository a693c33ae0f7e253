"""Runs steps on the one compute thread, batch by batch, in the order the scheduler gives.

Owns the pairing of a pending step with its tensors and its waiting caller. Knows no streams and no
messages. A batch that fails leaves every cache where it was, and the executor goes on.
"""

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass, field

import torch

from swarm.errors import SessionRefused
from swarm.model.compute import Compute
from swarm.model.span import SpanModel, SpanStep
from swarm.peer.scheduler import SLICE_TOKENS, PendingStep, Scheduler, Slice
from swarm.peer.sessions import PeerSession
from swarm.peer.throughput import ThreadControl

_logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class StepResult:
    """What a step gave, and where its time went."""

    hidden: torch.Tensor  # [tokens, hidden]
    compute_ms: float
    queue_ms: float


@dataclass(slots=True)
class _Job:
    """A step on its way through the scheduler."""

    session: PeerSession
    position: int  # where it begins
    hidden: torch.Tensor  # [tokens, hidden]
    submitted_at: float
    done: asyncio.Future[StepResult]
    given_up: bool = False  # while a slice of it was being computed
    outputs: list[torch.Tensor] = field(default_factory=list)
    compute_s: float = 0.0


class Executor:
    """The peer's engine: `run` forever in one task, `step` from many."""

    def __init__(
        self,
        model: SpanModel,
        compute: Compute,
        on_step: Callable[[StepResult], None] = lambda result: None,
        threads: ThreadControl | None = None,
    ) -> None:
        self._model = model
        self._compute = compute
        self._on_step = on_step
        self._threads = threads
        # Bits hang on the shapes that are computed. In fp32 no token hangs on them, so a spare may be
        # cut finer than an active session; elsewhere it must not be.
        plain = model.dtype == torch.float32 and model.quantization == "none"
        self._scheduler = Scheduler(32 if plain else SLICE_TOKENS)
        self._jobs: dict[PendingStep, _Job] = {}
        self._work = asyncio.Event()
        self._running: frozenset[PeerSession] = frozenset()  # those in the batch being computed
        self._batch_ended = asyncio.Event()

    @property
    def queue_depth(self) -> int:
        """Steps that wait or run."""
        return len(self._jobs)

    async def run(self) -> None:
        """Compute batches as work comes, until cancelled."""
        while True:
            batch = self._scheduler.next_batch()
            if not batch:
                self._work.clear()
                if self._threads is not None:
                    await self._threads.rest()
                await self._work.wait()
                continue
            await self._run_batch(batch)

    def step(self, session: PeerSession, hidden: torch.Tensor) -> asyncio.Future[StepResult]:
        """Push rows [tokens, hidden] through the session's blocks. One step at a time per session.

        Queued when this returns, so that no `drain` can miss it. The future fails with
        `SessionRefused` when the computation fails or the step is drained. If it is cancelled, `drain`
        must be awaited before the session's cache is used again.
        """
        loop = asyncio.get_running_loop()
        pending = PendingStep(session.span, len(hidden), session.spare)
        job = _Job(session, session.position, hidden, loop.time(), loop.create_future())
        self._jobs[pending] = job
        self._scheduler.submit(pending)
        self._work.set()
        job.done.add_done_callback(lambda _: self._forget(pending))
        return job.done

    def promote(self, session: PeerSession) -> None:
        """What waits of a session is no spare's work any more."""
        for pending, job in self._jobs.items():
            if job.session is session:
                pending.spare = False

    def give_up(self, session: PeerSession, position: int) -> None:
        """Compute no more of a session's step that begins at `position` or behind it.

        Its future is cancelled, but not before what runs of it has ended.
        """
        for job in self._jobs.values():
            if job.session is session and job.position >= position:
                job.given_up = session in self._running
                if not job.given_up:
                    job.done.cancel()

    async def drain(self, session: PeerSession) -> None:
        """Refuse what waits of a session, and wait for what runs of it."""
        for job in self._jobs.values():
            if job.session is session:
                _refuse(job, "fenced", "The step is void: its session was taken up again.")
        while session in self._running:
            await self._batch_ended.wait()

    async def _run_batch(self, batch: list[Slice]) -> None:
        loop = asyncio.get_running_loop()
        jobs = ((part, self._jobs.get(part.step)) for part in batch)
        parts = [(part, job) for part, job in jobs if job is not None and not job.done.done()]
        if not parts:
            return
        steps = [SpanStep(job.session.cache, job.hidden[part.start : part.end]) for part, job in parts]
        span = parts[0][0].step.span
        self._running = frozenset(job.session for _, job in parts)
        self._batch_ended.clear()
        started_at = loop.time()
        try:
            outputs = await self._compute.run(lambda: self._model.forward(steps, span))
        except Exception as error:  # out of memory, or a bug: it ends these steps and no others
            _logger.exception("A batch of %d steps failed", len(parts))
            for _, job in parts:
                _refuse(job, "compute_failed", f"The computation failed: {error}")
            return
        finally:
            self._running = frozenset()
            self._batch_ended.set()
        elapsed_s = loop.time() - started_at
        for (part, job), output in zip(parts, outputs, strict=True):
            self._deliver(part, job, output, elapsed_s)
        if self._threads is not None:
            await self._threads.note(sum(part.end - part.start for part, _ in parts), elapsed_s)

    def _deliver(self, part: Slice, job: _Job, output: torch.Tensor, elapsed_s: float) -> None:
        job.outputs.append(output)
        job.compute_s += elapsed_s
        if job.given_up:
            job.done.cancel()
        if part.end < part.step.tokens or job.done.done():
            return
        hidden = job.outputs[0] if len(job.outputs) == 1 else torch.cat(job.outputs)
        total_s = asyncio.get_running_loop().time() - job.submitted_at
        result = StepResult(hidden, job.compute_s * 1e3, max(0.0, total_s - job.compute_s) * 1e3)
        job.done.set_result(result)
        self._on_step(result)

    def _forget(self, pending: PendingStep) -> None:
        """The step is over, in whichever way."""
        del self._jobs[pending]
        if pending.done_tokens < pending.tokens:
            self._scheduler.cancel(pending)


def _refuse(job: _Job, code: str, text: str) -> None:
    if not job.done.done():
        job.done.set_exception(SessionRefused(code, text))
        job.done.exception()  # seen, even if its caller has gone
