"""The rows behind a ledger: hidden states by position, in one growing matrix, so a slice costs nothing."""

import torch


class Rows:
    """Hidden states [tokens, hidden]. Which positions count is the ledger's to say: rows are overwritten."""

    def __init__(self, hidden_size: int, dtype: torch.dtype) -> None:
        self._matrix = torch.empty((64, hidden_size), dtype=dtype)
        self._start = self._count = 0

    def put(self, position: int, rows: torch.Tensor) -> None:
        """Keep rows [tokens, hidden] from `position` on; what was there and behind it is forgotten."""
        if not self._start <= position <= self._start + self._count:
            self._start, self._count = position, 0
        kept = position - self._start
        needed = kept + len(rows)
        if needed > len(self._matrix):
            grown = torch.empty(
                (max(needed, 2 * len(self._matrix)), self._matrix.shape[1]), dtype=self._matrix.dtype
            )
            grown[:kept] = self._matrix[:kept]
            self._matrix = grown
        self._matrix[kept:needed] = rows
        self._count = needed

    def get(self, start: int, end: int) -> torch.Tensor:
        """A view of the rows at positions ``[start, end)``: [end - start, hidden]."""
        if not self._start <= start <= end <= self._start + self._count:
            raise ValueError(f"Rows {start}:{end} are not in {self._start}:{self._start + self._count}")
        return self._matrix[start - self._start : end - self._start]
