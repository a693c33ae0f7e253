"""Runs steps on the one compute thread, batch by batch, in the order the scheduler gives.

Owns the pairing of a pending step with its tensors and its waiting caller. Knows no streams and no
messages. A batch that fails leaves every cache where it was.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field

import torch

from swarm.errors import SessionRefused
from swarm.model.compute import Compute
from swarm.model.span import SpanModel, SpanStep
from swarm.peer.scheduler import SLICE_TOKENS, PendingStep, Scheduler, Slice
from swarm.peer.sessions import PeerSession


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
    hidden: torch.Tensor  # [tokens, hidden]
    submitted_at: float
    done: asyncio.Future[StepResult]
    outputs: list[torch.Tensor] = field(default_factory=list)
    compute_s: float = 0.0


class Executor:
    """The peer's engine: `run` forever in one task, `step` from many."""

    def __init__(
        self, model: SpanModel, compute: Compute, on_step: Callable[[StepResult], None] = lambda result: None
    ) -> None:
        self._model = model
        self._compute = compute
        self._on_step = on_step
        # Bits hang on the shapes that are computed. In fp32 no token hangs on them, so a spare may be
        # cut finer than an active session; elsewhere it must not be.
        self._scheduler = Scheduler(32 if model.dtype == torch.float32 else SLICE_TOKENS)
        self._jobs: dict[PendingStep, _Job] = {}
        self._work = asyncio.Event()
        self._running: frozenset[str] = frozenset()  # sessions in the batch being computed
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
                await self._work.wait()
                continue
            await self._run_batch(batch)

    async def step(self, session: PeerSession, hidden: torch.Tensor) -> StepResult:
        """Push rows [tokens, hidden] through the session's blocks. One step at a time per session.

        Raises `SessionRefused` when the computation fails. If the caller is cancelled, `drain` must
        be awaited before the session's cache is used again.
        """
        loop = asyncio.get_running_loop()
        pending = PendingStep(session.id, session.span, len(hidden), session.spare)
        job = _Job(session, hidden, loop.time(), loop.create_future())
        self._jobs[pending] = job
        self._scheduler.submit(pending)
        self._work.set()
        try:
            return await job.done
        finally:
            self._jobs.pop(pending, None)

    async def drain(self, session_id: str) -> None:
        """Drop what waits of a session, and wait for what runs of it."""
        self._scheduler.cancel(session_id)
        while session_id in self._running:
            await self._batch_ended.wait()

    async def _run_batch(self, batch: list[Slice]) -> None:
        loop = asyncio.get_running_loop()
        parts = [(part, self._jobs[part.step]) for part in batch if part.step in self._jobs]
        if not parts:
            return
        steps = [SpanStep(job.session.cache, job.hidden[part.start : part.end]) for part, job in parts]
        span = parts[0][0].step.span
        self._running = frozenset(part.step.session for part, _ in parts)
        self._batch_ended.clear()
        started_at = loop.time()
        try:
            outputs = await self._compute.run(lambda: self._model.forward(steps, span))
        except (RuntimeError, MemoryError) as error:  # torch's own errors, out of memory among them
            self._fail(parts, error)
            return
        finally:
            self._running = frozenset()
            self._batch_ended.set()
        elapsed_s = loop.time() - started_at
        for (part, job), output in zip(parts, outputs, strict=True):
            self._deliver(part, job, output, elapsed_s)

    def _deliver(self, part: Slice, job: _Job, output: torch.Tensor, elapsed_s: float) -> None:
        job.outputs.append(output)
        job.compute_s += elapsed_s
        if part.end < part.step.tokens or job.done.done():
            return
        hidden = job.outputs[0] if len(job.outputs) == 1 else torch.cat(job.outputs)
        total_s = asyncio.get_running_loop().time() - job.submitted_at
        result = StepResult(hidden, job.compute_s * 1e3, max(0.0, total_s - job.compute_s) * 1e3)
        job.done.set_result(result)
        self._on_step(result)

    def _fail(self, parts: list[tuple[Slice, _Job]], error: Exception) -> None:
        for part, job in parts:
            self._scheduler.cancel(part.step.session)
            if not job.done.done():
                job.done.set_exception(SessionRefused("compute_failed", f"The computation failed: {error}"))
