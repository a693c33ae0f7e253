"""Which blocks a new peer should host: pure arithmetic over a snapshot.

The worst-covered window wins: windows are compared by how often their blocks are hosted already,
the least-hosted block first. Peers that are still loading count, so that two that start together
do not take the same blocks.
"""

from collections.abc import Sequence

from swarm.errors import DoesNotFit
from swarm.values import Span, format_size
from swarm.wire.records import Snapshot


def blocks_that_fit(memory_bytes: int, block_bytes: int, cache_bytes_per_block: int) -> int:
    """How many blocks with their share of KV cache fit in the memory a peer may use."""
    return max(0, memory_bytes // (block_bytes + cache_bytes_per_block))


def check_fits(span: Span, fitting: int, memory_bytes: int, needed_bytes: int) -> None:
    """Raise `DoesNotFit`, saying what the span needs and how many blocks do fit, when it is longer."""
    if len(span) <= fitting:
        return
    largest = Span(span.start, span.start + fitting) if fitting else None
    fix = (
        f"Host {fitting} of them at most (for example --blocks {largest}), or give it more --memory."
        if largest
        else "Give it more --memory, or choose a narrower --dtype."
    )
    room = f"there is room for {fitting}" if fitting else "not even one block does"
    needed = f"with their caches they need {format_size(needed_bytes)}"
    raise DoesNotFit(
        f"{len(span)} blocks ({span}) do not fit in {format_size(memory_bytes)}: {needed}, and {room}", fix
    )


def coverage_to_come(snapshot: Snapshot) -> list[int]:
    """How many peers host each block or will in a moment: joining ones count, leaving ones do not, nor do
    those that nobody can dial."""
    counts = [0] * snapshot.num_blocks
    for record in snapshot.peers:
        if record.state != "draining" and record.reachable != "no":
            for block in range(record.start, min(record.end, snapshot.num_blocks)):
                counts[block] += 1
    return counts


def choose_span(coverage: Sequence[int], length: int) -> Span:
    """The worst-covered window of `length` blocks (or the whole model when it is shorter).

    Windows are compared by their sorted coverage, and the earlier one wins a tie, so that an empty
    model is filled from its start.
    """
    length = min(length, len(coverage))
    windows = (Span(start, start + length) for start in range(len(coverage) - length + 1))
    return min(windows, key=lambda window: (sorted(coverage[window.start : window.end]), window.start))
