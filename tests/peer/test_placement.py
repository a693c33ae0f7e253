"""A new peer takes the blocks that need it most, and no more than fit."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swarm.errors import DoesNotFit
from swarm.peer.placement import blocks_that_fit, check_fits, choose_span
from swarm.values import Span


@pytest.mark.parametrize(
    ("coverage", "length", "chosen"),
    [
        ([0] * 10, 4, "0:4"),
        ([1, 1, 1, 1, 0, 0, 0, 0, 0, 0], 4, "4:8"),
        ([2, 2, 1, 1, 2, 2], 2, "2:4"),
        ([1, 0, 1, 1, 1, 1], 2, "0:2"),
        ([3, 3, 3], 5, "0:3"),
    ],
)
def test_the_worst_covered_window_wins(coverage, length, chosen):
    assert str(choose_span(coverage, length)) == chosen


@given(st.lists(st.integers(0, 3), min_size=1, max_size=40), st.integers(1, 40))
def test_a_block_that_nobody_hosts_is_in_the_window_whenever_there_is_one(coverage, length):
    window = choose_span(coverage, length)
    assert len(window) == min(length, len(coverage))
    assert min(coverage[window.start : window.end]) == min(coverage)


def test_peers_that_come_one_by_one_cover_a_model():
    coverage = [0] * 30
    for _ in range(3):
        for block in choose_span(coverage, 10):
            coverage[block] += 1
    assert coverage == [1] * 30


def test_a_span_that_does_not_fit_says_how_many_blocks_do():
    fitting = blocks_that_fit(1000, 90, 10)
    assert fitting == 10
    check_fits(Span(5, 15), fitting, 1000, 1000)
    with pytest.raises(DoesNotFit, match=r"11 blocks \(5:16\).*1\.1 KiB.*room for 10.*--blocks 5:15"):
        check_fits(Span(5, 16), fitting, 1000, 1100)
    with pytest.raises(DoesNotFit, match="not even one block does"):
        check_fits(Span(0, 1), 0, 10, 100)
