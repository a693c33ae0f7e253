"""Where a peer helps most, when it moves, and that it never leaves a block behind without a peer."""

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from swarm.errors import DoesNotFit
from swarm.peer.placement.choice import Ability, best_window, choose, role_of, worst_window
from swarm.peer.placement.cover import Claims, Cover, going_odds
from swarm.peer.placement.fit import blocks_that_fit, check_fits
from swarm.peer.placement.moves import PresentPlace, better_place, may_go, next_look_s
from swarm.values import PeerId, Span

HOUR_S = 3600.0


def claims_of(
    spans: Sequence[tuple[int, int]],
    rates: float | Sequence[float] = 10.0,
    state: str = "online",
    uptime_s: float = HOUR_S,
) -> Claims:
    """Peers `p000`, `p001`, ... with these spans."""
    count = len(spans)
    joining = np.full(count, state != "online")
    return Claims(
        [f"p{index:03}" for index in range(count)],
        np.array([start for start, _ in spans], dtype=int),
        np.array([end for _, end in spans], dtype=int),
        np.broadcast_to(np.array(rates, dtype=float), count).copy(),
        going_odds(np.full(count, uptime_s), np.ones(count), joining),
        ~joining,
        np.full(count, state == "choosing"),
    )


def able(fitting: int, name: str = "x", blocks_per_s: float | None = None) -> Ability:
    return Ability(PeerId(name), fitting, blocks_per_s)


def chosen(spans: Sequence[tuple[int, int]], blocks: int, fitting: int, **settings: object) -> str:
    return str(choose(claims_of(spans), blocks, able(fitting, **settings)).span)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("spans", "blocks", "fitting", "taken"),
    [
        ([(0, 4)], 8, 4, "4:8"),
        ([(0, 2), (0, 2), (2, 4), (4, 6), (4, 6)], 6, 2, "2:4"),
        ([(0, 1), (3, 6)], 6, 2, "1:3"),
        ([(0, 3)], 3, 5, "0:3"),
    ],
)
def test_the_blocks_that_are_covered_worst_are_taken(spans, blocks, fitting, taken):
    assert chosen(spans, blocks, fitting) == taken


@settings(deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 19), st.integers(1, 8)), max_size=12),
    st.integers(1, 20),
)
def test_a_block_that_nobody_hosts_is_taken_whenever_there_is_one(peers, fitting):
    spans = [(start, min(20, start + length)) for start, length in peers]
    cover = Cover.of(claims_of(spans), 20)
    taken = choose(claims_of(spans), 20, able(fitting)).span
    holes = [block for block in range(20) if cover.claimed[block] == 0]
    assert len(taken) <= fitting
    assert not holes or any(block in holes for block in taken)


def test_peers_that_come_one_by_one_cover_a_model_without_a_gap():
    spans: list[tuple[int, int]] = []
    for index in range(3):
        taken = choose(claims_of(spans), 30, able(10, f"x{index}")).span
        spans.append((taken.start, taken.end))
    assert sorted(spans) == [(0, 10), (10, 20), (20, 30)]


def test_two_hundred_that_come_at_once_spread_over_all_blocks():
    spans = [(0, 7)] * 200  # as they announce before they have heard of each other
    herd = claims_of(spans, rates=0.0, state="choosing", uptime_s=1.0)
    hosted = np.zeros(30, dtype=int)
    for peer in herd.peers:
        taken = choose(herd, 30, able(7, peer)).span
        hosted[taken.start : taken.end] += 1
    assert hosted.min() >= 0.8 * hosted.mean()


def test_peers_that_have_not_heard_of_each_other_choose_unlike_blocks():
    spans = [(start, start + 4) for start in range(0, 40, 4)]
    taken = {chosen(spans, 40, 4, name=f"x{index}") for index in range(20)}
    assert len(taken) > 3


def test_blocks_of_peers_that_go_soon_get_the_next_replica():
    young = claims_of([(0, 4), (4, 8)], uptime_s=HOUR_S)
    young.going_odds[1] = 0.3
    assert str(choose(young, 8, able(4)).span) == "4:8"


def test_the_block_that_bears_least_gets_the_next_peer_once_all_are_safe():
    safe = [(0, 4)] * 8 + [(4, 8)] * 8
    rates = [50.0] * 8 + [10.0] * 8
    assert str(choose(claims_of(safe, rates), 8, able(4, blocks_per_s=100.0)).span) == "4:8"


def test_unequal_machines_take_unequal_spans():
    spans = [(0, 8)] * 2
    lengths = [len(choose(claims_of(spans), 32, able(fitting)).span) for fitting in (2, 8, 24)]
    assert lengths == [2, 8, 24]


def test_a_peer_that_only_slows_chains_down_is_told_that_it_is_a_spare_and_why():
    claims = claims_of([(0, 8), (0, 8)], rates=50.0)
    assert role_of(claims, able(4, blocks_per_s=300.0), Span(0, 4)) == ("serve", "")
    role, why = role_of(claims, able(4, blocks_per_s=20.0), Span(0, 4))
    assert role == "spare"
    assert "2 others run blocks 0:4 in 10 ms a token, this peer takes 200 ms" in why


def place(spans: Sequence[tuple[int, int]], own: int, blocks: int, **settings: float) -> str | None:
    """Where peer `own` of these moves to."""
    claims, span = claims_of(spans), Span(*spans[own])
    standing = PresentPlace(span, settings.get("uptime_s", HOUR_S), settings.get("load_s", 10.0))
    better = better_place(claims, blocks, able(len(span), f"p{own:03}", 100.0), standing)
    return str(better.span) if better else None


def test_a_peer_moves_to_blocks_that_nobody_hosts():
    assert place([(0, 3), (0, 3)], 1, 6) == "3:6"


def test_a_peer_stays_when_a_block_of_it_has_no_other_peer():
    assert place([(0, 3), (0, 2)], 0, 6) is None


def test_a_peer_whose_others_only_load_yet_stays():
    claims = claims_of([(0, 3), (0, 3)])
    claims.online[0] = False
    assert better_place(claims, 6, able(3, "p001"), PresentPlace(Span(0, 3), HOUR_S, 10.0)) is None


def test_a_small_gain_moves_nobody():
    assert place([(0, 3), (0, 3), (0, 3), (3, 6), (3, 6)], 0, 6) is None


def test_of_two_that_rely_on_each_other_the_one_that_looks_later_stays():
    gone = claims_of([(0, 3), (3, 6)])
    gone.online[1] = False  # the other has said that it goes to 3:6
    assert not may_go(gone, 6, PeerId("p000"), Span(0, 3))
    assert may_go(claims_of([(0, 3), (0, 3)]), 6, PeerId("p000"), Span(0, 3))


@settings(deadline=None, max_examples=50)
@given(st.lists(st.tuples(st.integers(0, 11), st.integers(1, 6)), min_size=1, max_size=12))
def test_a_swarm_that_nobody_joins_or_leaves_comes_to_rest(peers):
    spans = [(start, min(12, start + length)) for start, length in peers]
    moves = 0
    for turn in range(20 * len(spans)):
        own = turn % len(spans)
        claims = claims_of(spans)
        fitting = peers[own][1]
        standing = PresentPlace(Span(*spans[own]), HOUR_S, 10.0)
        better = better_place(claims, 12, able(fitting, f"p{own:03}", 100.0), standing)
        if better is not None:
            covered = Cover.of(claims, 12).online > 0
            spans[own] = (better.span.start, better.span.end)
            assert (Cover.of(claims_of(spans), 12).online > 0)[covered].all()
            moves += 1
    assert moves <= 2 * len(spans)


def test_the_more_peers_there_are_the_rarer_each_looks():
    usual = [
        np.mean([next_look_s(peers, PeerId(f"p{i}"), 0) for i in range(200)]) for peers in (5, 100, 5000)
    ]
    assert usual == pytest.approx([10, 100, 600], rel=0.1)


@given(st.lists(st.integers(0, 3), min_size=1, max_size=40), st.integers(1, 40))
def test_the_worst_window_has_the_worst_block(coverage, length):
    window = worst_window(coverage, length)
    assert len(window) == min(length, len(coverage))
    assert min(coverage[window.start : window.end]) == min(coverage)


def test_a_hole_that_a_window_of_less_than_all_fits_is_not_missed():
    assert best_window(Cover.of(claims_of([(0, 5), (6, 12)]), 12), able(2), 10.0).span.start in (4, 5)


def test_a_span_that_does_not_fit_says_how_many_blocks_do():
    fitting = blocks_that_fit(1000, 90, 10)
    assert fitting == 10
    check_fits(Span(5, 15), fitting, 1000, 1000)
    with pytest.raises(DoesNotFit, match=r"11 blocks \(5:16\).*1\.1 KiB.*room for 10.*--blocks 5:15"):
        check_fits(Span(5, 16), fitting, 1000, 1100)
    with pytest.raises(DoesNotFit, match="not even one block does"):
        check_fits(Span(0, 1), 0, 10, 100)
