"""The DHT among strangers: what they send costs themselves, and the honest are found meanwhile."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from swarm.errors import NetworkError, PeerUnreachable, ProtocolError
from swarm.network.dht import MAX_NODES_TOLD, REQUESTS, SEARCH_TIMEOUT_S, Dht, Surroundings
from swarm.network.storage import RecordStorage
from swarm.security.identity import Identity, new_identity
from swarm.testing.clock import run_virtual
from swarm.values import PeerId
from swarm.wire.directory import (
    MAX_ANSWER_BYTES,
    MAX_REQUEST_BYTES,
    Busy,
    FindRecords,
    Found,
    Hello,
    Store,
    Stored,
    Welcome,
    decode_answer,
    encode,
)
from swarm.wire.records import PeerRecord, seal

MODEL = "ab" * 32
KEY = f"peers/{MODEL}/0"
Make = Callable[..., PeerRecord]
NESTED = b"\xc7\x04\x40" * 4 + b"\x92" * 300_000
# What an evil node may say to a look-up: no answer, no answer of this kind, and none that proves itself.
NONSENSE = {
    "nothing": b"",
    "nested arrays": b"\x91" * 1000,
    "nested extensions": bytes.fromhex("c841c940") * 234,
    "deep in a field that is not read": b"\x94\xa5found\x90\x90" + NESTED,
    "another kind": encode(Stored(True)),
    "a number for a name": msgspec.msgpack.encode(["found", [7], []]),
    "too large": bytes(MAX_ANSWER_BYTES + 1),
    "a hundred nodes": msgspec.msgpack.encode(["found", ["x"] * 100, []]),
    "records that are none": encode(Found((), (b"\x92garbage",) * 5)),
}


def now() -> float:
    return 1e9 + asyncio.get_running_loop().time()


@dataclass
class Fabric:
    """Nodes that can call each other. Of those in `evil` every request is answered by a function."""

    nodes: dict[PeerId, Dht] = field(default_factory=dict)
    evil: dict[PeerId, Callable[[bytes], Awaitable[bytes]]] = field(default_factory=dict)
    calls: list[tuple[PeerId, PeerId]] = field(default_factory=list)  # who asked whom

    async def add(self, identity: Identity | None = None, serves: bool = True) -> tuple[Dht, Identity]:
        identity = identity or new_identity()
        own = identity.peer_id

        async def call(peer: PeerId, raw: bytes) -> bytes:
            self.calls.append((own, peer))
            await asyncio.sleep(0.01)
            if peer in self.evil:
                return await self.evil[peer](raw)
            if peer not in self.nodes:
                raise PeerUnreachable("nobody is there")
            try:
                return self.nodes[peer].answer(raw, own)
            except ProtocolError as error:
                raise PeerUnreachable(str(error)) from error

        first = next(iter(self.nodes), None)
        dht = Dht(own, serves, RecordStorage(), Surroundings(call, lambda record: None, now))
        if first is not None:
            await dht.introduce(first)
            await dht.explore()
        if serves:
            self.nodes[own] = dht
        return dht, identity

    def add_evil(self, answer: Callable[[bytes], Awaitable[bytes]], known_by: Dht) -> PeerId:
        """An evil node that has made itself known to an honest one."""
        peer = new_identity().peer_id
        known_by.answer(encode(Hello(True)), peer)
        self.evil[peer] = answer
        return peer


async def announce(dht: Dht, identity: Identity, make_record: Make, **changes: object) -> PeerRecord:
    record = make_record(identity, issued_at=now(), **changes)
    assert await dht.store(KEY, seal(record, identity.sign))
    return record


def play(act: Callable[[Fabric], Awaitable[None]]) -> None:
    async def run() -> None:
        fabric = Fabric()
        try:
            await act(fabric)
        finally:
            for node in fabric.nodes.values():
                await node.close()

    run_virtual(run())


async def says(answer: bytes) -> bytes:
    return answer


async def says_nothing(_: bytes) -> bytes:
    await asyncio.Event().wait()
    return b""


def test_record_is_found_from_every_node(make_record: Make) -> None:
    async def act(fabric: Fabric) -> None:
        nodes = [await fabric.add() for _ in range(30)]
        record = await announce(*nodes[7], make_record)
        reader, _ = await fabric.add(serves=False)
        for node, _ in (*nodes, (reader, None)):
            assert (await node.fetch(KEY)).records == (record,)

    play(act)


@pytest.mark.parametrize("nonsense", NONSENSE.values(), ids=NONSENSE)
def test_nonsense_costs_its_sender_and_not_the_look_up(make_record: Make, nonsense: bytes) -> None:
    async def act(fabric: Fabric) -> None:
        first, identity = await fabric.add()
        record = await announce(first, identity, make_record)
        reader, reading = await fabric.add()
        evil = fabric.add_evil(lambda _: says(nonsense), known_by=reader)
        assert (await reader.fetch(KEY)).records == (record,)
        fabric.calls.clear()
        assert (await reader.fetch(KEY)).records == (record,)
        assert (reading.peer_id, evil) not in fabric.calls
        assert evil not in reader.neighbors()

    play(act)


def test_silent_nodes_cost_a_bounded_time(make_record: Make) -> None:
    async def act(fabric: Fabric) -> None:
        first, identity = await fabric.add()
        record = await announce(first, identity, make_record)
        reader, _ = await fabric.add()
        for _ in range(100):
            fabric.add_evil(says_nothing, known_by=reader)
        begun = now()
        assert (await reader.fetch(KEY)).records == (record,)
        assert now() - begun <= SEARCH_TIMEOUT_S

    play(act)


def test_nodes_that_say_there_is_nothing_do_not_hide_what_there_is(make_record: Make) -> None:
    async def act(fabric: Fabric) -> None:
        first, identity = await fabric.add()
        record = await announce(first, identity, make_record)
        reader, _ = await fabric.add()
        for _ in range(100):
            fabric.add_evil(lambda _: says(encode(Found((), ()))), known_by=reader)
        assert (await reader.fetch(KEY)).records == (record,)

    play(act)


def test_a_strangers_own_valid_record_hides_nobody(make_record: Make) -> None:
    async def act(fabric: Fabric) -> None:
        first, identity = await fabric.add()
        honest = await announce(first, identity, make_record)
        stranger, strange = await fabric.add()
        own = await announce(stranger, strange, make_record, expires_at=now() + 89)
        reader, _ = await fabric.add()
        assert set((await reader.fetch(KEY)).records) == {honest, own}

    play(act)


def test_a_node_that_is_busy_is_asked_again() -> None:
    async def act(fabric: Fabric) -> None:
        await fabric.add()
        reader, reading = await fabric.add()
        busy = fabric.add_evil(lambda _: says(encode(Busy())), known_by=reader)
        for _ in range(2):
            fabric.calls.clear()
            await reader.fetch(KEY)
            assert (reading.peer_id, busy) in fabric.calls

    play(act)


def test_stale_records_do_not_hold_up_the_loop(make_record: Make) -> None:
    async def act(fabric: Fabric) -> None:
        first, _ = await fabric.add()
        reader, _ = await fabric.add(serves=False)
        identity = new_identity()
        stale = tuple(
            seal(make_record(identity, issued_at=now() - 1000, sequence=number), identity.sign)
            for number in range(200)
        )
        turns = 0

        async def take_turns() -> None:
            nonlocal turns
            while True:
                await asyncio.sleep(0)
                turns += 1

        others = asyncio.create_task(take_turns())
        await asyncio.sleep(0)
        assert await reader._believe(KEY, stale, first._own) == []
        others.cancel()
        assert turns >= 5

    play(act)


def test_made_up_neighbors_are_survived(make_record: Make) -> None:
    async def act(fabric: Fabric) -> None:
        first, identity = await fabric.add()
        record = await announce(first, identity, make_record)
        reader, _ = await fabric.add()

        async def makes_up(_: bytes) -> bytes:
            return encode(Found(tuple(new_identity().peer_id for _ in range(MAX_NODES_TOLD)), ()))

        fabric.add_evil(makes_up, known_by=reader)
        begun = now()
        assert (await reader.fetch(KEY)).records == (record,)
        assert now() - begun <= SEARCH_TIMEOUT_S

    play(act)


def test_nobody_keeps_a_record_that_another_brings(make_record: Make) -> None:
    async def act(fabric: Fabric) -> None:
        node, _ = await fabric.add()
        victim = new_identity()
        sealed = seal(make_record(victim, issued_at=now()), victim.sign)
        stored = node.answer(encode(Store(True, KEY, sealed)), new_identity().peer_id)
        assert decode_answer(stored) == Stored(False)
        assert (await node.fetch(KEY)).records == ()

    play(act)


def test_look_up_that_nobody_answers_is_an_error(make_record: Make) -> None:
    async def act(fabric: Fabric) -> None:
        _, first = await fabric.add()
        reader, _ = await fabric.add()
        del fabric.nodes[first.peer_id]
        with pytest.raises(NetworkError):
            await reader.fetch(KEY)

    play(act)


def test_own_copy_does_not_count_as_kept_where_there_are_others(make_record: Make) -> None:
    async def act(fabric: Fabric) -> None:
        _, first = await fabric.add()
        node, identity = await fabric.add()
        del fabric.nodes[first.peer_id]
        assert not await node.store(KEY, seal(make_record(identity, issued_at=now()), identity.sign))

    play(act)


def test_node_alone_keeps_its_own(make_record: Make) -> None:
    async def act(fabric: Fabric) -> None:
        node, identity = await fabric.add()
        record = await announce(node, identity, make_record)
        assert (await node.fetch(KEY)).records == (record,)

    play(act)


def test_one_asker_has_a_budget_and_leaves_the_others_theirs() -> None:
    async def act(fabric: Fabric) -> None:
        node, _ = await fabric.add()
        greedy, modest = new_identity().peer_id, new_identity().peer_id
        request = encode(FindRecords(False, KEY))
        for _ in range(int(REQUESTS.burst)):
            node.answer(request, greedy)
        assert decode_answer(node.answer(request, greedy)) == Busy()
        assert decode_answer(node.answer(request, modest)) == Found((), ())

    play(act)


def test_records_of_one_sender_are_bounded(make_record: Make) -> None:
    async def act(fabric: Fabric) -> None:
        node, _ = await fabric.add()
        flooder, refused = new_identity(), 0
        for number in range(1000):
            digest = f"{number:064x}"
            record = make_record(flooder, issued_at=now(), model=digest, sequence=number)
            entry = (f"peers/{digest}/0", seal(record, flooder.sign))
            answer = decode_answer(node.answer(encode(Store(True, *entry)), flooder.peer_id))
            refused += answer == Busy()
        assert refused >= 700
        assert node._storage.size_bytes < 2 * len(entry[1])

    play(act)


def test_thousands_of_strangers_fill_no_routing_table() -> None:
    async def act(fabric: Fabric) -> None:
        node, _ = await fabric.add()
        for _ in range(3000):
            node.answer(encode(Hello(True)), new_identity().peer_id)
        buckets = len(node._table.buckets)
        assert len(node.neighbors()) <= 2 * MAX_NODES_TOLD * buckets
        assert len(node._probes) <= 8

    play(act)


@pytest.mark.parametrize(
    "request_bytes",
    [
        *NONSENSE.values(),
        bytes(MAX_REQUEST_BYTES + 1),
        msgspec.msgpack.encode(["nodes", True, b"short"]),
        msgspec.msgpack.encode(["records", True, "k" * 129]),
        msgspec.msgpack.encode(["store", True, []]),
        msgspec.msgpack.encode(["store", True, [["k", b""]] * 41]),
        msgspec.msgpack.encode(["store", True, [["k", bytes(2000)]]]),
    ],
)
def test_request_that_makes_no_sense_is_refused(request_bytes: bytes) -> None:
    async def act(fabric: Fabric) -> None:
        node, _ = await fabric.add()
        with pytest.raises(ProtocolError):
            node.answer(request_bytes, new_identity().peer_id)

    play(act)


@given(st.binary(max_size=200) | st.builds(msgspec.msgpack.encode, st.recursive(
    st.none() | st.integers(-(2**63), 2**64 - 1) | st.binary(max_size=50) | st.text(max_size=20)
    | st.sampled_from(["hello", "nodes", "records", "store", "found", KEY]),
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
)))  # fmt: skip
def test_any_bytes_are_answered_or_refused(raw: bytes) -> None:
    async def act(fabric: Fabric) -> None:
        node, _ = await fabric.add()
        try:
            answer = node.answer(raw, new_identity().peer_id)
        except ProtocolError:
            return
        assert isinstance(decode_answer(answer), Welcome | Found | Stored | Busy)

    play(act)


@pytest.mark.parametrize(("jump_s", "told"), [(-60.0, "60 s behind"), (60.0, "60 s ahead of"), (2.0, None)])
def test_a_clock_that_jumps_while_running_is_noticed(caplog, jump_s: float, told: str | None) -> None:
    async def act(fabric: Fabric) -> None:
        others = [(await fabric.add())[1].peer_id for _ in range(3)]
        node, _ = await fabric.add()
        for peer in others:
            assert await node.ping(peer)
        assert node.behind_s == 0.0
        node._around = replace(node._around, now=lambda: now() + jump_s)
        for peer in others:
            assert await node.ping(peer)
        assert node.behind_s == pytest.approx(-jump_s if told else 0.0, abs=0.1)
        node._around = replace(node._around, now=now)
        for peer in others:
            assert await node.ping(peer)
        assert node.behind_s == 0.0

    play(act)
    assert [told in record.message for record in caplog.records] == ([True] if told else [])


def test_one_node_that_lies_about_the_time_is_not_believed() -> None:
    async def act(fabric: Fabric) -> None:
        others = [(await fabric.add())[1].peer_id for _ in range(2)]
        node, _ = await fabric.add()
        liar = fabric.add_evil(lambda _: says(encode(Welcome(1.0))), known_by=node)
        for peer in (*others, liar):
            await node.ping(peer)
        assert node.behind_s == 0.0

    play(act)


async def tells_of_phantoms(raw: bytes, make_record: Make) -> bytes:
    phantoms = []
    for _ in range(50):
        nobody = new_identity()
        phantoms.append(seal(make_record(nobody, issued_at=now(), decode_tokens_per_s=1e9), nobody.sign))
    return encode(Found((), tuple(phantoms)))


@pytest.mark.parametrize("bootstrap", ["there", "away"])
def test_peers_that_a_single_node_tells_of_are_nobody(make_record: Make, bootstrap: str) -> None:
    async def act(fabric: Fabric) -> None:
        _, introducer = await fabric.add()
        honest = [await fabric.add() for _ in range(3)]
        records = {await announce(*each, make_record) for each in honest}
        reader, _ = await fabric.add(serves=False)
        fabric.add_evil(lambda raw: tells_of_phantoms(raw, make_record), known_by=reader)
        if bootstrap == "away":
            del fabric.nodes[introducer.peer_id]
        assert set((await reader.fetch(KEY)).records) == records

    play(act)


def test_peers_that_two_strangers_tell_of_are_hearsay(make_record: Make) -> None:
    async def act(fabric: Fabric) -> None:
        await fabric.add()  # through which all join
        honest = {await announce(*await fabric.add(), make_record) for _ in range(3)}
        reader, _ = await fabric.add(serves=False)
        phantoms = await tells_of_phantoms(b"", make_record)

        async def tell(_: bytes) -> bytes:
            return phantoms

        for _ in range(2):
            fabric.add_evil(tell, known_by=reader)
        found = await reader.fetch(KEY)
        assert len(found.hearsay) == 50
        assert {record for record in found.records if record.peer not in found.hearsay} == honest

    play(act)
