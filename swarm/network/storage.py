"""What one node keeps for the directory, within fixed bounds, whoever asks it to.

Pure: clock and chance are arguments. A peer hosts one model, so all that is kept of one peer is of the
model that it named last. Where there is no room, a newcomer takes the place of one that is itself new:
whoever has been there for a while is not crowded out, and a flood displaces mostly itself.
"""

import heapq
import random
from collections.abc import Iterable
from dataclasses import dataclass

from swarm.network.admission import subkey_of
from swarm.wire.records import AnyRecord

MAX_PER_KEY = 4000
MAX_PER_PEER = 40  # a record stands under a key for each 32 blocks of its span, and its model's under one
MAX_KEPT_BYTES = 64 * 2**20
MAX_TOLD_BYTES = 2**20  # of one key in one answer; of more, a part that chance picks
RIVALS = 16  # so many are compared to find one that is new

Place = tuple[str, str]  # key, subkey


@dataclass(frozen=True, slots=True)
class _Kept:
    """A record as it came, and since when its peer has stood there without a break."""

    record: AnyRecord
    sealed: bytes
    since: float


class RecordStorage:
    """Records by place. Who may say what is decided in network/admission; this only has the room."""

    def __init__(
        self,
        chance: random.Random | None = None,
        max_per_key: int = MAX_PER_KEY,
        max_bytes: int = MAX_KEPT_BYTES,
    ) -> None:
        self._chance = chance or random.Random()  # noqa: S311 - spreads losses, guards nothing
        self._max_per_key = max_per_key
        self._max_bytes = max_bytes
        self._keys: dict[str, dict[str, _Kept]] = {}
        self._places: dict[str, set[Place]] = {}  # by peer
        self._order: list[Place] = []  # all places, for chance to pick from, and where each stands in it
        self._index: dict[Place, int] = {}
        self._expiries: list[tuple[float, Place]] = []  # a heap, also of records that were replaced since
        self._size_bytes = 0

    @property
    def size_bytes(self) -> int:
        """What all records take."""
        return self._size_bytes

    def put(self, key: str, record: AnyRecord, sealed: bytes, now: float) -> bool:
        """Keep an admitted record. False when its peer has said something newer, or says too much."""
        self._expire(now)
        place = (key, subkey_of(record))
        present = self._at(place)
        if present is not None and present.record.sequence >= record.sequence:
            return present.sealed == sealed
        if not self._is_last_word(record):
            return False
        for other in self._of_other_models(record):
            self._remove(other)
        if present is not None:
            self._remove(place)
        elif len(self._places.get(record.peer, ())) >= MAX_PER_PEER:
            return False
        else:
            self._make_room(key, len(sealed))
        self._insert(place, _Kept(record, sealed, present.since if present else now))
        return True

    def get(self, key: str, now: float, max_bytes: int = MAX_TOLD_BYTES) -> list[bytes]:
        """The sealed records under a key; as many as chance picks where they are larger than `max_bytes`."""
        self._expire(now)
        found = [kept.sealed for kept in self._keys.get(key, {}).values()]
        if sum(map(len, found)) <= max_bytes:
            return found
        self._chance.shuffle(found)
        told, size_bytes = [], 0
        for sealed in found:
            size_bytes += len(sealed)
            if size_bytes > max_bytes:
                break
            told.append(sealed)
        return told

    def _at(self, place: Place) -> _Kept | None:
        return self._keys.get(place[0], {}).get(place[1])

    def _records_of(self, peer: str) -> list[tuple[Place, AnyRecord]]:
        places = self._places.get(peer, ())
        return [(place, kept.record) for place in places if (kept := self._at(place)) is not None]

    def _is_last_word(self, record: AnyRecord) -> bool:
        """Whether its peer has not named another model since."""
        others = self._records_of(record.peer)
        return all(other.model == record.model or other.sequence < record.sequence for _, other in others)

    def _of_other_models(self, record: AnyRecord) -> list[Place]:
        return [place for place, other in self._records_of(record.peer) if other.model != record.model]

    def _make_room(self, key: str, size_bytes: int) -> None:
        while len(self._keys.get(key, {})) >= self._max_per_key:
            subkeys = list(self._keys[key])
            self._displace(
                (key, subkey) for subkey in self._chance.sample(subkeys, min(RIVALS, len(subkeys)))
            )
        while self._size_bytes + size_bytes > self._max_bytes and self._order:
            self._displace(self._chance.choices(self._order, k=RIVALS))

    def _displace(self, rivals: Iterable[Place]) -> None:
        """Take out the newest of a few."""
        self._remove(max(rivals, key=lambda place: self._keys[place[0]][place[1]].since))

    def _insert(self, place: Place, kept: _Kept) -> None:
        self._keys.setdefault(place[0], {})[place[1]] = kept
        self._places.setdefault(kept.record.peer, set()).add(place)
        self._size_bytes += len(kept.sealed)
        self._index[place] = len(self._order)
        self._order.append(place)
        heapq.heappush(self._expiries, (kept.record.expires_at, place))

    def _remove(self, place: Place) -> None:
        kept = self._keys[place[0]].pop(place[1])
        self._size_bytes -= len(kept.sealed)
        last, stood = self._order.pop(), self._index.pop(place)
        if last != place:
            self._order[stood], self._index[last] = last, stood
        places = self._places[kept.record.peer]
        places.discard(place)
        if not places:
            del self._places[kept.record.peer]
        if not self._keys[place[0]]:
            del self._keys[place[0]]

    def _expire(self, now: float) -> None:
        while self._expiries and self._expiries[0][0] <= now:
            _, place = heapq.heappop(self._expiries)
            kept = self._at(place)
            if kept is not None and kept.record.expires_at <= now:
                self._remove(place)
