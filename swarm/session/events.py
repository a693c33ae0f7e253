"""What the chain of a session is told: what somebody wants, and what was seen. Plain values."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from swarm.errors import HopLost, SwarmError
from swarm.session.actions import SendStep
from swarm.session.plan import PlannedHop
from swarm.values import PeerId
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
    """So many rows are to be added, and the results of the last `reply_tokens` given. One call at a time."""

    tokens: int
    reply_tokens: int = 1


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

    step: SendStep


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
class Ticked:
    """Time to look at every hop. Peers have announced `records`, which go by `unix_now`, in seconds."""

    unix_now: float
    records: Mapping[PeerId, PeerRecord] = field(default_factory=dict)


Event = (
    ExtendWanted | CallCancelled | RewindWanted | EndWanted
    | HopsOpened | OpenFailed | TakenUp | Answered | Lost | LeavingSoon | Late | Slow | Ticked
)  # fmt: skip
