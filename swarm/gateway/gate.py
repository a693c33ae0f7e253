"""The door: every reply takes a slot here before it runs, and gives it back when it ends.

The asyncio shell around `admission`: keys' limits, waiting, and honest answers to those who cannot
be served now.
"""

import asyncio
from dataclasses import dataclass, field

from swarm.gateway.admission import FairQueue, TokenBucket
from swarm.gateway.auth import Key
from swarm.gateway.refusal import Refusal


@dataclass(frozen=True, slots=True)
class GateLimits:
    """How much runs, how much waits, and for how long."""

    max_running: int = 64
    max_waiting: int = 256
    max_wait_s: float = 60.0


@dataclass(slots=True, eq=False)
class Slot:
    """The right to run. `release` may be called more than once."""

    gate: "Gate"
    started_at: float = 0.0
    admitted: asyncio.Event = field(default_factory=asyncio.Event)
    waited: bool = False
    _released: bool = False

    def release(self) -> None:
        """Let the next one run."""
        if not self._released:
            self._released = True
            self.gate.leave(self)


class Gate:
    """Admits replies. Belongs to one event loop."""

    def __init__(self, limits: GateLimits) -> None:
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

    def check_rate(self, key: Key) -> None:
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

    async def enter(self, key: Key) -> Slot:
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

    def _check_room(self, key: Key) -> None:
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
