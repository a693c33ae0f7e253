"""A session seen as tokens: which ids it holds, and the logits that follow them.

Joins the client's ends of the model (embedding, head) to the chain. Moving to another list of ids
keeps the part they share, so that the next turn of a chat costs only its new tokens.
"""

import logging
import random
from collections.abc import Callable, Sequence

import torch

from swarm.client.batched_head import BatchedHead
from swarm.errors import SwarmError
from swarm.model.head import ScoredToken
from swarm.model.pooling import Pooling
from swarm.session.chain import Chain
from swarm.session.driver import Session
from swarm.session.opener import Opener, SessionState
from swarm.session.rules import ChainRules

_logger = logging.getLogger(__name__)


class Context:
    """The tokens of one conversation, fed through its session. One call at a time.

    `unix_now` is the wall clock, in Unix seconds.
    """

    def __init__(
        self, opener: Opener, rules: ChainRules, head: BatchedHead, unix_now: Callable[[], float]
    ) -> None:
        chain = Chain(rules, random.Random().random)  # noqa: S311 - spreads retries, guards nothing
        self.session = Session(opener, chain, lambda end: head.embed(self._ids[:end]), unix_now)
        self._head = head
        self._ids: list[int] = []

    @property
    def ids(self) -> Sequence[int]:
        """The tokens that the peers' caches hold."""
        return self._ids

    @property
    def held_ids(self) -> Sequence[int]:
        """Those of them that all peers hold for certain."""
        return self._ids[: self.session.held]

    async def move_to(self, ids: Sequence[int]) -> torch.Tensor:
        """Hold exactly `ids` (at least one), reusing what they share with now; gives logits [vocab]."""
        kept = min(
            shared_length(self._ids, ids), len(ids) - 1
        )  # the last one is fed again: its logits are asked for
        await self._keep(kept)
        return await self.feed(ids[kept:])

    async def feed(self, ids: Sequence[int]) -> torch.Tensor:
        """Add tokens (at least one); gives the logits [vocab] that follow them."""
        return await self._head.logits(await self._extend(ids, 1))

    async def score(self, ids: Sequence[int], count: int, top: int) -> tuple[list[ScoredToken], torch.Tensor]:
        """As `move_to`, and how likely each of the first `count` ids was, but the first, with `top` others.

        What is held already is computed again, because its results are asked for.
        """
        await self._keep(0)
        hidden = await self._extend(ids, len(ids))
        scored = await self._head.score(hidden[: count - 1], ids[1:count], top)
        return scored, await self._head.logits(hidden[-1:])

    async def embed(
        self, ids: Sequence[int], pooling: Pooling, dimensions: int | None = None
    ) -> torch.Tensor:
        """Hold exactly `ids`, all of them computed now; gives the embedding [dimensions] of them."""
        await self._keep(0)
        hidden = await self._extend(ids, pooling.rows_needed(len(ids)))
        return await self._head.pool(hidden, pooling, dimensions)

    async def _keep(self, count: int) -> None:
        """Forget all but the first `count` tokens."""
        if count < len(self._ids):
            try:
                await self.session.rewind(count)
            finally:
                del self._ids[self.session.position :]  # hold what the session holds, however it ended

    async def _extend(self, ids: Sequence[int], reply_tokens: int) -> torch.Tensor:
        self._ids.extend(ids)
        try:
            return await self.session.extend(self._head.embed(ids), reply_tokens)
        except BaseException:
            del self._ids[self.session.position :]  # hold what the session holds, however it ended
            raise

    async def close(self) -> None:
        """Free the session on every peer."""
        await self.session.close()
        self._ids.clear()

    async def leave(self) -> None:
        """End here, but let the peers keep the session for a while."""
        await self.session.leave()
        self._ids.clear()

    async def take_up(self, state: SessionState, ids: Sequence[int]) -> None:
        """Find again what peers still hold of an earlier process's session that held `ids`.

        Nothing, when a peer has forgotten: then it is built anew, as rows are sent.
        """
        self._ids = list(ids[:-1])  # the last one is fed again: its result is asked for
        held = 0
        try:
            held = await self.session.take_up(state, len(self._ids))
        except SwarmError as error:
            _logger.info("The earlier session is gone (%s); it is built anew", error)
        del self._ids[held:]


def shared_length(left: Sequence[int], right: Sequence[int]) -> int:
    """Length of the longest common beginning."""
    pairs = enumerate(zip(left, right, strict=False))
    return next((index for index, (a, b) in pairs if a != b), min(len(left), len(right)))
