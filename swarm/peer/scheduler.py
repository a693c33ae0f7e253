"""What the compute thread does next: pure bookkeeping of steps, rows and turns.

Short steps (decoding) go first and together, since eight rows cost little more than one. Long ones
(prefill) are cut into slices and take turns, so that nobody's prompt stops everybody's reply. Work
of spares runs only when nobody else waits. Knows no tensors, no clock and no sessions' content.
"""

from collections import deque
from dataclasses import dataclass

from swarm.values import Span

SHORT_STEP_TOKENS = 8  # up to this a step counts as decoding
SLICE_TOKENS = 128  # of a long step, per batch
MAX_BATCH_STEPS = 64


@dataclass(slots=True, eq=False)
class PendingStep:
    """A step that waits for its turn. `done_tokens` of its `tokens` rows are computed."""

    session: str
    span: Span  # only steps through the same blocks share a batch
    tokens: int
    spare: bool = False
    done_tokens: int = 0


@dataclass(frozen=True, slots=True)
class Slice:
    """Rows ``[start, end)`` of a step, to be computed in this batch."""

    step: PendingStep
    start: int
    end: int


class Scheduler:
    """Queue of pending steps. `next_batch` hands out slices; the same step comes again until done."""

    def __init__(self, spare_slice_tokens: int = SLICE_TOKENS) -> None:
        """`spare_slice_tokens`: how long an active session may have to wait behind a spare."""
        self._steps: deque[PendingStep] = deque()
        self._spare_slice_tokens = spare_slice_tokens

    def __len__(self) -> int:
        return len(self._steps)

    def submit(self, step: PendingStep) -> None:
        """Queue a step behind the others."""
        self._steps.append(step)

    def cancel(self, session: str) -> None:
        """Forget every step of a session."""
        self._steps = deque(step for step in self._steps if step.session != session)

    def next_batch(self) -> list[Slice]:
        """The slices to compute now; empty when nothing waits.

        All through the same span (that of the step whose turn it is), at most one slice a step and
        one long slice a batch. Steps taken are moved behind those that were not.
        """
        first = next((step for step in self._steps if not step.spare), None)
        if first is None:
            return self._spare_batch()
        batch: list[Slice] = []
        long_taken = False
        for step in self._steps:
            if step.spare or step.span != first.span or len(batch) == MAX_BATCH_STEPS:
                continue
            left = step.tokens - step.done_tokens
            if left > SHORT_STEP_TOKENS:
                if long_taken:
                    continue
                long_taken = True
            batch.append(Slice(step, step.done_tokens, step.done_tokens + min(left, SLICE_TOKENS)))
        self._take(batch)
        return batch

    def _spare_batch(self) -> list[Slice]:
        if not self._steps:
            return []
        step = self._steps[0]
        end = min(step.tokens, step.done_tokens + self._spare_slice_tokens)
        batch = [Slice(step, step.done_tokens, end)]
        self._take(batch)
        return batch

    def _take(self, batch: list[Slice]) -> None:
        for part in batch:
            part.step.done_tokens = part.end
        taken = {part.step for part in batch}
        unfinished = [part.step for part in batch if part.end < part.step.tokens]
        self._steps = deque(step for step in self._steps if step not in taken)
        self._steps.extend(unfinished)
