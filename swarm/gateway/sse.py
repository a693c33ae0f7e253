"""Server-sent events: how a stream looks on the wire, and where a reader that comes back goes on.

Pure. An event's id is ``<reply id>:<number>``, so `Last-Event-ID` alone says which reply it was and
how much of it has arrived.
"""

import re
from dataclasses import dataclass

from swarm.gateway.refusal import bad

CONTENT_TYPE = "text/event-stream"
# One line only: clients take an empty line after a comment for the end of an event, which then has no data.
PING = b": waiting for the swarm\n"
DONE = b"[DONE]"

_EVENT_ID = re.compile(r"([A-Za-z0-9_-]{1,80}):(\d{1,9})")


@dataclass(frozen=True, slots=True)
class EventPlace:
    """The last event that a reader has seen."""

    reply_id: str
    number: int


def event(data: bytes, name: str = "") -> bytes:
    """The lines of an event; `data` is JSON, so it holds no line break."""
    return (b"event: %s\n" % name.encode() if name else b"") + b"data: %s\n" % data


def with_id(reply_id: str, number: int, lines: bytes) -> bytes:
    """One event as it is sent."""
    return b"id: %s:%d\n%s\n" % (reply_id.encode(), number, lines)


def parse_event_id(text: str) -> EventPlace:
    """Read `Last-Event-ID`. Raises `Refusal`."""
    match = _EVENT_ID.fullmatch(text.strip())
    if match is None:
        raise bad("Last-Event-ID", f"Last-Event-ID is {text[:80]!r}", "Send the id of an event, as it came.")
    return EventPlace(match[1], int(match[2]))
