"""Every peer gets its turn, with its whole span, and chains are whole."""

from hypothesis import given
from hypothesis import strategies as st
from status_values import record, snapshot

from swarm.status.schedule import next_canary

NONE = frozenset()


def spans(turn):
    return [(hop.peer, str(hop.span)) for hop in turn.chain]


def test_the_peer_that_waited_longest_comes_next_with_its_whole_span():
    peers = snapshot(record("a", 0, 3), record("b", 0, 4), record("c", 3, 6), record("d", 2, 6))
    turn = next_canary(peers, {"a": 5.0, "b": 3.0, "c": 4.0, "d": 1.0}, NONE)
    assert spans(turn) == [("b", "0:2"), ("d", "2:6")]
    assert turn.exercised == {"d"}


def test_failing_peers_serve_in_the_chains_of_others_only_without_an_alternative():
    peers = snapshot(record("a", 0, 3), record("b", 3, 6), record("c", 3, 6))
    waits_longest = {"a": 1.0, "b": 2.0, "c": 3.0}
    assert spans(next_canary(peers, waits_longest, frozenset({"b"}))) == [("a", "0:3"), ("c", "3:6")]
    only = snapshot(record("a", 0, 3), record("b", 3, 6))
    assert spans(next_canary(only, waits_longest, frozenset({"b"}))) == [("a", "0:3"), ("b", "3:6")]


def test_a_hole_leaves_nothing_to_run():
    assert next_canary(snapshot(record("a", 0, 3), record("b", 4, 6)), {}, NONE) is None


def test_peers_that_are_not_online_or_speak_another_wire_version_are_passed_over():
    peers = snapshot(
        record("a", 0, 6, state="draining"), record("b", 0, 6, wire_version=2), record("c", 0, 6)
    )
    assert spans(next_canary(peers, {}, NONE)) == [("c", "0:6")]


@given(st.lists(st.tuples(st.integers(0, 7), st.integers(1, 8)), min_size=1, max_size=20))
def test_over_time_every_peer_is_exercised_whole_or_no_chain_exists(ranges):
    records = [record(f"p{n:02}", start, max(start + 1, end)) for n, (start, end) in enumerate(ranges)]
    peers = snapshot(*records, num_blocks=8)
    exercised: dict[str, float] = {}
    for turn_number in range(1, len(records) + 1):
        turn = next_canary(peers, exercised, NONE)
        if turn is None:
            assert min(peers.coverage()) == 0
            return
        assert [block for hop in turn.chain for block in hop.span] == list(range(8))
        by_peer = {entry.peer: entry for entry in records}
        assert all(by_peer[hop.peer].span.covers(hop.span) for hop in turn.chain)
        exercised |= dict.fromkeys(turn.exercised, float(turn_number))
    assert set(exercised) == {entry.peer for entry in records}
