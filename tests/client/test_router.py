"""The router takes the cheapest chain that covers a span, from records alone."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swarm.client.router import RouteHints, plan
from swarm.errors import NoRoute
from swarm.session.plan import Numerics
from swarm.values import ModelDigest, PeerId, Span
from swarm.wire.records import PeerRecord, Snapshot


def record(peer: str, start: int, end: int, **changes) -> PeerRecord:
    fields = {
        "peer": peer, "model": "0" * 64, "issued_at": 0.0, "expires_at": 30.0, "sequence": 1, "start": start,
        "end": end, "state": "online", "dtype": "fp32", "quantization": "none", "decode_tokens_per_s": 100.0,
        "prefill_tokens_per_s": 1000.0, "free_tokens": 10_000, "queue_depth": 0, "wire_version": 1,
        "software": "0",
    }  # fmt: skip
    return PeerRecord(**(fields | changes))


def snapshot(*records: PeerRecord, num_blocks: int = 30) -> Snapshot:
    return Snapshot(ModelDigest("0" * 64), num_blocks, records, 0.0)


def spans(route) -> list[tuple[str, str]]:
    return [(hop.peer, str(hop.span)) for hop in route]


def test_a_chain_covers_the_span_in_order():
    route = plan(snapshot(record("b", 10, 30), record("a", 0, 10)), Span(0, 30), RouteHints())
    assert spans(route) == [("a", "0:10"), ("b", "10:30")]


def test_one_peer_with_everything_beats_two_with_halves():
    route = plan(
        snapshot(record("a", 0, 15), record("b", 15, 30), record("c", 0, 30)), Span(0, 30), RouteHints()
    )
    assert spans(route) == [("c", "0:30")]


def test_overlapping_spans_are_cut_where_it_is_cheapest():
    slow = record("a", 0, 20, decode_tokens_per_s=10.0)
    fast = record("b", 10, 30, decode_tokens_per_s=1000.0)
    assert spans(plan(snapshot(slow, fast), Span(0, 30), RouteHints())) == [("a", "0:10"), ("b", "10:30")]


def test_a_nearer_peer_wins_over_an_equal_one():
    peers = snapshot(record("a", 0, 30), record("b", 0, 30))
    hints = RouteHints({PeerId("a"): 80.0, PeerId("b"): 5.0})
    assert spans(plan(peers, Span(0, 30), hints)) == [("b", "0:30")]


def test_a_queue_makes_a_peer_expensive():
    peers = snapshot(record("a", 0, 30, queue_depth=8), record("b", 0, 30, decode_tokens_per_s=50.0))
    assert spans(plan(peers, Span(0, 30), RouteHints())) == [("b", "0:30")]


def test_excluded_peers_draining_peers_and_other_wire_versions_are_passed_over():
    peers = snapshot(
        record("a", 0, 30),
        record("b", 0, 30, state="draining"),
        record("c", 0, 30, wire_version=2),
        record("d", 0, 30, decode_tokens_per_s=1.0),
    )
    route = plan(peers, Span(0, 30), RouteHints(excluded=frozenset({PeerId("a")})))
    assert spans(route) == [("d", "0:30")]


def test_a_chain_of_one_dtype_is_preferred_to_a_faster_mixed_one():
    peers = snapshot(
        record("a", 0, 15),
        record("b", 15, 30, decode_tokens_per_s=1.0),
        record("c", 15, 30, dtype="bf16", decode_tokens_per_s=1000.0),
    )
    assert spans(plan(peers, Span(0, 30), RouteHints())) == [("a", "0:15"), ("b", "15:30")]


def test_peers_that_give_the_same_bits_are_taken_before_faster_ones():
    peers = snapshot(
        record("a", 0, 30, dtype="bf16", kernels="one", decode_tokens_per_s=1.0),
        record("b", 0, 30, dtype="bf16", kernels="two", decode_tokens_per_s=1000.0),
        record("c", 0, 10, dtype="bf16", kernels="three"),
    )
    wanted = {"one": "a", "two": "b", "three": "b", "": "b"}
    for kernels, peer in wanted.items():
        route = plan(peers, Span(0, 30), RouteHints(kernels=kernels))
        assert [(hop.peer, hop.kernels) for hop in route] == [(peer, "one" if peer == "a" else "two")]


def test_a_mixed_chain_is_taken_when_there_is_no_other():
    peers = snapshot(record("a", 0, 15), record("c", 15, 30, dtype="bf16"))
    assert spans(plan(peers, Span(0, 30), RouteHints())) == [("a", "0:15"), ("c", "15:30")]


def test_asked_for_numerics_are_never_mixed():
    peers = snapshot(record("a", 0, 15), record("c", 15, 30, dtype="bf16"))
    with pytest.raises(NoRoute):
        plan(peers, Span(0, 30), RouteHints(numerics=Numerics("fp32", "none")))


def test_a_hole_is_named_with_the_command_that_fills_it():
    peers = snapshot(record("a", 0, 10), record("b", 20, 28))
    with pytest.raises(NoRoute, match=r"blocks 10:20, 28:30.*--blocks 10:20"):
        plan(peers, Span(0, 30), RouteHints())


def test_part_of_the_model_is_covered_by_parts_of_peers():
    route = plan(snapshot(record("a", 0, 20), record("b", 8, 30)), Span(5, 25), RouteHints())
    assert route[0].span.start == 5
    assert route[-1].span.end == 25


@given(st.lists(st.tuples(st.integers(0, 11), st.integers(1, 12)), min_size=1, max_size=12))
def test_a_route_is_whole_or_the_error_names_exactly_the_missing_blocks(ranges):
    records = [record(f"p{n}", start, max(start + 1, end)) for n, (start, end) in enumerate(ranges)]
    hosted = {block for entry in records for block in entry.span}
    try:
        route = plan(snapshot(*records, num_blocks=12), Span(0, 12), RouteHints())
    except NoRoute:
        assert hosted < set(range(12))
        return
    assert [block for hop in route for block in hop.span] == list(range(12))
    by_id = {entry.peer: entry for entry in records}
    assert all(by_id[hop.peer].span.covers(hop.span) for hop in route)
    assert all(first.peer != second.peer for first, second in pairwise(route))


def test_a_number_format_that_nobody_knows_is_passed_over():
    made_up = [record(f"x{number}", 0, 30, dtype=f"made-up{number}") for number in range(100)]
    assert spans(plan(snapshot(*made_up, record("a", 0, 30)), Span(0, 30), RouteHints())) == [("a", "0:30")]
    with pytest.raises(NoRoute):
        plan(snapshot(*made_up), Span(0, 30), RouteHints())


def test_made_up_numerics_do_not_crowd_out_those_that_many_have():
    made_up = [record(f"x{number}", 0, 30, quantization=f"a{number}") for number in range(100)]
    honest = [record("a", 0, 15, quantization="z"), record("b", 15, 30, quantization="z")]
    route = plan(snapshot(*made_up, *honest), Span(0, 30), RouteHints(excluded=frozenset(
        PeerId(f"x{number}") for number in range(100)
    )))  # fmt: skip
    assert spans(route) == [("a", "0:15"), ("b", "15:30")]
    mixed = plan(snapshot(*made_up[:50], *honest), Span(0, 30), RouteHints())
    assert len(mixed) == 1
