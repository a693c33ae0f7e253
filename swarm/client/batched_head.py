"""The head of a model, shared by all replies of a client: rows that wait together are computed together.

Reading lm_head once for many rows costs hardly more than for one, so replies that run at the same
time share each pass. A row that waits alone is computed alone, to the bit as without this. The rows of
prompts to be scored are computed a few at a time and one prompt's after another's, so that nobody's next
token waits for more than one such pass.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial

import torch

from swarm.model.compute import Compute
from swarm.model.head import Head, ScoredToken
from swarm.model.pooling import Pooling

MAX_ROWS = 64  # the logits of a large vocabulary are half a megabyte a row
MAX_SCORED_ROWS = 16  # a pass over so many takes two to three times as long as one over a single row


@dataclass(slots=True, eq=False)
class _HeadBatch:
    """Rows that are computed in one pass; it takes more until its turn comes."""

    rows: list[torch.Tensor] = field(default_factory=list)
    result: "asyncio.Task[torch.Tensor] | None" = None


class BatchedHead:
    """Embeds tokens, and gives logits in batches. Belongs to one event loop."""

    def __init__(self, head: Head, compute: Compute) -> None:
        self._head = head
        self._compute = compute
        self._turn = asyncio.Lock()
        self._scoring = asyncio.Lock()
        self._open: _HeadBatch | None = None

    def embed(self, ids: Sequence[int]) -> torch.Tensor:
        """Hidden states [tokens, hidden] of token ids; raises `RequestError` for an unknown id."""
        return self._head.embed(ids)

    async def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """Logits [vocab] that follow one row [1, hidden]. Cancelling it does not disturb the batch."""
        batch = self._open
        if batch is None or batch.result is None or len(batch.rows) == MAX_ROWS:
            batch = self._open = _HeadBatch()
            batch.result = asyncio.create_task(self._compute_batch(batch))
        batch.rows.append(hidden)
        index = len(batch.rows) - 1
        return (await asyncio.shield(batch.result))[index]

    async def score(self, hidden: torch.Tensor, following: Sequence[int], top: int) -> list[ScoredToken]:
        """As `Head.score`, for any number of rows. It can be cancelled between any two passes."""
        scored: list[ScoredToken] = []
        while len(scored) < len(following):
            part = slice(len(scored), len(scored) + MAX_SCORED_ROWS)
            async with self._scoring:
                scored += await self._compute.run(
                    partial(self._head.score, hidden[part], following[part], top)
                )
        return scored

    async def pool(
        self, hidden: torch.Tensor, pooling: Pooling, dimensions: int | None = None
    ) -> torch.Tensor:
        """The embedding [dimensions] of a text's hidden states [tokens, hidden]."""
        return await self._compute.run(lambda: pooling.pool(self._head.normed(hidden), dimensions))

    async def _compute_batch(self, batch: _HeadBatch) -> torch.Tensor:
        async with self._turn:
            if self._open is batch:
                self._open = None
            rows = torch.cat(batch.rows)
            return await self._compute.run(lambda: self._head.logits(rows))
