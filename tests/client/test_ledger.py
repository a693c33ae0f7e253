"""A ledger gives back every row it was given, however it grew."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from swarm.client.ledger import CHUNK_TOKENS, Ledger


def rows(start: int, end: int) -> torch.Tensor:
    return torch.arange(start, end, dtype=torch.float32).unsqueeze(1).expand(-1, 4)


@given(st.lists(st.integers(1, 90), max_size=12))
def test_rows_come_back_as_they_went_in(lengths):
    ledger = Ledger(4, torch.float32)
    for length in lengths:
        ledger.append(rows(ledger.end, ledger.end + length))
    assert ledger.end == sum(lengths)
    assert torch.equal(ledger.rows(0, ledger.end), rows(0, ledger.end))


def exact_ends(ledger: Ledger) -> list[int]:
    """Where the steps of an exact replay end."""
    ends = [ledger.start]
    while ends[-1] < ledger.end:
        ends.append(ledger.next_end(ends[-1], exact=True))
    return ends[1:]


def test_truncating_forgets_rows_and_the_steps_that_held_them():
    ledger = Ledger(4, torch.float32)
    ledger.append(rows(0, 10))
    for end in (4, 8):
        ledger.mark_step(end)
    ledger.truncate(6)
    ledger.append(rows(6, 9))
    assert ledger.end == 9
    assert exact_ends(ledger) == [4, 9]
    assert [ledger.knows_steps_since(position) for position in (0, 5, 6)] == [False, False, True]


def test_rows_that_were_never_sent_belong_to_no_step():
    ledger = Ledger(4, torch.float32)
    ledger.append(rows(0, 10))
    ledger.mark_step(4)
    ledger.truncate(6)
    ledger.append(rows(6, 9))
    assert exact_ends(ledger) == [4, 9]
    assert ledger.knows_steps_since(0)


def test_steps_are_repeated_as_they_were_first_sent_or_in_chunks():
    ledger = Ledger(4, torch.float32)
    ledger.append(rows(0, 200))
    for end in (5, 6, 7, 7, 6, 107):
        ledger.mark_step(end)
    assert exact_ends(ledger) == [5, 6, 7, 107, 200]
    assert ledger.next_end(4, exact=True) == 5
    assert [ledger.next_end(position, exact=False) for position in (0, 100)] == [CHUNK_TOKENS, 200]


def test_the_step_of_a_row_has_a_beginning():
    ledger = Ledger(4, torch.float32, start=10)
    ledger.append(rows(10, 20))
    for end in (14, 15):
        ledger.mark_step(end)
    assert [ledger.step_start(position) for position in (10, 13, 14, 15, 19)] == [10, 10, 14, 15, 15]


def test_a_ledger_that_lost_its_beginning_keeps_positions():
    ledger = Ledger(4, torch.float32, start=100)
    ledger.append(rows(100, 103))
    assert (ledger.start, ledger.end) == (100, 103)
    assert torch.equal(ledger.rows(101, 103), rows(101, 103))


def test_a_ledger_can_be_cut_before_its_beginning_and_goes_on_from_there():
    ledger = Ledger(4, torch.float32, start=100)
    ledger.append(rows(100, 103))
    ledger.truncate(40)
    assert (ledger.start, ledger.end) == (40, 40)
    ledger.append(rows(40, 42))
    assert torch.equal(ledger.rows(40, 42), rows(40, 42))


@pytest.mark.parametrize(("start", "end"), [(99, 101), (101, 104), (102, 101)])
def test_rows_that_are_not_there_are_refused(start, end):
    ledger = Ledger(4, torch.float32, start=100)
    ledger.append(rows(100, 103))
    with pytest.raises(ValueError, match="are not in a ledger of 100:103"):
        ledger.rows(start, end)


def test_the_steps_of_rows_that_were_recalled_are_not_known():
    ledger = Ledger(4, torch.float32)
    ledger.recall(rows(0, 5))
    ledger.append(rows(5, 6))
    assert [ledger.knows_steps_since(position) for position in (0, 4, 5)] == [False, False, True]
    ledger.truncate(0)
    assert ledger.knows_steps_since(0)
