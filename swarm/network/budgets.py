"""How much a stranger may ask for: a budget for each, and how long one is left alone that misbehaved.

Pure: the clock is an argument, in seconds. Bounded: of strangers seen long ago nothing is kept.
"""

from collections import OrderedDict
from dataclasses import dataclass
from typing import Generic, TypeVar

from swarm.values import PeerId

REMEMBERED = 4096  # strangers
FIRST_BAN_S, LONGEST_BAN_S = 5.0, 120.0

Value = TypeVar("Value")


@dataclass(frozen=True, slots=True)
class Allowance:
    """So much at once, and so much a second after that."""

    burst: float
    per_s: float


class _Latest(OrderedDict[PeerId, Value], Generic[Value]):
    """What is known of each, of those that were touched last."""

    def touch(self, peer: PeerId, value: Value) -> None:
        self[peer] = value
        self.move_to_end(peer)
        if len(self) > REMEMBERED:
            self.popitem(last=False)


@dataclass(frozen=True, slots=True)
class _NodeBan:
    """How often in a row, until when, and whether the last fault was silence."""

    faults: int
    until: float
    silent: bool


class Budgets:
    """A token bucket for each stranger, which fills up again as time goes by."""

    def __init__(self, allowance: Allowance) -> None:
        self._allowance = allowance
        self._spent: _Latest[tuple[float, float]] = _Latest()  # what is spent, and when that was so

    def take(self, peer: PeerId, amount: float, now: float) -> bool:
        """Take so much of a stranger's budget; False, and nothing is taken, when it has less left."""
        spent, at = self._spent.get(peer, (0.0, now))
        spent = max(0.0, spent - (now - at) * self._allowance.per_s)
        if spent + amount > self._allowance.burst:
            return False
        self._spent.touch(peer, (spent + amount, now))
        return True


class Bans:
    """Strangers that are not asked for a while, doubling with each fault in a row."""

    def __init__(self) -> None:
        self._bans: _Latest[_NodeBan] = _Latest()

    def fault(self, peer: PeerId, now: float, silent: bool) -> None:
        """It did not answer (`silent`), or what it answered made no sense."""
        before = self._bans.get(peer)
        faults = min(16, before.faults + 1 if before else 1)
        until = now + min(LONGEST_BAN_S, FIRST_BAN_S * 2 ** (faults - 1))
        self._bans.touch(peer, _NodeBan(faults, until, silent))

    def heard(self, peer: PeerId) -> None:
        """It has spoken, so it is silent no more; what it said that made no sense is not forgotten."""
        ban = self._bans.get(peer)
        if ban is not None and ban.silent:
            del self._bans[peer]

    def forgive(self, peer: PeerId) -> None:
        """It has answered well."""
        self._bans.pop(peer, None)

    def is_banned(self, peer: PeerId, now: float) -> bool:
        """Whether it is to be left out now."""
        ban = self._bans.get(peer)
        return ban is not None and ban.until > now
