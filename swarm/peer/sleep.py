"""The machine's sleep: told beforehand by the system, so that sessions move, or noticed after waking.

On Linux systemd-logind, or elogind, says on the system bus when it is about to suspend, and waits for
those who hold a *delay* lock, a few seconds at most (https://systemd.io/INHIBITOR_LOCKS). Elsewhere,
and where that is refused, a sleep shows only afterwards, by a tick that came far too late: told by a
clock that goes on during sleep and that nobody can set. By the wall clock a correction of the time would
look like a sleep, and asyncio's own clock stands still while the machine sleeps.
"""

import asyncio
import contextlib
import logging
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass

from jeepney import (
    DBusAddress,
    DBusErrorResponse,
    FileDescriptor,
    HeaderFields,
    MatchRule,
    Properties,
    new_method_call,
)

from swarm.peer.message_bus import MessageBus, open_bus

ALLOWED_SHARE = 0.8  # of the delay that the system grants; it does not wait a moment longer
ANSWER_TIMEOUT_S = 10.0
RETRY_S = 30.0  # after a bus that did not answer, or that was lost

_LOGIND = DBusAddress("/org/freedesktop/login1", "org.freedesktop.login1", "org.freedesktop.login1.Manager")
_SIGNAL = "PrepareForSleep"
_UNAVAILABLE = (OSError, DBusErrorResponse)  # no bus, or none any more; no logind, or it refused

_logger = logging.getLogger(__name__)
TICK_S = 1.0
SLEPT_S = 3.0  # more than this late is no busy machine: clients have given the sessions up by then


async def follow_sleep(
    on_sleep: Callable[[float], Awaitable[None]], on_wake: Callable[[], Awaitable[None]], bus: str = "SYSTEM"
) -> None:
    """Call `on_sleep(seconds it has)` before each sleep and `on_wake()` after it, until cancelled.

    Returns, and says why, where the system does not tell. Where it did and no longer does, or does not
    answer in time, as just after a sleep, it is asked again. `bus` is a D-Bus address, or SYSTEM.
    """
    while True:
        told = False
        try:
            async with _open_logind(bus) as logind:
                told = True
                await _follow(logind, on_sleep, on_wake)
        except _UNAVAILABLE as error:
            reason = str(error) or "no answer in time"
            _logger.info(
                "Not told when this machine goes to sleep, so sessions cannot move before: %s", reason
            )
            if not told and not isinstance(error, TimeoutError):
                return
        await asyncio.sleep(RETRY_S)


async def _follow(
    logind: "_Logind", on_sleep: Callable[[float], Awaitable[None]], on_wake: Callable[[], Awaitable[None]]
) -> None:
    """Follow until the bus is lost, which ends a sleep, too. Raises one of `_UNAVAILABLE`."""
    asleep = False
    try:
        while True:
            if await logind.next_signal():
                asleep = True
                await on_sleep(logind.delay_s * ALLOWED_SHARE)
                logind.release()
            else:
                await logind.hold()
                asleep = False
                await on_wake()
    except _UNAVAILABLE:
        if asleep:
            await on_wake()
        raise


@dataclass(slots=True)
class _Logind:
    """What is used of systemd-logind, with at most one lock that delays sleep."""

    bus: MessageBus
    delay_s: float = 0.0  # how long a lock delays sleep at most
    _lock: FileDescriptor | None = None

    async def connect(self) -> None:
        """Listen from now on, and take the lock. Raises one of `_UNAVAILABLE`."""
        await self.bus.listen(
            MatchRule(type="signal", sender=_LOGIND.bus_name, interface=_LOGIND.interface, member=_SIGNAL)
        )
        [(_, delay_us)] = await self.bus.call(Properties(_LOGIND).get("InhibitDelayMaxUSec"))
        self.delay_s = delay_us / 1e6
        await self.hold()

    async def next_signal(self) -> bool:
        """Whether the system goes to sleep (True) or woke up. Raises `OSError` when the bus is gone."""
        while True:
            signal = await self.bus.next_signal()
            if signal.header.fields[HeaderFields.member] == _SIGNAL:  # a bus says other things, too
                [going] = signal.body
                return bool(going)

    async def hold(self) -> None:
        """Have sleep wait for `release`. Raises one of `_UNAVAILABLE`."""
        why = ("sleep", "swarm peer", "sessions move to other peers", "delay")
        async with asyncio.timeout(ANSWER_TIMEOUT_S):
            [lock] = await self.bus.call(new_method_call(_LOGIND, "Inhibit", "ssss", why))
        self.release()
        self._lock = lock

    def release(self) -> None:
        """Let the system go to sleep; does nothing when it may already."""
        if self._lock is not None:
            self._lock.close()


@contextlib.asynccontextmanager
async def _open_logind(address: str) -> AsyncIterator[_Logind]:
    async with contextlib.AsyncExitStack() as stack:
        async with asyncio.timeout(ANSWER_TIMEOUT_S):
            logind = _Logind(await stack.enter_async_context(open_bus(address)))
            stack.callback(logind.release)
            await logind.connect()
        yield logind


def boot_clock() -> float:
    """Seconds since some moment, with those in which the machine slept."""
    # macOS has mach_continuous_time under the name of a clock that on Linux stands still during sleep
    clock = time.CLOCK_BOOTTIME if sys.platform == "linux" else time.CLOCK_MONOTONIC_RAW
    return time.clock_gettime(clock)


class SleepWatch:
    """Watches a clock such as `boot_clock`. `run` until cancelled."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._ticked_at = clock()

    def forget(self) -> None:
        """What was slept until now is known already."""
        self._ticked_at = self._clock()

    async def run(self, on_wake: Callable[[float], Awaitable[None]]) -> None:
        """Call `on_wake(seconds)` after each sleep."""
        while True:
            self._ticked_at = self._clock()
            await asyncio.sleep(TICK_S)
            late_s = self._clock() - self._ticked_at - TICK_S
            if late_s > SLEPT_S:
                await on_wake(late_s)
