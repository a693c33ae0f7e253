"""Follows the operating system's sleep signal, so that sessions move before the machine is gone.

On Linux systemd-logind, or elogind, says on the system bus when it is about to suspend, and waits for
those who hold a *delay* lock, a few seconds at most (https://systemd.io/INHIBITOR_LOCKS). Elsewhere,
and where that is refused, a sleep shows only afterwards: `peer/wake`.
"""

import asyncio
import logging
import socket
from collections import deque
from collections.abc import Awaitable, Callable
from types import TracebackType
from typing import Any, Self

from jeepney import (
    DBusAddress,
    DBusErrorResponse,
    MatchRule,
    Message,
    Properties,
    message_bus,
    new_method_call,
)
from jeepney.io.blocking import DBusConnection, open_dbus_connection
from jeepney.wrappers import unwrap_msg

ALLOWED_SHARE = 0.8  # of the delay that the system grants; it does not wait a moment longer
CALL_TIMEOUT_S = 10.0

_LOGIND = DBusAddress("/org/freedesktop/login1", "org.freedesktop.login1", "org.freedesktop.login1.Manager")
_PREPARE = {
    "type": "signal",
    "interface": _LOGIND.interface,
    "member": "PrepareForSleep",
    "path": _LOGIND.object_path,
}
_UNAVAILABLE = (OSError, DBusErrorResponse)  # no bus, or none any more; no logind, or it refused

_logger = logging.getLogger(__name__)


async def follow_sleep(
    on_sleep: Callable[[float], Awaitable[None]], on_wake: Callable[[], Awaitable[None]], bus: str = "SYSTEM"
) -> None:
    """Call `on_sleep(seconds it has)` before each sleep and `on_wake()` after it, until cancelled.

    Returns, and says why, where the system does not tell. `bus` is a D-Bus address, or SYSTEM.
    """
    asleep = False
    try:
        with await asyncio.to_thread(_Logind, bus) as logind:
            while True:
                if await logind.next_signal():
                    asleep = True
                    await on_sleep(logind.delay_s * ALLOWED_SHARE)
                    logind.release()
                else:
                    await asyncio.to_thread(logind.hold)
                    asleep = False
                    await on_wake()
    except _UNAVAILABLE as error:
        reason = str(error) or "no answer in time"
        _logger.info("Not told when this machine goes to sleep, so sessions cannot move before: %s", reason)
    if asleep:
        await on_wake()


class _Logind:
    """A connection to logind, with a lock that delays sleep.

    The constructor and `hold` wait for answers and belong into a thread; one thread at a time.
    """

    def __init__(self, bus: str) -> None:
        """Connect, listen and take the lock. Raises one of `_UNAVAILABLE`."""
        self._connection = _connect(bus)
        try:
            self._signals = self._listen()
            [(_, delay_us)] = self._call(Properties(_LOGIND).get("InhibitDelayMaxUSec"))
            self.delay_s: float = delay_us / 1e6
            self.hold()
        except BaseException:
            self._connection.close()
            raise

    async def next_signal(self) -> bool:
        """Whether the system goes to sleep (True) or woke up. Raises `OSError` when the bus is gone."""
        while not self._signals:
            try:
                self._connection.recv_messages(timeout=0)
            except TimeoutError:
                await _readable(self._connection.sock)
        [going] = self._signals.popleft().body
        return bool(going)

    def hold(self) -> None:
        """Have sleep wait for `release`."""
        why = ("sleep", "swarm peer", "sessions move to other peers", "delay")
        [self._lock] = self._call(new_method_call(_LOGIND, "Inhibit", "ssss", why))

    def release(self) -> None:
        """Let the system go to sleep; does nothing when it may already."""
        self._lock.close()

    def _listen(self) -> deque[Message]:
        signals: deque[Message] = deque()
        self._connection.filter(MatchRule(**_PREPARE), queue=signals)  # messages name the sender by number
        self._call(message_bus.AddMatch(MatchRule(sender=_LOGIND.bus_name, **_PREPARE)))
        return signals

    def _call(self, message: Message) -> tuple[Any, ...]:
        reply = self._connection.send_and_get_reply(message, timeout=CALL_TIMEOUT_S)
        answer: tuple[Any, ...] = unwrap_msg(reply)
        return answer

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()
        self._connection.close()


def _connect(bus: str) -> DBusConnection:
    """Raises `OSError`."""
    try:
        return open_dbus_connection(bus, enable_fds=True)
    except (ValueError, RuntimeError) as error:  # jeepney's, for an address or a handshake not its own
        raise ConnectionError(f"The bus cannot be used ({error})") from error


async def _readable(sock: socket.socket) -> None:
    """Return when there is something to read, if only the end."""
    loop = asyncio.get_running_loop()
    ready = asyncio.Event()
    loop.add_reader(sock, ready.set)
    try:
        await ready.wait()
    finally:
        loop.remove_reader(sock)
