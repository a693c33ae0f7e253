"""How many blocks fit in the memory that a peer may use."""

from swarm.errors import DoesNotFit
from swarm.values import Span, format_size


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
