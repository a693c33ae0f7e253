"""The directory's DHT: what this node answers others, and how it asks them.

Kademlia (Maymounkov and Mazieres, 2002) with hivemind's routing table and traversal. Reading and
judging what strangers send is all here and below, in `wire/directory`, `admission` and `storage`: nothing
of theirs reaches a parser of hivemind's. A node's place follows from its key, so nobody chooses theirs. A
record is taken only from the peer that it is about. A look-up asks several nodes, believes what is proven
and told by one that was joined through, by the peer itself or by two, and ends early on nobody's word; a
node that answers nonsense is left out for a while.
"""

import asyncio
import hashlib
import logging
import statistics
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from hivemind.dht.routing import DHTID, RoutingTable
from hivemind.dht.traverse import traverse_dht

from swarm.errors import ClockOff, InvalidRecord, MalformedMessage, NetworkError, ProtocolError, StaleRecord
from swarm.network.admission import RecordCheck, newest, subkey_of
from swarm.network.budgets import Allowance, Bans, Budgets
from swarm.network.storage import RecordStorage
from swarm.security.identity import is_peer_id
from swarm.values import PeerId
from swarm.wire.directory import (
    MAX_NODES_TOLD,
    AnyAnswer,
    AnyRequest,
    Busy,
    FindNodes,
    FindRecords,
    Found,
    Hello,
    Store,
    Stored,
    Welcome,
    decode_answer,
    decode_request,
    encode,
)
from swarm.wire.records import MAX_CLOCK_SKEW_S, AnyRecord, LookUp

REPLICAS = 5  # nodes that keep a record, besides those joined through
BEAM = 8  # nodes nearest to a place that are asked
WORKERS = 4  # of them at a time
MAX_INTRODUCERS = 4
CALL_TIMEOUT_S = 3.0
SEARCH_TIMEOUT_S = 4.0  # what was found by then is what there is
ENOUGH_ANSWERS, GRACE_S = 3, 1.0  # when so many have answered, the others have so long yet
MAX_CLOCKS = 8  # of neighbors that are compared with this one
MAX_PROBES = 8  # of neighbors that may be gone, at a time
YIELD_EVERY = 32  # signatures, about 3 ms

REQUESTS = Allowance(burst=500, per_s=50)  # of one asker
TOLD_BYTES = Allowance(burst=64 * 2**20, per_s=4 * 2**20)  # to one asker
OFFERED = Allowance(burst=200, per_s=10)  # records, by one asker
OFFERED_IN_ALL = Allowance(burst=4000, per_s=1000)  # a signature takes 0.1 ms to check

_log = logging.getLogger(__name__)

Call = Callable[[PeerId, bytes], Awaitable[bytes]]  # one request to one node; raises `NetworkError`
Answer = TypeVar("Answer", Welcome, Found, Stored)


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What a node of the DHT needs from outside. `now` is the wall clock, in Unix seconds."""

    call: Call
    heard_of: Callable[[AnyRecord], None]  # is told every record that is seen
    now: Callable[[], float]


class _OverBudget(Exception):
    """The asker, or all of them, have asked for more than there is."""


class Dht:
    """One node. With `serves` it answers requests, and is told to others."""

    def __init__(self, own: PeerId, serves: bool, storage: RecordStorage, around: Surroundings) -> None:
        self._own = own
        self._serves = serves
        self._storage = storage
        self._around = around
        self._admission = RecordCheck()
        self._table = RoutingTable(place_of(own), MAX_NODES_TOLD, depth_modulo=5)
        self._introducers: dict[PeerId, None] = {}
        self._behind_s: dict[PeerId, float] = {}  # by the neighbors that were asked last
        self._bans = Bans()
        self._requests, self._told = Budgets(REQUESTS), Budgets(TOLD_BYTES)
        self._offered, self._offered_in_all = Budgets(OFFERED), Budgets(OFFERED_IN_ALL)
        self._probes: dict[PeerId, asyncio.Task[bool]] = {}

    def neighbors(self) -> tuple[PeerId, ...]:
        """The nodes of the routing table."""
        return tuple(self._table.peer_id_to_uid)

    def answer(self, raw: bytes, asker: PeerId) -> bytes:
        """Answer a request. Raises `ProtocolError`, which the asker is told."""
        request = decode_request(raw)
        try:
            self._charge(self._requests, asker, 1)
            self._bans.heard(asker)
            if request.serves:
                self._meet(asker)
            answer = encode(self._answer(request, asker))
            self._charge(self._told, asker, len(answer))
        except _OverBudget:
            return encode(Busy())
        return answer

    async def introduce(self, peer: PeerId) -> Welcome:
        """Greet a node that this one was told to join through, and ask it from now on whatever its place.

        Raises `NetworkError` or `ProtocolError`.
        """
        welcome = _as(Welcome, decode_answer(await self._around.call(peer, encode(Hello(self._serves)))))
        self._bans.forgive(peer)
        self._meet(peer)
        self._introducers.pop(peer, None)
        self._introducers[peer] = None
        while len(self._introducers) > MAX_INTRODUCERS:
            del self._introducers[next(iter(self._introducers))]
        return welcome

    async def ping(self, peer: PeerId) -> bool:
        """Ask a neighbor for a sign of life; one that gives none leaves the routing table."""
        asked_at = self._around.now()
        welcome = await self._call(peer, Hello(self._serves), Welcome)
        if welcome is not None:
            self._note_time(peer, asked_at, welcome)
        return welcome is not None

    @property
    def behind_s(self) -> float:
        """How far the clocks of most neighbors are ahead of this one; 0 where that matters to nobody."""
        off = [each for each in self._behind_s.values() if each]
        return statistics.median(off) if 2 * len(off) > len(self._behind_s) else 0.0

    def forget(self, peer: PeerId) -> None:
        """Take a node out of the routing table; it comes back when it says something."""
        if place_of(peer) in self._table:
            del self._table[place_of(peer)]

    async def explore(self) -> None:
        """Find the nodes nearest to this one, and be found by them (Kademlia, section 2.3)."""
        place = place_of(self._own)
        await self._search(place, FindNodes(self._serves, place.to_bytes()))

    async def store(self, key: str, sealed: bytes) -> bool:
        """Have a record of this node's own kept; whether any other node does, if there is any."""
        place = _place(key.encode())
        answered = await self._search(place, FindNodes(self._serves, place.to_bytes()))
        nearest = sorted(answered, key=lambda peer: place.xor_distance(place_of(peer)))
        takers = {*nearest[:REPLICAS], *(self._introducers.keys() & answered.keys())}
        request = Store(self._serves, key, sealed)
        stored = await asyncio.gather(*(self._ask(peer, request, Stored) for peer in takers))
        own = self._serves and self._keep(key, sealed, self._own, self._around.now())
        return any(each is not None and each.kept for each in stored) or (own and self._is_alone)

    async def fetch(self, key: str) -> LookUp:
        """All records that hold now under a key, as far as anyone has them. Raises `NetworkError`."""
        answers = await self._search(_place(key.encode()), FindRecords(self._serves, key))
        if not answers and not self._is_alone:
            raise NetworkError("No node of the directory answers")
        told = {self._own: await self._believe(key, self._storage.get(key, self._around.now()), self._own)}
        for peer, answer in answers.items():
            told[peer] = await self._believe(key, answer.records, peer)
        return self._vouched_for(told)

    def _vouched_for(self, told: Mapping[PeerId, Sequence[AnyRecord]]) -> LookUp:
        """What is told by nodes that this one joined through, by the very peer it is about, or by two others.

        Anyone can sign for any number of peers that are not there; a node that keeps records takes each
        from its peer alone, but a liar tells them all by itself, and one party can be two nodes: what others
        tell is hearsay. What only one tells counts where nobody who could know better has answered.
        """
        tellers: dict[str, set[PeerId]] = {}
        for teller, records in told.items():
            for record in records:
                tellers.setdefault(subkey_of(record), set()).add(teller)
        sure = {self._own, *self._introducers}
        everything = [record for records in told.values() for record in records]
        hearsay = {
            record.peer
            for record in everything
            if sure.isdisjoint(by := tellers[subkey_of(record)]) and record.peer not in by
        }
        vouched = [
            record
            for record in everything
            if record.peer not in hearsay or len(tellers[subkey_of(record)]) > 1
        ]
        if not vouched and told.keys().isdisjoint(self._introducers):
            vouched = everything
        return LookUp(newest(vouched), frozenset(hearsay))

    async def close(self) -> None:
        """End what runs."""
        for probe in self._probes.values():
            probe.cancel()
        await asyncio.gather(*self._probes.values(), return_exceptions=True)

    @property
    def _is_alone(self) -> bool:
        return not self._introducers and not self.neighbors()

    def _answer(self, request: AnyRequest, asker: PeerId) -> AnyAnswer:
        now = self._around.now()
        match request:
            case FindNodes(target=target):
                return Found(self._nearest(DHTID.from_bytes(target), asker), ())
            case FindRecords(key=key):
                return Found(self._nearest(_place(key.encode()), asker), tuple(self._storage.get(key, now)))
            case Store(key=key, sealed=sealed):
                self._charge(self._offered, asker, 1)
                self._charge(self._offered_in_all, self._own, 1)
                return Stored(self._keep(key, sealed, asker, now))
            case _:
                return Welcome(now)

    def _note_time(self, peer: PeerId, asked_at: float, welcome: Welcome) -> None:
        now, before_s = self._around.now(), self.behind_s
        agrees = asked_at - MAX_CLOCK_SKEW_S <= welcome.time <= now + MAX_CLOCK_SKEW_S
        self._behind_s.pop(peer, None)
        self._behind_s[peer] = 0.0 if agrees else welcome.time - now
        while len(self._behind_s) > MAX_CLOCKS:
            del self._behind_s[next(iter(self._behind_s))]
        if self.behind_s and not before_s:
            _log.warning("%s", ClockOff(self.behind_s))

    def _charge(self, budgets: Budgets, asker: PeerId, amount: float) -> None:
        if not budgets.take(asker, amount, _ticks()):
            raise _OverBudget

    def _nearest(self, place: DHTID, asker: PeerId) -> tuple[PeerId, ...]:
        nearest = self._table.get_nearest_neighbors(place, MAX_NODES_TOLD, exclude=place_of(asker))
        return tuple(peer for _, peer in nearest)

    def _keep(self, key: str, sealed: bytes, sender: PeerId, now: float) -> bool:
        try:
            record = self._admission.admit(key, sealed, now, MAX_CLOCK_SKEW_S)
        except InvalidRecord:
            return False
        if record.peer != sender:
            return False  # whom it is about would say so itself
        self._around.heard_of(record)
        return self._storage.put(key, record, sealed, now)

    async def _believe(self, key: str, told: Sequence[bytes], teller: PeerId) -> list[AnyRecord]:
        """The records of an answer that prove themselves; for one that never could, its teller pays."""
        records: list[AnyRecord] = []
        for index, sealed in enumerate(told, 1):
            if index % YIELD_EVERY == 0:  # also among those that hold no more: each has a signature
                await asyncio.sleep(0)
            try:
                records.append(self._admission.admit(key, sealed, self._around.now()))
            except StaleRecord:
                continue
            except InvalidRecord:
                self._fault(teller, silent=False)
                break
        for record in records:
            self._around.heard_of(record)
        return records

    async def _search(self, place: DHTID, request: FindNodes | FindRecords) -> dict[PeerId, Found]:
        """What the nodes nearest to a place answer, and those that this one joined through."""
        near = [peer for _, peer in self._table.get_nearest_neighbors(place, MAX_NODES_TOLD)]
        search = _Search(place, lambda peer: self._ask(peer, request, Found))
        known = [peer for peer in near if not self._is_banned(peer)]
        return await search.run(known, list(self._introducers), self._own)

    async def _ask(self, peer: PeerId, request: AnyRequest, kind: type[Answer]) -> Answer | None:
        """As `_call`, of a node that is not left out just now."""
        return None if self._is_banned(peer) else await self._call(peer, request, kind)

    async def _call(self, peer: PeerId, request: AnyRequest, kind: type[Answer]) -> Answer | None:
        """What one node answers. None, at its cost, when it does not, or does not make sense."""
        try:
            async with asyncio.timeout(CALL_TIMEOUT_S):
                answer = decode_answer(await self._around.call(peer, encode(request)))
                if isinstance(answer, Busy):  # which is no fault
                    return None
                answer = _as(kind, answer)
        except (NetworkError, TimeoutError):
            self._fault(peer, silent=True)
            return None
        except ProtocolError:
            self._fault(peer, silent=False)
            return None
        self._bans.forgive(peer)
        self._meet(peer)
        return answer

    def _is_banned(self, peer: PeerId) -> bool:
        return self._bans.is_banned(peer, _ticks())

    def _fault(self, peer: PeerId, silent: bool) -> None:
        if peer == self._own:
            return
        self._bans.fault(peer, _ticks(), silent)
        self.forget(peer)

    def _meet(self, peer: PeerId) -> None:
        """Take a node into the routing table; where that is full, see whether its oldest neighbor lives."""
        if self._is_banned(peer) or peer == self._own:
            return
        place = place_of(peer)
        oldest = self._table.add_or_update_node(place, peer)
        bucket = self._table.buckets[self._table.get_bucket_index(place)]
        while len(bucket.replacement_nodes) > MAX_NODES_TOLD:
            del self._table[next(iter(bucket.replacement_nodes))]
        if oldest is None:
            return
        if len(self._probes) >= MAX_PROBES or oldest[1] in self._probes:
            bucket.nodes_requested_for_ping.discard(oldest[0])
            return
        self._probes[oldest[1]] = probe = asyncio.create_task(self.ping(oldest[1]))
        probe.add_done_callback(lambda _: self._probes.pop(oldest[1], None))


class _Search:
    """One walk towards a place. Each node is asked once, whoever names it."""

    def __init__(self, place: DHTID, ask: Callable[[PeerId], Awaitable[Found | None]]) -> None:
        self._place = place
        self._ask = ask
        self._asked: dict[PeerId, asyncio.Task[None]] = {}
        self._names: dict[DHTID, PeerId] = {}
        self._answers: dict[PeerId, Found] = {}
        self._answered = asyncio.Event()  # by enough

    async def run(
        self, known: Iterable[PeerId], introducers: Iterable[PeerId], own: PeerId
    ) -> dict[PeerId, Found]:
        """Walk from the nodes that are known, and ask the introducers besides."""
        self._names = {place_of(peer): peer for peer in known}
        walk = asyncio.gather(self._walk(own), *map(self._visit, introducers))
        enough = asyncio.create_task(self._answered.wait())
        waiting: set[asyncio.Future[Any]] = {walk, enough}
        try:
            await asyncio.wait(waiting, timeout=SEARCH_TIMEOUT_S, return_when=asyncio.FIRST_COMPLETED)
            if not walk.done() and enough.done():
                await asyncio.wait({walk}, timeout=GRACE_S)
        finally:
            waiting.update(self._asked.values())
            for task in waiting:
                task.cancel()
            outcome, *_ = await asyncio.gather(walk, *self._asked.values(), return_exceptions=True)
        if isinstance(outcome, Exception):
            raise outcome
        return self._answers

    async def _walk(self, own: PeerId) -> None:
        start = list(self._names)
        if start:
            await traverse_dht(
                [self._place], start, BEAM, WORKERS, 1, self._neighbors_of,
                visited_nodes={self._place: {place_of(own)}},
            )  # fmt: skip

    async def _neighbors_of(
        self, node: DHTID, queries: Collection[DHTID]
    ) -> dict[DHTID, tuple[tuple[DHTID, ...], bool]]:
        peer = self._names[node]
        await self._visit(peer)
        found = self._answers.get(peer)
        named = [PeerId(name) for name in found.nodes if is_peer_id(name)] if found else []
        places = {place_of(name): name for name in named}
        self._names.update(places)
        return {query: (tuple(places), False) for query in queries}

    async def _visit(self, peer: PeerId) -> None:
        if peer not in self._asked:
            self._asked[peer] = asyncio.create_task(self._note(peer))
        await asyncio.wait({self._asked[peer]})

    async def _note(self, peer: PeerId) -> None:
        answer = await self._ask(peer)
        if answer is not None:
            self._answers[peer] = answer
        if len(self._answers) >= ENOUGH_ANSWERS:
            self._answered.set()


def place_of(peer: PeerId) -> DHTID:
    """Where a node stands in the key space: it follows from its key."""
    return _place(b"node " + peer.encode())


def _place(name: bytes) -> DHTID:
    return DHTID.from_bytes(hashlib.sha1(name, usedforsecurity=False).digest())


def _ticks() -> float:
    """Seconds of a clock that nobody sets."""
    return asyncio.get_running_loop().time()


def _as(kind: type[Answer], answer: AnyAnswer) -> Answer:
    if not isinstance(answer, kind):
        raise MalformedMessage(f"A {type(answer).__name__} answers another question")
    return answer
