"""A hop of a chain, wherever its blocks are: what a session knows of it."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch

from swarm.errors import HopLost
from swarm.security.session_key import SessionKey
from swarm.session.plan import PlannedHop
from swarm.values import ModelDigest
from swarm.wire.messages import MAX_STEP_TOKENS
from swarm.wire.tensors import CODECS

ASSUMED_BYTES_PER_S = 125_000.0  # of a link nothing was measured of: 1 Mbit/s


@dataclass(frozen=True, slots=True)
class HopSettings:
    """What every hop of a session has in common."""

    key: SessionKey
    epoch: int
    manifest: ModelDigest
    codec: str
    hidden_size: int
    max_tokens: int
    lease_s: float
    open_timeout_s: float
    trace: str = ""

    @property
    def largest_body_bytes(self) -> int:
        """What the longest answer takes."""
        return MAX_STEP_TOKENS * self.hidden_size * CODECS[self.codec].itemsize


@dataclass(slots=True)
class HopStats:
    """What a hop has done, for people and for routing."""

    steps: int = 0
    tokens: int = 0
    compute_ms: float = 0.0
    network_ms: float = 0.0  # waiting besides the peer's own compute and queue
    sent_bytes: int = 0
    received_bytes: int = 0


class Hop(Protocol):
    """A session on some blocks, wherever they are. One step at a time."""

    planned: PlannedHop
    position: int  # how many tokens it holds for certain
    leaving_in_s: float | None  # it has announced its leave
    stats: HopStats
    rtt_s: float
    decode_s: float  # of late, for one token there and back
    bytes_per_s: float  # of the link, as far as is known
    rewinds: int  # of the session on the peer so far
    on_lost: Callable[[HopLost], None]  # told once, when the hop is gone

    @property
    def lost(self) -> HopLost | None:
        """Why the hop is gone, if it is known to be."""
        ...

    @property
    def is_late(self) -> bool:
        """Whether the answer to a step is clearly overdue, by what was measured."""
        ...

    def give_up(self, reason: str) -> None:
        """Wait for this hop no longer: it counts as lost."""
        ...

    async def step(self, hidden: torch.Tensor, reply_tokens: int) -> torch.Tensor:
        """Push rows [tokens, hidden] at the hop's position; gives the last `reply_tokens` of the result.

        Raises `HopLost`. A cancelled step leaves the hop usable: its rows are taken back first.
        """
        ...

    def rewind(self, position: int) -> None:
        """Forget everything from `position` on. A loss shows at the next step."""
        ...

    async def keep_alive(self) -> None:
        """Say something, if nothing was said for a while, so that the peer does not take us for gone."""
        ...

    async def promote(self) -> None:
        """Make a spare the active hop. A loss shows at the next step."""
        ...

    async def close(self, wait_s: float = 0.0) -> None:
        """End the session and free its memory, as far as the peer can still be told.

        With `wait_s`, wait so long for the peer to have done it: bytes that were just sent are lost
        when this process, and with it its daemon, ends at once.
        """
        ...

    async def drop(self) -> None:
        """End the stream only; the peer keeps the session for a while."""
        ...
