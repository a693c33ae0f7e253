"""A chain that is told events by hand; what it wants done is written as short lines."""

from swarm.errors import HopLost, LossKind, NoRoute
from swarm.session.actions import (
    Action,
    CancelOpening,
    CloseHop,
    FailCall,
    GiveUpHop,
    OpenChain,
    OpenSpare,
    PromoteHop,
    RecallRows,
    ReportLoss,
    ReturnResult,
    SendStep,
    StopStep,
)
from swarm.session.chain import Chain
from swarm.session.events import (
    Answered,
    Event,
    ExtendWanted,
    HopsOpened,
    Lost,
    NewHop,
    OpenFailed,
)
from swarm.session.plan import Numerics, PlannedHop
from swarm.session.rules import ChainRules
from swarm.values import PeerId, parse_span

WHOLE = parse_span("0:6")


def brief(action: Action) -> str:  # noqa: C901 - a table
    """One action as a line."""
    match action:
        case OpenChain():
            place = f" for {' '.join(map(str, action.replaces))}" if action.replaces else ""
            return f"open {action.span}{place}" + (f" in {action.after_s:.2f} s" if action.after_s else "")
        case OpenSpare():
            return f"open {action.role} beside {action.hop}"
        case CancelOpening():
            return "cancel opening"
        case SendStep():
            return f"send {action.hop} {action.start}:{action.end} back {action.reply_tokens}"
        case StopStep():
            return f"stop {action.hop}"
        case PromoteHop():
            return f"promote {action.hop}"
        case GiveUpHop():
            return f"give up {action.hop}"
        case CloseHop():
            return f"{'leave' if action.keep else 'close'} {action.hop}"
        case RecallRows():
            return f"recall 0:{action.end}"
        case ReportLoss():
            return f"report {action.hop}"
        case ReturnResult():
            return "result"
        case FailCall():
            return f"fail {action.span}"


def hop(number: int, span: str, position: int = 0, dtype: str = "fp32") -> NewHop:
    """A hop that was opened, on a peer of its own."""
    planned = PlannedHop(PeerId(f"peer {number}"), parse_span(span), Numerics(dtype, "none"), 10.0)
    return NewHop(number, planned, position)


class ChainPlay:
    """Tells events, at the time `now`, and keeps what hops have to answer and what is being opened."""

    def __init__(self, **rules) -> None:
        self.chain = Chain(ChainRules(**({"blocks": WHOLE, "patience_s": 30.0} | rules)), lambda: 1.0)
        self.now = 0.0
        self.out: dict[int, SendStep] = {}
        self.openings: list[int] = []

    def tell(self, event: Event) -> list[str]:
        """What is to be done about it."""
        actions = self.chain.handle(event, self.now)
        for action in actions:
            match action:
                case SendStep():
                    self.out[action.hop] = action
                case StopStep():
                    del self.out[action.hop]
                case OpenChain() | OpenSpare():
                    self.openings.append(action.opening)
                case CancelOpening():
                    self.openings.remove(action.opening)
        return [brief(action) for action in actions]

    def opened(self, *hops: NewHop) -> list[str]:
        """The opening that was wanted first comes about."""
        return self.tell(HopsOpened(self.openings.pop(0), hops))

    def open_failed(self) -> list[str]:
        """The opening that was wanted first does not come about."""
        return self.tell(OpenFailed(self.openings.pop(0), NoRoute("Nobody is there")))

    def answered(self, number: int) -> list[str]:
        """A hop answers its step."""
        return self.tell(Answered(self.out.pop(number)))

    def lost(self, number: int, kind: LossKind = "broken") -> list[str]:
        """A hop is gone."""
        self.out.pop(number, None)
        return self.tell(Lost(number, HopLost(f"peer {number}", kind, "it is gone")))

    def extended(self, tokens: int, *hops: NewHop) -> None:
        """So many rows go through; at first, these hops are opened."""
        self.tell(ExtendWanted(tokens))
        if hops:
            self.opened(*hops)
        active = {each.id for each in self.chain.hops}
        while answering := active & self.out.keys():
            self.answered(min(answering))
