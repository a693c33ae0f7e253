"""A ledger: every row that a sender has sent to one hop, kept until the session closes.

This is what makes a hop replaceable: whoever takes over its span is sent the ledger again. Rows are
kept in one growing matrix, so that a slice costs nothing. The ends of the steps in which rows were
first sent are kept too, because a replay with the same shapes gives the same bits.
"""

from bisect import bisect_right

import torch

CHUNK_TOKENS = 128  # of a prompt or a replay, per step: small enough to keep several hops busy at once


class Ledger:
    """Rows ``[start, end)`` of hidden states, by position in the conversation.

    `start` is above 0 only after a client's restart, when the peers still hold what the ledger lost:
    a hop that holds rows up to `start` can go on with it, a hop that holds nothing cannot.
    """

    def __init__(self, hidden_size: int, dtype: torch.dtype, start: int = 0) -> None:
        self.start = start
        self.hidden_size = hidden_size
        self.dtype = dtype
        self._rows = torch.empty((64, hidden_size), dtype=dtype)
        self._count = 0
        self._step_ends: list[int] = []
        self._recalled_end = start

    @property
    def end(self) -> int:
        """The position after the last row."""
        return self.start + self._count

    @property
    def size_bytes(self) -> int:
        """Memory held."""
        return self._rows.nbytes

    def append(self, rows: torch.Tensor) -> None:
        """Add rows [tokens, hidden] at the end."""
        needed = self._count + len(rows)
        if needed > len(self._rows):
            grown = torch.empty(
                (max(needed, 2 * len(self._rows)), self._rows.shape[1]), dtype=self._rows.dtype
            )
            grown[: self._count] = self._rows[: self._count]
            self._rows = grown
        self._rows[self._count : needed] = rows
        self._count = needed

    def recall(self, rows: torch.Tensor) -> None:
        """Add rows again that an earlier process, or an earlier chain, has sent in steps not known here."""
        self.append(rows)
        self._recalled_end = self.end

    def knows_steps_since(self, position: int) -> bool:
        """Whether the rows from `position` on can be sent again in the steps they were sent in at first."""
        return position >= self._recalled_end

    def rows(self, start: int, end: int) -> torch.Tensor:
        """A view of the rows at positions ``[start, end)``: [end - start, hidden]."""
        if not self.start <= start <= end <= self.end:
            raise ValueError(f"Rows {start}:{end} are not in a ledger of {self.start}:{self.end}")
        return self._rows[start - self.start : end - self.start]

    def truncate(self, end: int) -> None:
        """Forget everything from position `end` on, which may lie before `start`."""
        self._recalled_end = min(self._recalled_end, end)
        if end < self.start:
            self.start, self._count = end, 0
            self._step_ends.clear()
            return
        self._count = min(self._count, end - self.start)
        while self._step_ends and self._step_ends[-1] > end:
            self._step_ends.pop()
            if self.step_start(end) < end:  # a step is cut: its shape will not come again
                self._recalled_end = end

    def mark_step(self, end: int) -> None:
        """Note that a step ended at this position, the first time it does."""
        if end > (self._step_ends[-1] if self._step_ends else self.start):
            self._step_ends.append(end)

    def next_end(self, position: int, exact: bool) -> int:
        """Where a step from `position` on is to end: a chunk on, or `exact`ly where it did at first."""
        end = self.end
        if exact:
            index = bisect_right(self._step_ends, position)
            end = self._step_ends[index] if index < len(self._step_ends) else end
        return min(end, position + CHUNK_TOKENS)

    def step_start(self, position: int) -> int:
        """Where the step began in which the row at `position` was first sent."""
        index = bisect_right(self._step_ends, position)
        return self._step_ends[index - 1] if index else self.start
