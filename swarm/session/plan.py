"""Plans of chains: which peers are to run which blocks, and what a session asks of whoever plans.

Pure values, and the one thing that a session knows of the client above it: `Planner`.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from swarm.errors import LossKind, NoRoute, SwarmError
from swarm.values import PeerId, Span
from swarm.wire.records import PeerRecord


class Numerics(NamedTuple):
    """What decides the last bits of a peer's answers."""

    dtype: str
    quantization: str

    def __str__(self) -> str:
        return self.dtype if self.quantization == "none" else f"{self.dtype} quantised as {self.quantization}"


PLAIN_NUMERICS = Numerics("fp32", "none")


@dataclass(frozen=True, slots=True)
class PlannedHop:
    """A peer, the blocks it is to run, and how long one token should take there."""

    peer: PeerId
    span: Span
    numerics: Numerics
    expected_ms: float
    kernels: str = ""  # the peer's fingerprint of them


class Planner(Protocol):
    """Plans chains from what is known of peers, and is told what a session sees of them.

    `client/routes` is the one that serves; what each method gives is said there.
    """

    async def plan(
        self,
        span: Span,
        numerics: Numerics | None = None,
        excluded: frozenset[PeerId] = frozenset(),
        with_lost: bool = True,
        kernels: str = "",
    ) -> tuple[PlannedHop, ...]: ...
    def plan_at_hand(
        self, span: Span, numerics: Numerics | None, excluded: frozenset[PeerId], kernels: str = ""
    ) -> tuple[PlannedHop, ...]: ...
    def plan_around(
        self, span: Span, numerics: Numerics | None, stopgap: PeerId
    ) -> tuple[PlannedHop, ...]: ...
    def explain(self, span: Span, last: SwarmError) -> NoRoute: ...
    async def keep_fresh(self) -> None: ...
    def record(self, peer: PeerId) -> PeerRecord | None: ...
    def bytes_per_s(self, peer: PeerId) -> float: ...
    def heard(self, peer: PeerId, rtt_s: float) -> None: ...
    def served(self, peer: PeerId, bytes_per_s: float) -> None: ...
    def observed(self, peer: PeerId, span: Span, decode_s: float) -> None: ...
    def lost(self, peer: PeerId, kind: LossKind, reason: str, bytes_per_s: float | None = None) -> None: ...


def common_numerics(planned: Iterable[PlannedHop]) -> Numerics | None:
    """What all hops compute in, if it is the same."""
    kinds = {hop.numerics for hop in planned}
    return kinds.pop() if len(kinds) == 1 else None
