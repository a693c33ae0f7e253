"""Which connections an HTTP server keeps when there are more than it can serve.

Pure: the clock is an argument. A connection is idle until a whole head of a request has come, and again
after the answer; only idle ones are ended. Who has the most makes room first, so that one who opens
thousands and says nothing takes them from himself and not from others.
"""

import ipaddress
from collections import Counter
from dataclasses import dataclass, field
from typing import Generic, TypeVar

Connection = TypeVar("Connection")

FIRST_HEAD_S = 15.0  # from connecting until the first request's headers are complete
NEXT_HEAD_S = 75.0  # longer than proxies keep an idle connection
STALLED_S = 60.0  # a reader that takes nothing of what is written to it


@dataclass(slots=True)
class _KnownConnection:
    owner: str
    idle_since: float | None
    answered: bool = False
    unread_bytes: int = 0  # of what is written to it
    unread_since: float = 0.0

    @property
    def patience_s(self) -> float:
        return NEXT_HEAD_S if self.answered else FIRST_HEAD_S


@dataclass(slots=True)
class ConnectionTable(Generic[Connection]):
    """At most `limit` connections, and half of them from one address."""

    limit: int
    _known: dict[Connection, _KnownConnection] = field(default_factory=dict)
    _counts: Counter[str] = field(default_factory=Counter)

    def __len__(self) -> int:
        return len(self._known)

    def arrive(self, connection: Connection, address: str, now: float) -> Connection | None:
        """Take one in. Gives the one to be ended for it: the new one itself when no other is idle."""
        owner = owner_of(address)
        crowded = self._counts[owner] >= max(1, self.limit // 2)
        given_up = None
        if crowded or len(self._known) >= self.limit:
            given_up = self._longest_idle(owner if crowded else None)
            if given_up is None:
                return connection
            self.leave(given_up)
        self._known[connection] = _KnownConnection(owner, now)
        self._counts[owner] += 1
        return given_up

    def leave(self, connection: Connection) -> None:
        """It is closed."""
        known = self._known.pop(connection, None)
        if known is not None:
            self._counts[known.owner] -= 1
            if not self._counts[known.owner]:
                del self._counts[known.owner]

    def busy(self, connection: Connection) -> None:
        """A request has come."""
        if connection in self._known:
            self._known[connection].idle_since = None
            self._known[connection].unread_bytes = 0

    def idle(self, connection: Connection, now: float) -> None:
        """It has been answered."""
        if connection in self._known:
            self._known[connection].idle_since = now
            self._known[connection].answered = True

    def overdue(self, now: float) -> list[Connection]:
        """Those that were idle for too long."""
        return [
            connection
            for connection, known in self._known.items()
            if known.idle_since is not None and now - known.idle_since > known.patience_s
        ]

    def stalled(self, connection: Connection, unread_bytes: int, now: float) -> bool:
        """Whether its reader has taken nothing for too long; to be asked again and again while bytes wait."""
        known = self._known.get(connection)
        if known is None:
            return False
        if not 0 < known.unread_bytes <= unread_bytes:
            known.unread_since = now
        known.unread_bytes = unread_bytes
        return now - known.unread_since > STALLED_S

    def taken(self, connection: Connection) -> None:
        """Its reader has taken what there was."""
        if connection in self._known:
            self._known[connection].unread_bytes = 0

    def _longest_idle(self, owner: str | None) -> Connection | None:
        """Of an owner, or else of whoever has the most."""
        idle = [
            (self._counts[known.owner], -known.idle_since, connection)
            for connection, known in self._known.items()
            if known.idle_since is not None and owner in (None, known.owner)
        ]
        return max(idle, key=lambda each: each[:2])[2] if idle else None


def owner_of(address: str) -> str:
    """Whose connections count together: an IPv4 address, or the IPv6 network that one host can fill."""
    try:
        parsed = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return address
    if isinstance(parsed, ipaddress.IPv4Address):
        return str(parsed)
    if parsed.ipv4_mapped is not None:
        return str(parsed.ipv4_mapped)
    return str(ipaddress.ip_network((parsed, 64), strict=False))
