"""The KV cache of one session on one span of blocks.

Memory grows with the tokens used, not with a limit reserved up front. `position` is the one truth
of how many tokens are in; rows past it are scratch, so a step that fails half-way changes nothing.
"""

import torch
from torch import Tensor

from swarm.errors import UsageError
from swarm.model.config import ModelConfig

_CHUNK_TOKENS = 64
_GROWTH = 1.25


def grown_capacity(capacity: int, needed: int) -> int:
    """How many tokens a cache is to have room for when it must hold `needed`: a quarter more than before,
    so that growing costs little, and whole chunks."""
    return least_capacity(max(needed, int(capacity * _GROWTH)))


def least_capacity(needed: int) -> int:
    """The smallest room that a cache can have for `needed` tokens."""
    return -(-needed // _CHUNK_TOKENS) * _CHUNK_TOKENS


def bytes_per_token(config: ModelConfig, num_blocks: int, dtype: torch.dtype) -> int:
    """Memory one token takes in the caches of `num_blocks` blocks."""
    return 2 * num_blocks * config.num_kv_heads * config.head_dim * dtype.itemsize


class KVCache:
    """Keys and values of `num_blocks` blocks, numbered from 0, for one session."""

    def __init__(self, config: ModelConfig, num_blocks: int, dtype: torch.dtype) -> None:
        empty = torch.empty(2, config.num_kv_heads, 0, config.head_dim, dtype=dtype)
        self._blocks = [empty] * num_blocks  # each [2 (key, value), kv_heads, capacity, head_dim]
        self._capacity = 0
        self._planned = 0
        self._position = 0

    @property
    def position(self) -> int:
        """How many tokens the cache holds."""
        return self._position

    @property
    def num_blocks(self) -> int:
        """How many blocks it serves."""
        return len(self._blocks)

    @property
    def capacity(self) -> int:
        """How many tokens it has room for."""
        return self._capacity

    @property
    def size_bytes(self) -> int:
        """Memory held, room for growth included."""
        return sum(block.nbytes for block in self._blocks)

    def rewind(self, position: int) -> None:
        """Forget everything from `position` on. Raises `UsageError` for one not yet reached."""
        if not 0 <= position <= self._position:
            raise UsageError(
                f"The cache holds {self._position} tokens and cannot go to position {position}",
                f"Rewind to a position within 0 and {self._position}.",
            )
        self._position = position

    def plan(self, capacity: int) -> None:
        """Let the next growth end at this capacity, as whoever counts the memory has granted it."""
        self._planned = capacity

    def reserve(self, tokens: int) -> None:
        """Make room for `tokens` more than it holds, keeping what it holds."""
        needed = self._position + tokens
        if needed <= self._capacity:
            return
        capacity = self._planned if self._planned >= needed else grown_capacity(self._capacity, needed)
        for index, old in enumerate(self._blocks):  # one by one: never twice the memory
            if old.shape[2] < capacity:
                new = old.new_empty(2, old.shape[1], capacity, old.shape[3])
                new[:, :, : self._position] = old[:, :, : self._position]
                self._blocks[index] = new
        self._capacity = capacity

    def write(self, block: int, position: int, rows: Tensor) -> None:
        """Put rows [tokens, 2 (key, value), kv_heads, head_dim] at `position`, within what is reserved."""
        if len(rows) == 1:  # as most are: in few operations, since each costs more than the copying itself
            self._blocks[block].select(2, position).copy_(rows.select(0, 0))
        else:
            self._blocks[block].narrow(2, position, len(rows)).copy_(rows.permute(1, 2, 0, 3))

    def read(self, block: int, start: int, end: int) -> Tensor:
        """A view of [2 (key, value), kv_heads, end - start, head_dim]."""
        return self._blocks[block].narrow(2, start, end - start)

    def advance(self, tokens: int) -> None:
        """Count rows that were written in every block as held."""
        self._position += tokens
