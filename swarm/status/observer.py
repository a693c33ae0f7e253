"""Looks at a whole swarm, again and again: reads the directory, runs canaries, gives one state.

The state is a value that is replaced, never changed; whoever shows it needs nothing else. Bounded:
so many models, and so many peers that are gone, whatever anybody announces.
"""

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass, field

from swarm.errors import NetworkError
from swarm.network.directory import Directory
from swarm.network.transport import Network
from swarm.status.canary import CanaryRun
from swarm.status.proofs import ModelProof
from swarm.status.snapshot import SwarmState, summarize
from swarm.status.watch import CanarySettings, ModelWatch
from swarm.values import ModelDigest
from swarm.wire.records import ModelRecord, PeerRecord, Snapshot

CRAWL_EVERY_S = 10.0
CRAWL_TIMEOUT_S = 30.0
MAX_MODELS = 50
GONE_KEPT_S = 900.0
MAX_GONE = 100  # of one model

_log = logging.getLogger(__name__)


@dataclass(slots=True)
class _Watched:
    """One model, its watch, and who was there lately."""

    watch: ModelWatch
    running: asyncio.Task[None]
    last: dict[str, PeerRecord] = field(default_factory=dict)

    def seen(self) -> tuple[ModelRecord, Snapshot, ModelProof, list[PeerRecord]] | None:
        """What a summary is made of; the records are of peers that are gone."""
        snapshot = self.watch.snapshot
        if snapshot is None:
            return None
        here = {record.peer for record in snapshot.peers}
        gone = [record for record in self.last.values() if record.peer not in here]
        return self.watch.record, snapshot, self.watch.ledger.proof, gone


class Observer:
    """Observes until cancelled; `on_news` is called when there is a new state. `now` is the wall clock."""

    def __init__(
        self, network: Network, directory: Directory, canaries: CanarySettings, now: Callable[[], float]
    ) -> None:
        self.on_news: Callable[[], None] = lambda: None
        self._network = network
        self._directory = directory
        self._canaries = canaries
        self._now = now
        self._watched: dict[str, _Watched] = {}
        self._left_out = 0
        self._seen_at: float | None = None

    async def run(self) -> None:
        """Crawl for ever."""
        try:
            while True:
                await self.crawl()
                await asyncio.sleep(CRAWL_EVERY_S)
        finally:
            await self.close()

    async def close(self) -> None:
        """End the canaries."""
        tasks = [watched.running for watched in self._watched.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def crawl(self) -> None:
        """Read the directory once. A directory that does not answer leaves the old models standing."""
        try:
            async with asyncio.timeout(CRAWL_TIMEOUT_S):
                records = await self._directory.models()
                chosen = sorted(records, key=lambda record: (record.model not in self._watched, record.name))
                snapshots = [
                    await self._directory.snapshot(ModelDigest(record.model), record.num_blocks)
                    for record in chosen[:MAX_MODELS]
                ]
        except (TimeoutError, NetworkError) as error:
            _log.warning("The directory did not answer: %s", error or "it took too long")
        else:
            self._seen_at = self._now()
            self._left_out = max(0, len(chosen) - MAX_MODELS)
            self._take_in(chosen[:MAX_MODELS], snapshots)
        self.on_news()

    async def prove(self) -> None:
        """Run canaries through every model until each peer has had a turn."""
        for watched in self._watched.values():
            await watched.watch.run_all()

    async def state(self) -> SwarmState:
        """The swarm as it is now. Computed in a thread: there may be thousands of peers."""
        now = self._now()
        seen = [part for watched in self._watched.values() if (part := watched.seen()) is not None]
        models = await asyncio.to_thread(lambda: [summarize(*part[:3], now, part[3]) for part in seen])
        models.sort(key=lambda model: (-len(model.peers), model.name, model.manifest))
        return SwarmState(now, self._seen_at, tuple(models), self._left_out)

    def _take_in(self, records: list[ModelRecord], snapshots: list[Snapshot]) -> None:
        found = {record.model for record in records}
        for digest in self._watched.keys() - found:
            if not self._still_remembered(self._watched[digest]):
                self._watched.pop(digest).running.cancel()
        for record, snapshot in zip(records, snapshots, strict=True):
            watched = self._watched.get(record.model) or self._begin(record)
            watched.watch.record = record
            self._look(watched, snapshot)
        for digest in self._watched.keys() - found:
            watch = self._watched[digest].watch
            empty = Snapshot(ModelDigest(digest), watch.record.num_blocks, (), self._now())
            self._look(self._watched[digest], empty)

    def _begin(self, record: ModelRecord) -> _Watched:
        watch = ModelWatch(self._network, record, self._canaries, self._now, self._on_run)
        self._watched[record.model] = _Watched(watch, asyncio.create_task(watch.run()))
        return self._watched[record.model]

    def _look(self, watched: _Watched, snapshot: Snapshot) -> None:
        watched.watch.snapshot = snapshot
        watched.last.update({record.peer: record for record in snapshot.peers})
        forgotten = snapshot.taken_at - GONE_KEPT_S
        newest = sorted(watched.last.values(), key=lambda record: -record.issued_at)
        here = {record.peer for record in snapshot.peers}
        gone = [record for record in newest if record.peer not in here and record.issued_at > forgotten][
            :MAX_GONE
        ]
        watched.last = {record.peer: record for record in (*snapshot.peers, *gone)}
        watched.watch.ledger.keep_only(watched.last)

    def _still_remembered(self, watched: _Watched) -> bool:
        """A model without peers stays as long as any of its peers is remembered."""
        return any(record.issued_at > self._now() - GONE_KEPT_S for record in watched.last.values())

    def _on_run(self, run: CanaryRun) -> None:
        self.on_news()
