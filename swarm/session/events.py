"""What the chain of a session is told, and what it tells to do. Plain values; hops go by number.

Events say what somebody wants or what was seen; actions are carried out by `session/driver`, each hop's
own in the order in which they were given.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from swarm.errors import HopLost, SwarmError
from swarm.session.ledger import Ledger
from swarm.session.plan import PlannedHop
from swarm.values import PeerId, Span
from swarm.wire.messages import Role
from swarm.wire.records import PeerRecord


@dataclass(frozen=True, slots=True)
class NewHop:
    """A hop that was opened, and up to which position it holds the conversation for certain."""

    id: int
    planned: PlannedHop
    position: int = 0


# Events: what is wanted


@dataclass(frozen=True, slots=True)
class ExtendWanted:
    """So many rows are to be added, and the result of the last one to be given. One call at a time."""

    tokens: int


@dataclass(frozen=True, slots=True)
class CallCancelled:
    """Nobody waits for the result any more."""


@dataclass(frozen=True, slots=True)
class RewindWanted:
    """Everything from `position` on is to be forgotten. No call is under way."""

    position: int


@dataclass(frozen=True, slots=True)
class EndWanted:
    """The session is to end; with `keep`, peers keep it for a while, for a later process."""

    keep: bool = False


# Events: what was seen


@dataclass(frozen=True, slots=True)
class HopsOpened:
    """An opening came about."""

    opening: int
    hops: tuple[NewHop, ...]


@dataclass(frozen=True, slots=True)
class OpenFailed:
    """An opening did not come about, and left nothing open."""

    opening: int
    error: SwarmError


@dataclass(frozen=True, slots=True)
class TakenUp:
    """The whole chain of an earlier process was opened again; positions from `end` on are not wanted."""

    hops: tuple[NewHop, ...]
    end: int


@dataclass(frozen=True, slots=True)
class Answered:
    """A hop has taken the step; its answer is kept."""

    step: "SendStep"


@dataclass(frozen=True, slots=True)
class Lost:
    """A hop is gone."""

    hop: int
    error: HopLost


@dataclass(frozen=True, slots=True)
class LeavingSoon:
    """A hop has said that it goes."""

    hop: int


@dataclass(frozen=True, slots=True)
class Late:
    """The answer of a hop is clearly overdue, by what was measured."""

    hop: int


@dataclass(frozen=True, slots=True)
class Slow:
    """A hop has become much slower than others would be."""

    hop: int


@dataclass(frozen=True, slots=True)
class SnapshotSeen:
    """What the peers of the chain last announced."""

    records: Mapping[PeerId, PeerRecord]


@dataclass(frozen=True, slots=True)
class Ticked:
    """Time to look at every hop. `unix_now` is what records go by, in seconds."""

    unix_now: float


Event = (
    ExtendWanted | CallCancelled | RewindWanted | EndWanted
    | HopsOpened | OpenFailed | TakenUp | Answered | Lost | LeavingSoon | Late | Slow | SnapshotSeen | Ticked
)  # fmt: skip


# Actions


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

    They belong `into` the next hop's ledger, or are the result. What the hop holds beyond `start` is taken
    back first: a rewind has no action of its own.
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
