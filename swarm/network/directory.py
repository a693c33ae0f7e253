"""The directory: publish what this node hosts, and look up what others host.

Records of a model stand in buckets of 32 blocks, under the peer's id, so that no key holds a whole
big swarm. The network gives only records that network/admission has let through. A record of another
wire version is passed on as it is; what to make of it is the router's decision.
"""

import asyncio
from collections import Counter
from collections.abc import Callable
from itertools import chain

from msgspec import structs

from swarm.network.admission import MODELS_KEY, bucket_keys, keys_of, newest
from swarm.network.transport import Network
from swarm.security.identity import Identity
from swarm.values import ModelDigest, Span
from swarm.wire.records import AnyRecord, ModelRecord, PeerRecord, Snapshot, seal

MAX_SPONSORS = 8
COUNT_SPONSORS_EVERY_S = 30.0


class Directory:
    """Looks records up through one node. `now` is the wall clock, in Unix seconds."""

    def __init__(self, network: Network, now: Callable[[], float]) -> None:
        self._network = network
        self._now = now

    async def snapshot(self, model: ModelDigest, num_blocks: int) -> Snapshot:
        """All valid records of a model now, by span. Raises `NetworkError`."""
        keys = bucket_keys(model, Span(0, num_blocks))
        found = await asyncio.gather(*(self._network.fetch(key) for key in keys))
        told = newest(chain.from_iterable(each.records for each in found))  # two buckets may differ
        hosting = [each for each in told if isinstance(each, PeerRecord) and each.end <= num_blocks]
        peers = sorted(hosting, key=lambda record: (record.start, record.end, record.peer))
        hearsay = frozenset().union(*(each.hearsay for each in found))
        return Snapshot(model, num_blocks, tuple(peers), self._now(), hearsay)

    async def models(self) -> tuple[ModelRecord, ...]:
        """The models of this swarm, by name: one record each, as most of its sponsors tell it."""
        by_model: dict[str, list[ModelRecord]] = {}
        for record in await self._model_records():
            by_model.setdefault(record.model, []).append(record)
        chosen = (_majority(records) for records in by_model.values())
        return tuple(sorted(chosen, key=lambda record: (record.name, record.model)))

    async def _model_records(self) -> list[ModelRecord]:
        found = await self._network.fetch(MODELS_KEY)
        return [record for record in found.records if isinstance(record, ModelRecord)]


class OwnDirectory(Directory):
    """A directory that this node also writes its own records into, signed by its identity."""

    def __init__(self, network: Network, identity: Identity, now: Callable[[], float]) -> None:
        super().__init__(network, now)
        self._identity = identity
        self._is_sponsor = False
        self._sponsors_counted_at = -COUNT_SPONSORS_EVERY_S

    async def announce(self, record: PeerRecord) -> bool:
        """Publish this peer's record in every bucket that its span touches.

        False when the directory refused it. Raises `NetworkError` when it does not answer.
        """
        return await self._publish(record)

    async def withdraw(self, record: PeerRecord) -> bool:
        """Replace this peer's record by one that says it is leaving, and ends with its life.

        A node that is not told keeps the record of before for that long, and this word must outlive it.
        """
        return await self._publish(structs.replace(record, state="draining"))

    async def announce_model(self, record: ModelRecord) -> bool:
        """Sponsor a model, unless eight others say the same of it. Whether this node now sponsors it.

        Raises `NetworkError` when the directory does not answer.
        """
        now = self._now()
        if not 0 <= now - self._sponsors_counted_at < COUNT_SPONSORS_EVERY_S:
            agreeing = [other for other in await self._model_records() if _facts(other) == _facts(record)]
            self._is_sponsor = len({other.peer for other in agreeing} - {record.peer}) < MAX_SPONSORS
            self._sponsors_counted_at = now
        return self._is_sponsor and await self._publish(record)

    async def _publish(self, record: AnyRecord) -> bool:
        sealed = seal(record, self._identity.sign)
        return all(await asyncio.gather(*(self._network.store(key, sealed) for key in keys_of(record))))


def _facts(record: ModelRecord) -> tuple[str, str, int, int, str]:
    """What a sponsor says of a model."""
    return (record.model, record.name, record.num_blocks, record.hidden_size, record.model_type)


def _majority(records: list[ModelRecord]) -> ModelRecord:
    votes = Counter(map(_facts, records))
    winner = max(sorted(votes), key=lambda facts: votes[facts])
    return min((each for each in records if _facts(each) == winner), key=lambda record: record.peer)
