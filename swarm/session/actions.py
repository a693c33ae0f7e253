"""What the chain of a session wants done. Plain values; hops go by number.

Carried out by `session/driver`, what concerns one hop in the order in which it was given.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from swarm.errors import HopLost, SwarmError
from swarm.session.ledger import Ledger
from swarm.values import Span
from swarm.wire.messages import Role


@dataclass(frozen=True, slots=True)
class OpenChain:
    """Open hops over a span, after a while, in place of lost ones, which hold so much by number.

    With `because`, people are told that the session waits, and why.
    """

    opening: int
    span: Span
    replaces: Mapping[int, int]
    after_s: float = 0.0
    because: SwarmError | None = None


@dataclass(frozen=True, slots=True)
class OpenSpare:
    """Open hops over the blocks of a hop that lives, on other peers."""

    opening: int
    hop: int
    role: Role


@dataclass(frozen=True, slots=True)
class CancelOpening:
    """Give an opening up; what it has opened is closed again, and nothing is told of it."""

    opening: int


@dataclass(frozen=True, slots=True, eq=False)
class SendStep:
    """Send rows ``[start, end)`` of a ledger; the last `reply_tokens` of what comes out come back.

    They belong `into` the ledger of the next hop or of the results, if they are wanted. What the hop holds
    beyond `start` is taken back first: a rewind has no action of its own.
    """

    hop: int
    ledger: Ledger
    start: int
    end: int
    reply_tokens: int
    into: Ledger | None


@dataclass(frozen=True, slots=True)
class StopStep:
    """Wait for the answer to the hop's step no longer: it is not wanted."""

    hop: int


@dataclass(frozen=True, slots=True)
class PromoteHop:
    """Tell a hop that it is a spare no longer."""

    hop: int


@dataclass(frozen=True, slots=True)
class GiveUpHop:
    """Count a hop that is late as lost."""

    hop: int
    reason: str


@dataclass(frozen=True, slots=True)
class CloseHop:
    """End the session on a hop, waiting so long for the peer to have done it; or only the stream."""

    hop: int
    wait_s: float = 0.0
    keep: bool = False


@dataclass(frozen=True, slots=True)
class RecallRows:
    """Fill a ledger with the rows ``[0, end)`` of the conversation again."""

    ledger: Ledger
    end: int


@dataclass(frozen=True, slots=True)
class ReportLoss:
    """Remember a loss when the next chain is planned."""

    hop: int
    error: HopLost


@dataclass(frozen=True, slots=True)
class ReturnResult:
    """The call is done."""


@dataclass(frozen=True, slots=True)
class FailCall:
    """The call fails, because a span is on no peer that serves; the last `error` says more."""

    span: Span
    error: SwarmError


Action = (
    OpenChain | OpenSpare | CancelOpening | SendStep | StopStep | PromoteHop | GiveUpHop | CloseHop
    | RecallRows | ReportLoss | ReturnResult | FailCall
)  # fmt: skip
