"""A ledger: the positions of all rows that were sent to one hop, and the steps they were sent in.

This is what makes a hop replaceable: whoever takes over its span is sent the ledger again. The ends of
the steps in which rows were first sent are kept because a replay with the same shapes gives the same
bits. Pure; the rows themselves are in `session/rows`.
"""

from bisect import bisect_right

CHUNK_TOKENS = 128  # of a prompt or a replay, per step: small enough to keep several hops busy at once


class Ledger:
    """Knows of the rows ``[start, end)``, by position in the conversation.

    `start` is above 0 only after a client's restart, when the peers still hold what the ledger lost:
    a hop that holds rows up to `start` can go on with it, a hop that holds nothing cannot.
    """

    def __init__(self, start: int = 0) -> None:
        self.start = self.end = start
        self._step_ends: list[int] = []
        self._recalled_end = start

    def append(self, tokens: int) -> None:
        """So many rows come at the end."""
        self.end += tokens

    def recall(self, tokens: int) -> None:
        """Rows come again that an earlier process, or an earlier chain, has sent in steps not known here."""
        self.end += tokens
        self._recalled_end = self.end

    def knows_steps_since(self, position: int) -> bool:
        """Whether the rows from `position` on can be sent again in the steps they were sent in at first."""
        return position >= self._recalled_end

    def truncate(self, end: int) -> None:
        """Forget everything from position `end` on, which may lie before `start`."""
        self._recalled_end = min(self._recalled_end, end)
        if end < self.start:
            self.start = self.end = end
            self._step_ends.clear()
            return
        self.end = min(self.end, end)
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
