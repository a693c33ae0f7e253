"""How many tokens per second a swarm bears at best: what its weakest blocks allow when work is spread well.

A peer's speed may be spent on any of its blocks. Spending it on the peer that ends first, block by block,
is best for spans (earliest deadline first), so whether a rate can be borne is one sweep over the blocks.
"""

import heapq
from collections.abc import Sequence
from typing import NamedTuple

STEPS = 12  # of the bisection: a part in four thousand


class Server(NamedTuple):
    """A peer that serves a span, and its speed."""

    start: int
    end: int
    blocks_per_s: float


def most_tokens_per_s(servers: Sequence[Server], blocks: int) -> float:
    """The highest rate at which every block can be computed for every token."""
    low, high = 0.0, sum(server.blocks_per_s for server in servers) / blocks
    by_start = sorted(servers)
    for _ in range(STEPS):
        middle = (low + high) / 2
        if _can_bear(by_start, blocks, middle):
            low = middle
        else:
            high = middle
    return low


def _can_bear(by_start: Sequence[Server], blocks: int, tokens_per_s: float) -> bool:
    waiting: list[tuple[int, float]] = []  # (end, speed that is left)
    following = 0
    for block in range(blocks):
        while following < len(by_start) and by_start[following].start <= block:
            server = by_start[following]
            heapq.heappush(waiting, (server.end, server.blocks_per_s))
            following += 1
        needed = tokens_per_s
        while needed > 0 and waiting:
            end, speed = heapq.heappop(waiting)
            if end <= block:
                continue
            used = min(needed, speed)
            needed -= used
            if speed > used:
                heapq.heappush(waiting, (end, speed - used))
        if needed > 0:
            return False
    return True
