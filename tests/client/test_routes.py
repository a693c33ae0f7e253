"""What a client remembers of peers: snapshots grow old, losses are held against a peer for a while."""

import asyncio
from itertools import pairwise

import pytest
from msgspec import structs

from swarm.client.routes import (
    FETCH_TIMEOUT_S,
    FIRST_BAN_S,
    FIRST_RETRY_S,
    LONGEST_RETRY_S,
    MOST_KNOWN,
    SNAPSHOT_LIFE_S,
    Routes,
)
from swarm.errors import NetworkError, NoRoute, PeerUnreachable
from swarm.session.hop import ASSUMED_BYTES_PER_S
from swarm.session.plan import Numerics
from swarm.testing.clock import run_virtual
from swarm.values import ModelDigest, PeerId, Span
from swarm.wire.records import PeerRecord, Snapshot

WHOLE = Span(0, 6)
A, B = PeerId("a"), PeerId("b")


def record(peer: str, start: int = 0, end: int = 6, **changes) -> PeerRecord:
    fields = {
        "peer": peer, "model": "0" * 64, "issued_at": 0.0, "expires_at": 30.0, "sequence": 1, "start": start,
        "end": end, "state": "online", "dtype": "fp32", "quantization": "none", "decode_tokens_per_s": 100.0,
        "prefill_tokens_per_s": 1000.0, "free_tokens": 10_000, "queue_depth": 0, "wire_version": 1,
        "software": "0",
    }  # fmt: skip
    return PeerRecord(**(fields | changes))


class Book:
    """A directory that counts how often it is asked."""

    def __init__(self, *records: PeerRecord) -> None:
        self.records = records
        self.asked = 0
        self.silent = False
        self.hearsay = frozenset()
        self.renewing = {record.peer for record in records}  # whose records are always new

    async def fetch(self) -> Snapshot:
        self.asked += 1
        if self.silent:
            await asyncio.sleep(3600)
        now = asyncio.get_running_loop().time()
        records = [
            structs.replace(each, issued_at=now) if each.peer in self.renewing else each
            for each in self.records
        ]
        return Snapshot(ModelDigest("0" * 64), 6, tuple(records), now, self.hearsay)


def with_routes(book: Book, scene):
    async def main():
        return await scene(Routes(book.fetch))

    return run_virtual(main())


async def peers(routes: Routes, **options) -> list[str]:
    return [hop.peer for hop in await routes.plan(WHOLE, **options)]


def test_a_snapshot_serves_for_a_while_and_is_then_fetched_anew():
    book = Book(record("a"))

    async def scene(routes):
        await routes.plan(WHOLE)
        await asyncio.sleep(SNAPSHOT_LIFE_S - 1)
        await routes.plan(WHOLE)
        before = book.asked
        await asyncio.sleep(2)
        await routes.plan(WHOLE)
        return before, book.asked

    assert with_routes(book, scene) == (1, 2)


def test_a_snapshot_without_a_chain_is_fetched_anew_at_once():
    book = Book()

    async def scene(routes):
        with pytest.raises(NoRoute):
            await routes.plan(WHOLE)
        book.records = (record("a"),)
        return await peers(routes)

    assert with_routes(book, scene) == ["a"]


def test_a_directory_that_falls_silent_leaves_the_old_snapshot_in_use():
    book = Book(record("a"))

    async def scene(routes):
        await routes.plan(WHOLE)
        book.silent = True
        await asyncio.sleep(SNAPSHOT_LIFE_S + 1)
        started_at = asyncio.get_running_loop().time()
        return await peers(routes), asyncio.get_running_loop().time() - started_at

    assert with_routes(book, scene) == (["a"], FETCH_TIMEOUT_S)


def test_a_directory_that_never_answered_is_a_network_error_that_says_what_to_check():
    book = Book()
    book.silent = True

    async def scene(routes):
        with pytest.raises(NetworkError, match=r"The directory does not answer\. Check the --join address"):
            await routes.plan(WHOLE)

    with_routes(book, scene)


def test_a_lost_peer_is_passed_over_for_a_while_and_longer_after_each_loss():
    async def scene(routes):
        await routes.refresh()
        routes.lost(A, "broken", "it is gone")
        taken = [await peers(routes)]
        for lost in (True, False):
            await asyncio.sleep(FIRST_BAN_S + 0.1)
            await routes.refresh()
            taken.append(await peers(routes))
            if lost:
                routes.lost(A, "broken", "it is gone")
        await asyncio.sleep(FIRST_BAN_S)
        await routes.refresh()
        taken.append(await peers(routes))
        return taken

    faster = record("a", decode_tokens_per_s=500.0)
    assert with_routes(Book(faster, record("b")), scene) == [["b"], ["a"], ["b"], ["a"]]


def test_a_lost_peer_is_passed_over_until_it_gives_a_sign_of_life():
    book = Book(record("a", decode_tokens_per_s=500.0), record("b"))

    async def scene(routes):
        await routes.refresh()
        await asyncio.sleep(1.0)
        routes.lost(A, "broken", "it is gone")
        book.renewing = {"b"}
        taken = []
        for renewing in ({"b"}, {"a", "b"}):
            await asyncio.sleep(3 * FIRST_BAN_S)
            book.renewing = renewing
            await routes.refresh()
            taken.append(await peers(routes))
        return taken

    assert with_routes(book, scene) == [["b"], ["a"]]


@pytest.mark.parametrize("silent", [False, True])
def test_all_that_ask_at_the_same_time_share_one_look_up(silent):
    book = Book(record("a"))
    book.silent = silent

    async def scene(routes):
        asking = [asyncio.create_task(routes.refresh()) for _ in range(16)]
        await asyncio.sleep(0)
        asking[0].cancel()
        return await asyncio.gather(*asking, return_exceptions=True)

    _, *answers = with_routes(book, scene)
    assert book.asked == 1
    assert {type(answer) for answer in answers} == {NetworkError if silent else Snapshot}


def test_a_lost_peer_that_is_the_only_one_is_taken_again_but_an_excluded_one_never():
    async def scene(routes):
        await routes.refresh()
        routes.lost(A, "broken", "it is gone")
        await asyncio.sleep(FIRST_RETRY_S)
        with pytest.raises(NoRoute):
            await routes.plan(WHOLE, excluded=frozenset({A}))
        return await peers(routes)

    assert with_routes(Book(record("a")), scene) == ["a"]


def test_lost_peers_that_are_all_there_is_take_turns_and_are_asked_ever_less_often():
    async def scene(routes):
        await routes.refresh()
        routes.lost(A, "broken", "it is gone")
        routes.lost(B, "broken", "it is gone")
        asked = []
        while asyncio.get_running_loop().time() < 20:
            try:
                [peer] = await peers(routes)
            except NoRoute:
                pass
            else:
                asked.append((peer, asyncio.get_running_loop().time()))
                routes.lost(PeerId(peer), "broken", "it is gone")
            await asyncio.sleep(0.05)
        return asked

    asked = with_routes(Book(record("a"), record("b")), scene)
    for name in "ab":
        times = [at for peer, at in asked if peer == name]
        pauses = [round(later - earlier, 1) for earlier, later in pairwise(times)]
        assert times[0] < 0.25
        assert pauses[:4] == sorted(pauses[:4])
        assert pauses[-1] == LONGEST_RETRY_S


def test_a_lost_peer_is_not_taken_beside_one_that_answers_because_another_span_has_nobody():
    async def scene(routes):
        await routes.refresh()
        routes.lost(A, "broken", "it is gone")
        routes.lost(PeerId("fast"), "broken", "it is gone")
        await asyncio.sleep(FIRST_RETRY_S)
        return await peers(routes)

    book = Book(record("a", 0, 3), record("b", 3, 6), record("fast", 3, 6, decode_tokens_per_s=500.0))
    assert with_routes(book, scene) == ["a", "b"]


def test_the_error_tells_why_the_missing_blocks_are_missing():
    async def scene(routes):
        await routes.refresh()
        routes.lost(A, "broken", "Peer a was lost: the stream broke")
        return str(routes.explain(WHOLE, NoRoute("nobody")))

    told = with_routes(Book(record("a", 0, 3), record("b", 3, 6)), scene)
    assert told.startswith("No live peer hosts blocks 0:3 (peer a was lost: the stream broke).")


def test_a_peer_is_forgiven_when_it_serves_again_not_when_it_only_takes_a_session():
    async def scene(routes):
        await routes.refresh()
        routes.lost(A, "broken", "it is gone")
        routes.heard(A, 0.001)
        taken = await peers(routes)
        routes.served(A, 1e6)
        return taken + await peers(routes)

    assert with_routes(Book(record("a", decode_tokens_per_s=500.0), record("b")), scene) == ["b", "a"]


def test_the_rate_of_a_link_is_what_was_measured_or_what_a_loss_makes_likely():
    async def scene(routes):
        rates = [routes.bytes_per_s(A)]
        routes.served(A, 1e6)
        rates.append(routes.bytes_per_s(A))
        routes.lost(A, "broken", "it was silent", 5e5)
        return [*rates, routes.bytes_per_s(A)]

    assert with_routes(Book(record("a")), scene) == [ASSUMED_BYTES_PER_S, 1e6, 5e5]


def test_measured_round_trips_decide_between_equal_peers():
    async def scene(routes):
        await routes.refresh()
        routes.heard(A, 0.2)
        routes.heard(B, 0.02)
        return await peers(routes)

    assert with_routes(Book(record("a"), record("b")), scene) == ["b"]


def test_a_speed_that_was_seen_overrules_the_record_for_a_minute():
    async def scene(routes):
        await routes.refresh()
        routes.heard(A, 0.001)
        routes.heard(B, 0.001)
        routes.observed(A, WHOLE, 1.0)
        slow = await peers(routes)
        await asyncio.sleep(61)
        return slow, await peers(routes)

    book = Book(record("a", decode_tokens_per_s=500.0), record("b"))
    assert with_routes(book, scene) == (["b"], ["a"])


def test_the_error_names_blocks_also_when_the_peer_that_failed_is_out_of_the_directory():
    async def scene(routes):
        await routes.refresh()
        return routes.explain(WHOLE, PeerUnreachable("Peer c did not answer"))

    error = with_routes(Book(record("a", 0, 3)), scene)
    assert isinstance(error, NoRoute)
    assert error.what == "No live peer hosts blocks 3:6 (peer c did not answer)"


def test_peers_of_other_numerics_are_named_when_they_are_all_there_is():
    async def scene(routes):
        with pytest.raises(NoRoute, match=r"blocks 0:6 in fp32 \(others compute in bf16\)"):
            await routes.plan(WHOLE, Numerics("fp32", "none"))

    with_routes(Book(record("a", dtype="bf16")), scene)


def test_peers_of_another_wire_version_are_named_when_they_are_all_there_is():
    async def scene(routes):
        with pytest.raises(
            NoRoute, match=r"blocks 0:6 \(others speak wire version 2, this program 1: update"
        ):
            await routes.plan(WHOLE)

    with_routes(Book(record("a", wire_version=2)), scene)


@pytest.mark.parametrize(
    ("kinds", "code", "told"),
    [
        (("full", "full"), "overloaded", "have no room for another session"),
        (("full", "broken"), "no_route", "No live peer hosts blocks 0:6"),
        (("unreached", "unreached"), "no_route", "cannot be reached from here"),
    ],
)
def test_an_error_tells_whether_peers_are_full_away_or_out_of_reach(kinds, code, told):
    async def scene(routes):
        await routes.refresh()
        for peer, kind in zip((A, B), kinds, strict=True):
            routes.lost(peer, kind, "It did not work.")
        return routes.explain(WHOLE, NoRoute("nobody"))

    error = with_routes(Book(record("a"), record("b")), scene)
    assert error.code == code
    assert told in str(error)


def test_a_peer_that_has_served_and_is_gone_is_not_told_as_out_of_reach():
    async def scene(routes):
        await routes.refresh()
        routes.served(A, 1e6)
        routes.lost(A, "unreached", "It is not there.")
        return routes.explain(WHOLE, NoRoute("nobody"))

    assert "No live peer hosts blocks 0:6 (it is not there)" in str(with_routes(Book(record("a")), scene))


def test_peers_that_have_served_are_not_left_for_thousands_that_only_claim():
    phantoms = [record(f"x{number}", decode_tokens_per_s=1e9) for number in range(2000)]
    book = Book(record("a", 0, 3), record("b", 3, 6), *phantoms)

    async def scene(routes):
        await routes.refresh()
        for peer in (A, B):
            routes.served(peer, 1e6)
        plans = 0
        while set(await peers(routes)) != {"a", "b"}:
            plans += 1
            for hop in await routes.plan(WHOLE):
                routes.lost(hop.peer, "unreached", "It is not there.")
        return plans

    assert with_routes(book, scene) <= 1


def test_a_client_without_history_asks_those_first_that_trusted_nodes_tell_of():
    phantoms = [record(f"x{number}", decode_tokens_per_s=1e9) for number in range(300)]
    book = Book(record("a", 0, 3), record("b", 3, 6), *phantoms)
    book.hearsay = frozenset(phantom.peer for phantom in phantoms)

    async def scene(routes):
        first = await peers(routes)
        routes.served(A, 1e6)
        return first, await peers(routes)

    first, later = with_routes(book, scene)
    assert first == ["a", "b"]
    assert later != ["a", "b"]  # others have their turn while they keep their word


def test_blocks_of_which_only_hearsay_tells_are_asked_of_it():
    book = Book(record("a", 0, 3), record("x", 3, 6))
    book.hearsay = frozenset("x")
    assert with_routes(book, peers) == ["a", "x"]


def test_a_newcomer_is_tried_as_long_as_newcomers_keep_their_word():
    book = Book(record("a"), record("b", decode_tokens_per_s=900.0))

    async def scene(routes):
        await routes.refresh()
        routes.served(A, 1e6)
        return await peers(routes)

    assert with_routes(book, scene) == ["b"]


def test_of_peers_that_are_gone_only_so_much_is_remembered():
    async def scene(routes):
        await routes.refresh()
        for number in range(3 * MOST_KNOWN):
            routes.lost(PeerId(f"x{number}"), "unreached", "It is not there.")
            routes.heard(PeerId(f"x{number}"), 0.01)
        await routes.refresh()
        return len(routes._bans), len(routes._rtt_ms)

    assert with_routes(Book(record("a")), scene) == (MOST_KNOWN, MOST_KNOWN)
