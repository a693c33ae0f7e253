"""What is shown now: the last state and what was before, and every answer made from them, made once.

An answer is bytes with their compressed twin and their tag. They are made when first asked for and
kept until the next view, so load costs memory and time once per state, not per reader.
"""

import asyncio
import gzip
import hashlib
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from swarm.status.history import RANGES, Contributor, History, Point, Range
from swarm.status.incidents import Incident
from swarm.status.snapshot import SwarmState

MAX_ANSWERS = 256  # kept at a time
MAX_FEEDS = 500  # readers listening for changes
COMPRESS_FROM_BYTES = 1024


@dataclass(frozen=True, slots=True)
class HistoryView:
    """Incidents, contributors, and points by model and range."""

    read_at: float = 0.0
    incidents: tuple[Incident, ...] = ()
    contributors: tuple[Contributor, ...] = ()
    points: Mapping[tuple[str, Range], tuple[Point, ...]] = field(default_factory=dict)

    def availability(self, model: str) -> float | None:
        """Share of the last 24 hours in which the model worked, of those in which it is known."""
        known = [point.availability for point in self.points.get((model, "24h"), ())]
        shares = [share for share in known if share is not None]
        return sum(shares) / len(shares) if shares else None


def read_history(history: History, state: SwarmState) -> HistoryView:
    """Everything that page and API tell of the past."""
    return HistoryView(
        read_at=state.at,
        incidents=tuple(history.incidents()),
        contributors=tuple(history.contributors()),
        points={
            (model.manifest, name): tuple(history.points(model.manifest, name, state.at))
            for model in state.models
            for name in RANGES
        },
    )


@dataclass(frozen=True, slots=True)
class Answer:
    """A whole HTTP body. `zipped` is None for a small one."""

    body: bytes
    zipped: bytes | None
    etag: str
    content_type: str


@dataclass(frozen=True, slots=True)
class View:
    """State and past that belong together."""

    state: SwarmState
    history: HistoryView


class ResponseCache:
    """Holds the view, its answers, and those who want to hear of the next one."""

    def __init__(self, view: View) -> None:
        self.view = view
        self.version = 0
        self._answers: OrderedDict[str, asyncio.Future[Answer | None]] = OrderedDict()
        self._changed = asyncio.Condition()
        self.listeners = 0

    async def show(self, view: View) -> None:
        """Show a new view from now on, and tell the listeners."""
        self.view = view
        self._answers.clear()
        async with self._changed:
            self.version += 1
            self._changed.notify_all()

    async def changed_since(self, version: int) -> int:
        """Wait for a view newer than `version`; gives its version."""
        async with self._changed:
            await self._changed.wait_for(lambda: self.version > version)
            return self.version

    async def answer(
        self, name: str, content_type: str, make: Callable[[View], bytes | None]
    ) -> Answer | None:
        """The answer of that name, made in a thread by the first who asks; None when `make` has none."""
        future = self._answers.get(name)
        if future is None:
            view = self.view
            future = asyncio.ensure_future(asyncio.to_thread(lambda: _pack(make(view), content_type)))
            self._answers[name] = future
        self._answers.move_to_end(name)
        while len(self._answers) > MAX_ANSWERS:
            self._answers.popitem(last=False)
        return await asyncio.shield(future)


def _pack(body: bytes | None, content_type: str) -> Answer | None:
    if body is None:
        return None
    zipped = gzip.compress(body, 6, mtime=0) if len(body) >= COMPRESS_FROM_BYTES else None
    etag = hashlib.sha256(body).hexdigest()[:20]
    return Answer(body, zipped, etag, content_type)
