"""A session seen as tokens: which ids it holds, and the logits that follow them.

Joins the client's ends of the model (embedding, head) to the chain. Moving to another list of ids
keeps the part they share, so that the next turn of a chat costs only its new tokens.
"""

from collections.abc import Sequence

import torch

from swarm.client.batched_head import BatchedHead
from swarm.client.session import Session


class Context:
    """The tokens of one conversation, fed through its session. One call at a time."""

    def __init__(self, session: Session, head: BatchedHead) -> None:
        self.session = session
        self._head = head
        self._ids: list[int] = []

    @property
    def ids(self) -> Sequence[int]:
        """The tokens that the peers' caches hold."""
        return self._ids

    async def move_to(self, ids: Sequence[int]) -> torch.Tensor:
        """Hold exactly `ids` (at least one), reusing what they share with now; gives logits [vocab]."""
        kept = min(_shared(self._ids, ids), len(ids) - 1)  # the last one is fed again: its logits are asked for
        if kept < len(self._ids):
            await self.session.rewind(kept)
            del self._ids[kept:]
        return await self.feed(ids[kept:])

    async def feed(self, ids: Sequence[int]) -> torch.Tensor:
        """Add tokens (at least one); gives the logits [vocab] that follow them."""
        self._ids.extend(ids)
        try:
            hidden = await self.session.extend(self._head.embed(ids))
        except BaseException:
            del self._ids[self.session.position :]  # hold what the session holds, however it ended
            raise
        return await self._head.logits(hidden)

    async def close(self) -> None:
        """Free the session on every peer."""
        await self.session.close()
        self._ids.clear()


def _shared(left: Sequence[int], right: Sequence[int]) -> int:
    """Length of the longest common beginning."""
    pairs = enumerate(zip(left, right, strict=False))
    return next((index for index, (a, b) in pairs if a != b), min(len(left), len(right)))
