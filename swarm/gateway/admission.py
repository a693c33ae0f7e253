"""Who may start now, who waits, and who is told to come back later.

Pure: the clock is an argument. A `TokenBucket` holds a key's rate; the `FairQueue` lets a bounded
number of replies run and serves those who wait in turns, one key after the other, so that nobody
who asks much makes those wait who ask little.
"""

from collections import deque
from dataclasses import dataclass, field
from typing import Generic, TypeVar

Ticket = TypeVar("Ticket")

_SMOOTHING = 0.2
FIRST_SERVICE_S = 10.0  # how long a reply takes, before any has been measured


@dataclass(slots=True)
class TokenBucket:
    """So many requests a minute, and as many at once after a quiet minute."""

    per_minute: float
    filled_at: float
    level: float = field(init=False)

    def __post_init__(self) -> None:
        self.level = max(1.0, self.per_minute)

    def take(self, now: float) -> float:
        """Take one; gives 0, or the seconds until there is one again."""
        full = max(1.0, self.per_minute)
        self.level = min(full, self.level + (now - self.filled_at) * self.per_minute / 60)
        self.filled_at = now
        if self.level >= 1:
            self.level -= 1
            return 0.0
        return (1 - self.level) * 60 / self.per_minute


@dataclass(slots=True)
class FairQueue(Generic[Ticket]):
    """Tickets that run and tickets that wait, the latter by key."""

    max_running: int
    max_waiting: int
    service_s: float = FIRST_SERVICE_S  # smoothed
    running: dict[Ticket, str] = field(default_factory=dict)
    _waiting: dict[str, deque[Ticket]] = field(default_factory=dict)  # keys in the order of their turns

    @property
    def waiting(self) -> int:
        """How many wait."""
        return sum(map(len, self._waiting.values()))

    @property
    def full(self) -> bool:
        """Whether one more could neither run nor wait."""
        return len(self.running) >= self.max_running and self.waiting >= self.max_waiting

    def held_by(self, key: str) -> int:
        """How many tickets of a key run or wait."""
        return sum(owner == key for owner in self.running.values()) + len(self._waiting.get(key, ()))

    def arrive(self, ticket: Ticket, key: str) -> bool:
        """Take a ticket in; True when it may run at once. To be asked only when not `full`."""
        if len(self.running) < self.max_running and not self.waiting:
            self.running[ticket] = key
            return True
        self._waiting.setdefault(key, deque()).append(ticket)
        return False

    def leave(self, ticket: Ticket) -> list[Ticket]:
        """A ticket is done, or no longer waits; gives those that may run now."""
        if self.running.pop(ticket, None) is None:
            self._withdraw(ticket)
        started = []
        while len(self.running) < self.max_running and self._waiting:
            key = next(iter(self._waiting))
            queue = self._waiting.pop(key)
            ticket = queue.popleft()
            if queue:
                self._waiting[key] = queue  # at the end: the others' turn comes first
            self.running[ticket] = key
            started.append(ticket)
        return started

    def served(self, seconds: float) -> None:
        """A reply took this long."""
        self.service_s += _SMOOTHING * (seconds - self.service_s)

    def place(self, ticket: Ticket) -> int:
        """How many are served before a waiting ticket; 0 is next."""
        order = self.order()
        return order.index(ticket) if ticket in order else len(order)

    def wait_s(self, place: int) -> float:
        """About how long it takes until the one at this place runs."""
        return (place + 1) * self.service_s / max(1, self.max_running)

    def order(self) -> list[Ticket]:
        """Those who wait, in the order of their turns."""
        rounds = max(map(len, self._waiting.values()), default=0)
        return [
            queue[turn] for turn in range(rounds) for queue in self._waiting.values() if turn < len(queue)
        ]

    def _withdraw(self, ticket: Ticket) -> None:
        for key, queue in list(self._waiting.items()):
            if ticket in queue:
                queue.remove(ticket)
                if not queue:
                    del self._waiting[key]
