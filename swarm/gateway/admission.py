"""Who may start now, who waits, and who is told to come back later.

A `TokenBucket` holds a key's rate; the `FairQueue` lets a bounded
number of replies run and serves those who wait in turns, one key after the other, so that nobody
who asks much makes those wait who ask little.

Every reply takes a slot of `Admission` before it runs, and gives it back when it ends; what a request
costs before that runs off the event loop, a few at a time, and fair between keys.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from swarm.gateway.auth import ApiKey
from swarm.gateway.refusal import Refusal

Ticket = TypeVar("Ticket")

_SMOOTHING = 0.2
FIRST_SERVICE_S = 10.0  # how long a reply takes, before any has been measured
Result = TypeVar("Result")


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


@dataclass(frozen=True, slots=True)
class AdmissionLimits:
    """How much runs, how much waits, and for how long."""

    max_running: int = 64
    max_waiting: int = 256
    max_wait_s: float = 60.0


@dataclass(slots=True, eq=False)
class Slot:
    """The right to run. `release` may be called more than once."""

    gate: "Admission"
    started_at: float = 0.0
    admitted: asyncio.Event = field(default_factory=asyncio.Event)
    waited: bool = False
    _released: bool = False

    def release(self) -> None:
        """Let the next one run."""
        if not self._released:
            self._released = True
            self.gate.leave(self)


class Admission:
    """Admits replies. Belongs to one event loop."""

    def __init__(self, limits: AdmissionLimits) -> None:
        self.limits = limits
        self.draining = False
        self._queue: FairQueue[Slot] = FairQueue(limits.max_running, limits.max_waiting)
        self._buckets: dict[str, TokenBucket] = {}

    @property
    def running(self) -> int:
        """Replies in the making."""
        return len(self._queue.running)

    @property
    def waiting(self) -> int:
        """Requests that wait."""
        return self._queue.waiting

    def check_rate(self, key: ApiKey) -> None:
        """Count one request of a key. Raises a `Refusal` of status 429 beyond its rate."""
        if key.requests_per_minute is None:
            return
        bucket = self._buckets.get(key.name)
        if bucket is None or bucket.per_minute != key.requests_per_minute:
            bucket = self._buckets[key.name] = TokenBucket(key.requests_per_minute, _now())
        if retry_after_s := bucket.take(_now()):
            raise Refusal(
                429,
                f"The key {key.name!r} has used up its {key.requests_per_minute:g} requests a minute",
                f"Wait {retry_after_s:.0f} s.",
                reason="rate_limit_exceeded",
                retry_after_s=retry_after_s,
            )

    async def enter(self, key: ApiKey) -> Slot:
        """Wait for a slot. Raises a `Refusal`: 429 for a key with too many replies, 503 when all is full."""
        self._check_room(key)
        slot = Slot(self)
        if self._queue.arrive(slot, key.name):
            return self._start(slot)
        slot.waited = True
        try:
            async with asyncio.timeout(self.limits.max_wait_s):
                await slot.admitted.wait()
        except TimeoutError:
            place = self._queue.place(slot)
            slot.release()
            raise self._full(place) from None
        except asyncio.CancelledError:
            slot.release()
            raise
        if self.draining:
            slot.release()
            raise leaving()
        return slot

    def leave(self, slot: Slot) -> None:
        """A slot is given back, or no longer waited for."""
        if slot.started_at:
            self._queue.served(_now() - slot.started_at)
        for next_slot in self._queue.leave(slot):
            self._start(next_slot).admitted.set()

    def drain(self) -> None:
        """Admit nobody any more; those who wait are told so."""
        self.draining = True
        for slot in self._queue.order():
            slot.admitted.set()

    def _start(self, slot: Slot) -> Slot:
        slot.started_at = _now()
        return slot

    def _check_room(self, key: ApiKey) -> None:
        if self.draining:
            raise leaving()
        if key.concurrent is not None and self._queue.held_by(key.name) >= key.concurrent:
            raise Refusal(
                429,
                f"The key {key.name!r} has {key.concurrent} replies in the making, which is its limit",
                "Wait until one is done.",
                reason="concurrency_limit_exceeded",
                retry_after_s=self._queue.service_s,
            )
        if self._queue.full:
            raise self._full(self._queue.waiting)

    def _full(self, place: int) -> Refusal:
        wait_s = self._queue.wait_s(place)
        return Refusal(
            503,
            f"{self.running} replies are in the making and {place} requests wait before this one",
            f"Try again in about {wait_s:.0f} s.",
            reason="overloaded",
            retry_after_s=wait_s,
            detail={"queue_place": place, "estimate_s": round(wait_s, 1)},
        )


def leaving() -> Refusal:
    """The answer of a gateway that is about to end."""
    return Refusal(
        503, "This gateway is about to stop", "Try again in a moment.", reason="draining", retry_after_s=5.0
    )


def _now() -> float:
    return asyncio.get_running_loop().time()


class Workbench:
    """Runs functions in threads, as many at once as its gate lets in."""

    def __init__(self, gate: Admission) -> None:
        self._gate = gate

    async def run(self, key: ApiKey, work: Callable[[], Result]) -> Result:
        """What `work` gives. Raises what it raises, and a `Refusal` when too many wait.

        The slot is held until the thread is done, also for one who has gone away meanwhile: otherwise
        asking and going away would be free.
        """
        slot = await self._gate.enter(key)
        done = asyncio.get_running_loop().run_in_executor(None, work)
        done.add_done_callback(lambda _: slot.release())
        return await asyncio.shield(done)
