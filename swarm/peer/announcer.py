"""Keeps this peer's record in the directory true: renewed at a third of its life, at once on a change.

A directory that does not answer is tried again at the next turn; the record's short life does the
rest. Sequence numbers grow with the clock, so they grow across restarts, too.
"""

import asyncio
import logging
import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from swarm.config import software_version
from swarm.errors import NetworkError
from swarm.network.directory import OwnDirectory
from swarm.values import ModelDigest, PeerId, Span
from swarm.wire.messages import WIRE_VERSION
from swarm.wire.records import ModelRecord, PeerRecord, Reachable, State

RECORD_LIFE_S = 30.0

_logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Profile:
    """What does not change about a peer while it runs."""

    peer: PeerId
    manifest: ModelDigest
    model_name: str
    model_type: str
    num_blocks: int
    hidden_size: int
    span: Span
    dtype: str
    quantization: str = "none"
    kernels: str = ""  # known once the blocks are loaded
    public_name: str = ""
    started_at: float = 0.0
    software: str = field(default_factory=software_version)  # read once: it is in a file


@dataclass(frozen=True, slots=True)
class Load:
    """What does: how fast it is, and what it has left for new sessions."""

    decode_tokens_per_s: float = 0.0
    prefill_tokens_per_s: float = 0.0
    free_tokens: int = 0
    queue_depth: int = 0
    sessions_resumed: int = 0
    on_battery: bool = False


class Announcer:
    """Announces a peer until cancelled."""

    def __init__(self, directory: OwnDirectory, profile: Profile, now: Callable[[], float]) -> None:
        self.profile = profile
        self.state: State = "joining"
        self.load: Callable[[], Load] = Load
        self.reachable: Callable[[], Reachable | None] = lambda: "direct"  # None: not found out yet
        self.announced_at: float | None = None  # when the record that the directory took last was issued
        self._directory = directory
        self._now = now
        self._sequence = 0

    async def run(self) -> None:
        """Renew for ever."""
        while True:
            await self.announce()
            await asyncio.sleep(RECORD_LIFE_S / 3)

    @property
    def record_age_s(self) -> float:
        """How old the newest record is that the directory took; infinite when it has taken none."""
        if self.announced_at is None:
            return math.inf
        return abs(self._now() - self.announced_at)  # of a clock that was set back it is no younger

    async def announce(self) -> bool:
        """Announce the peer as it is now; False when the directory did not take it."""
        record = self.record()
        try:
            accepted = await self._directory.announce(record)
            if accepted:
                self.announced_at = record.issued_at
            else:
                _logger.warning("No other node of the directory has taken our record")
            if self.state == "online":
                await self._directory.announce_model(self.model_record())
        except NetworkError as error:
            _logger.warning("The directory did not take our record: %s", error)
            return False
        return accepted

    async def move_to(self, state: State) -> None:
        """Change the state and say so at once."""
        self.state = state
        await self.announce()

    def choose_span(self, span: Span) -> None:
        """Announce other blocks from the next record on; the caller says when these are served."""
        self.profile = replace(self.profile, span=span)

    def computes_with(self, kernels: str) -> None:
        """Name the kernels of the blocks that were loaded."""
        self.profile = replace(self.profile, kernels=kernels)

    async def withdraw(self) -> None:
        """Take the record out of the directory, as far as it can be reached."""
        try:
            await self._directory.withdraw(self.record())
        except NetworkError as error:
            _logger.warning("The directory did not take our leave: %s", error)

    def record(self) -> PeerRecord:
        """The peer's record as of now."""
        profile, load, issued_at = self.profile, self.load(), self._now()
        reachable = self.reachable()
        return PeerRecord(
            peer=profile.peer,
            model=profile.manifest,
            issued_at=issued_at,
            expires_at=issued_at + RECORD_LIFE_S,
            sequence=self._next_sequence(issued_at),
            start=profile.span.start,
            end=profile.span.end,
            # nobody can use a peer that nobody can dial: to others it is not online yet
            state="joining" if self.state == "online" and reachable in ("no", None) else self.state,
            dtype=profile.dtype,
            quantization=profile.quantization,
            kernels=profile.kernels,
            decode_tokens_per_s=load.decode_tokens_per_s,
            prefill_tokens_per_s=load.prefill_tokens_per_s,
            free_tokens=load.free_tokens,
            queue_depth=load.queue_depth,
            sessions_resumed=load.sessions_resumed,
            reachable=reachable or "direct",
            on_battery=load.on_battery,
            started_at=profile.started_at,
            wire_version=WIRE_VERSION,
            software=profile.software,
            public_name=profile.public_name,
        )

    def model_record(self) -> ModelRecord:
        """The record of the model that this peer hosts a part of."""
        profile, issued_at = self.profile, self._now()
        return ModelRecord(
            peer=profile.peer,
            model=profile.manifest,
            issued_at=issued_at,
            expires_at=issued_at + RECORD_LIFE_S,
            sequence=self._next_sequence(issued_at),
            name=profile.model_name,
            num_blocks=profile.num_blocks,
            hidden_size=profile.hidden_size,
            model_type=profile.model_type,
        )

    def _next_sequence(self, issued_at: float) -> int:
        self._sequence = max(self._sequence + 1, int(issued_at * 1000))
        return self._sequence
