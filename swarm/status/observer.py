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
from swarm.status.schedule import MAX_MODELS, Standing, choose_models
from swarm.status.snapshot import SwarmState, summarize
from swarm.status.watch import CanarySettings, ModelWatch
from swarm.values import ModelDigest
from swarm.wire.records import ModelRecord, PeerRecord, Snapshot

CRAWL_EVERY_S = 10.0
LOOK_TIMEOUT_S = 10.0  # at one model
LOOKS_AT_ONCE = 8
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
        self._looked_at: dict[str, float] = {}  # of models that are claimed
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
            claimed = await self._directory.models()
        except NetworkError as error:
            _log.warning("The directory did not answer: %s", error)
        else:
            now = self._now()
            chosen = choose_models(claimed, self._standing)
            self._looked_at = {record.model: self._looked_at.get(record.model, 0.0) for record in claimed}
            self._looked_at |= dict.fromkeys((record.model for record in chosen), now)
            slots = asyncio.Semaphore(LOOKS_AT_ONCE)
            looks = await asyncio.gather(*(self._look_at(record, slots) for record in chosen))
            seen = [look for look in looks if look is not None]
            if seen or not chosen:
                self._seen_at = now
            self._take_in(seen, {record.model for record in claimed})
            self._left_out = len(self._looked_at.keys() - self._watched.keys())
        self.on_news()

    async def _look_at(
        self, record: ModelRecord, slots: asyncio.Semaphore
    ) -> tuple[ModelRecord, Snapshot] | None:
        """A model and its peers; None when the directory does not tell in time, which harms no other."""
        async with slots:
            try:
                async with asyncio.timeout(LOOK_TIMEOUT_S):
                    return record, await self._directory.snapshot(
                        ModelDigest(record.model), record.num_blocks
                    )
            except (TimeoutError, NetworkError) as error:
                _log.info("No look at %s: %s", record.model, error or "it took too long")
                return None

    def _standing(self, model: str) -> Standing:
        watched = self._watched.get(model)
        proof = watched.watch.ledger.proof if watched else None
        return Standing(
            proven=proof is not None and proof.passed is not None,
            tried_in_vain=proof.runs if proof and not proof.passed else 0,
            looked_at=self._looked_at.get(model, 0.0),
        )

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

    def _take_in(self, seen: list[tuple[ModelRecord, Snapshot]], claimed: set[str]) -> None:
        """Of models with peers; that somebody claims one is not enough."""
        for digest in self._watched.keys() - claimed:
            if not self._still_remembered(self._watched[digest]):
                self._watched.pop(digest).running.cancel()
        for record, snapshot in seen:
            watched = self._watched.get(record.model)
            if watched is None and not (snapshot.peers and self._has_room()):
                continue
            watched = watched or self._begin(record)
            if watched.watch.ledger.proof.passed is None:  # of a proven model nobody changes the shape
                watched.watch.record = record
            self._look(watched, snapshot)
        for digest in self._watched.keys() - claimed:
            watch = self._watched[digest].watch
            empty = Snapshot(ModelDigest(digest), watch.record.num_blocks, (), self._now())
            self._look(self._watched[digest], empty)

    def _has_room(self) -> bool:
        """Whether one more can be watched: else the one goes that was tried most often in vain."""
        if len(self._watched) < MAX_MODELS:
            return True
        worst = max(self._watched, key=lambda digest: self._standing(digest).tried_in_vain)
        if not self._standing(worst).tried_in_vain:
            return False
        self._watched.pop(worst).running.cancel()
        return True

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
