"""The small values that every floor speaks of: ids, spans, sizes and durations.

Pure: no I/O, no clock, no torch. Text from people (``"3:9"``, ``"20GiB"``, ``"30s"``) is parsed
here into typed values, or refused with a `UsageError` that says what would be right.
"""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import NewType

from swarm.errors import UsageError

PeerId = NewType("PeerId", str)  # base58 of the libp2p identity multihash, "12D3KooW..."
ModelDigest = NewType("ModelDigest", str)  # 64 hex digits: SHA-256 of the manifest
SessionId = NewType("SessionId", str)  # 32 hex digits, chosen by the client

_SIZE_UNITS = {
    "": 1, "B": 1,
    "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12,
    "KIB": 2**10, "MIB": 2**20, "GIB": 2**30, "TIB": 2**40,
}  # fmt: skip
_DURATION_UNITS = {"ms": 0.001, "": 1.0, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86400.0}


@dataclass(frozen=True, slots=True, order=True)
class Span:
    """A half-open range of blocks, written ``start:end``. Never empty."""

    start: int
    end: int

    def __post_init__(self) -> None:
        if self.start < 0 or self.end <= self.start:
            raise UsageError(
                f"{self.start}:{self.end} is not a span of blocks",
                "Write START:END with 0 <= START < END, for example 0:16.",
            )

    def __str__(self) -> str:
        return f"{self.start}:{self.end}"

    def __len__(self) -> int:
        return self.end - self.start

    def __iter__(self) -> Iterator[int]:
        return iter(range(self.start, self.end))

    def __contains__(self, block: int) -> bool:
        return self.start <= block < self.end

    def covers(self, other: "Span") -> bool:
        """Whether every block of `other` is in this span."""
        return self.start <= other.start and other.end <= self.end

    def overlap(self, other: "Span") -> "Span | None":
        """The blocks in both, or None when they share none."""
        start, end = max(self.start, other.start), min(self.end, other.end)
        return Span(start, end) if start < end else None


def parse_span(text: str) -> Span:
    """Read ``"3:9"`` as the blocks 3 to 8."""
    match = re.fullmatch(r"\s*(\d+)\s*:\s*(\d+)\s*", text)
    if match is None:
        raise UsageError(f"{text!r} is not a span of blocks", "Write START:END, for example 0:16.")
    return Span(int(match[1]), int(match[2]))


def spans_of(blocks: Iterable[int]) -> list[Span]:
    """The fewest spans that hold exactly `blocks`, in order: {1, 2, 5} gives 1:3 and 5:6."""
    spans: list[Span] = []
    for block in sorted(set(blocks)):
        if spans and spans[-1].end == block:
            spans[-1] = Span(spans[-1].start, block + 1)
        else:
            spans.append(Span(block, block + 1))
    return spans


def parse_size(text: str) -> int:
    """Read ``"20GiB"`` or ``"512 MB"`` as bytes."""
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([A-Za-z]*)\s*", text)
    if match is None or match[2].upper() not in _SIZE_UNITS:
        raise UsageError(f"{text!r} is not a size", "Write a number and a unit, for example 20GiB or 512MB.")
    return int(float(match[1]) * _SIZE_UNITS[match[2].upper()])


def format_size(size_bytes: float) -> str:
    """Write bytes for a person: ``1536`` gives ``"1.5 KiB"``."""
    units = ["B", "KiB", "MiB", "GiB"]
    for unit in units:
        if abs(size_bytes) < 1024:
            return f"{size_bytes:.0f} B" if unit == "B" else f"{size_bytes:.1f} {unit}"
        size_bytes /= 1024
    return f"{size_bytes:.1f} TiB"


def parse_duration(text: str) -> float:
    """Read ``"30s"``, ``"500ms"`` or ``"2m"`` as seconds; a bare number is seconds."""
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*(ms|min|[smhd]?)\s*", text)
    if match is None:
        raise UsageError(
            f"{text!r} is not a duration", "Write a number and a unit, for example 30s, 500ms or 2m."
        )
    return float(match[1]) * _DURATION_UNITS[match[2]]


def parse_host_port(text: str) -> tuple[str, int]:
    """Read ``"127.0.0.1:8000"``, ``"example.org:80"`` or ``"[::1]:8000"``, the brackets taken off."""
    match = re.fullmatch(r"\s*(?:\[([^\]\s]+)\]|([^:\s]+)):(\d{1,5})\s*", text)
    if match is None or int(match[3]) > 65535:
        raise UsageError(f"{text!r} is not a host with a port", "Write HOST:PORT, like 127.0.0.1:8000.")
    return match[1] or match[2], int(match[3])


def short_id(peer: str) -> str:
    """The end of a peer id, which is what differs from one to the next."""
    return peer[-8:]


def duration(seconds: float) -> str:
    """A length of time for a person, in its largest unit: ``"3 min"``."""
    for unit, length in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= length:
            return f"{seconds / length:.0f} {unit}"
    return f"{seconds:.0f} s"


def listed(items: list[str], limit: int = 4) -> str:
    """``"a, b and 3 more"``."""
    shown = items[:limit]
    rest = len(items) - len(shown)
    return ", ".join(shown) + (f" and {rest} more" if rest else "")
