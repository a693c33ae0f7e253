"""What the compute thread does next: pure bookkeeping of steps, rows and turns.

Short steps (decoding) go first and together, since eight rows cost little more than one. Long ones
(prefill) are cut into slices and take turns, so that nobody's prompt stops everybody's reply. Work
of spares runs when nobody else waits, and gets a small share when somebody always does. Knows no
tensors, no clock and no sessions.
"""

from collections import deque
from dataclasses import dataclass

from swarm.values import Span

SHORT_STEP_TOKENS = 8  # up to this a step counts as decoding
SLICE_TOKENS = 128  # of a long step, per batch
MAX_BATCH_STEPS = 64
SPARE_SHARE = 8  # times the work of a spare is done for others before it: one that only lags is no spare


@dataclass(slots=True, eq=False)
class PendingStep:
    """A step that waits for its turn. `done_tokens` of its `tokens` rows are computed."""

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
        self._work_before_spare = 0  # for others, since a spare waits

    def __len__(self) -> int:
        return len(self._steps)

    def submit(self, step: PendingStep) -> None:
        """Queue a step behind the others."""
        self._steps.append(step)

    def cancel(self, step: PendingStep) -> None:
        """Forget what is left of a step."""
        self._steps = deque(each for each in self._steps if each is not step)

    def next_batch(self) -> list[Slice]:
        """The slices to compute now; empty when nothing waits.

        All through the same span (that of the step whose turn it is), at most one slice a step and
        one long slice a batch. Steps taken are moved behind those that were not.
        """
        first = next((step for step in self._steps if not step.spare), None)
        spare = next((step for step in self._steps if step.spare), None)
        if spare is not None and (first is None or self._is_due(spare)):
            return self._spare_batch(spare)
        batch = self._batch(first) if first is not None else []
        self._work_before_spare = self._work_before_spare + _work(batch) if spare is not None else 0
        return batch

    def _batch(self, first: PendingStep) -> list[Slice]:
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

    def _spare_batch(self, spare: PendingStep) -> list[Slice]:
        batch = [self._spare_slice(spare)]
        self._work_before_spare = 0
        self._take(batch)
        return batch

    def _spare_slice(self, spare: PendingStep) -> Slice:
        end = min(spare.tokens, spare.done_tokens + self._spare_slice_tokens)
        return Slice(spare, spare.done_tokens, end)

    def _is_due(self, spare: PendingStep) -> bool:
        """Whether others have had their share before the next slice of this spare."""
        return self._work_before_spare >= SPARE_SHARE * _work([self._spare_slice(spare)])

    def _take(self, batch: list[Slice]) -> None:
        for part in batch:
            part.step.done_tokens = part.end
        taken = {part.step for part in batch}
        unfinished = [part.step for part in batch if part.end < part.step.tokens]
        self._steps = deque(step for step in self._steps if step not in taken)
        self._steps.extend(unfinished)


def _work(batch: list[Slice]) -> int:
    """What a batch costs, in rows: a few cost as much as a full short step."""
    return max(SHORT_STEP_TOKENS, sum(part.end - part.start for part in batch))
