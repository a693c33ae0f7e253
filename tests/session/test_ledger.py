"""A ledger knows which rows were sent in which steps; the rows behind it come back as they went in."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from swarm.session.ledger import CHUNK_TOKENS, Ledger
from swarm.session.rows import Rows


def rows(start: int, end: int) -> torch.Tensor:
    return torch.arange(start, end, dtype=torch.float32).unsqueeze(1).expand(-1, 4)


@given(st.lists(st.integers(1, 90), max_size=12), st.integers(0, 200))
def test_rows_come_back_as_they_went_in(lengths, start):
    kept, end = Rows(4, torch.float32), start
    for length in lengths:
        kept.put(end, rows(end, end + length))
        end += length
    assert not lengths or torch.equal(kept.get(start, end), rows(start, end))


def test_rows_are_overwritten_and_what_was_behind_is_forgotten():
    kept = Rows(4, torch.float32)
    kept.put(0, rows(0, 10))
    kept.put(6, rows(100, 102))
    assert kept.get(5, 8)[:, 0].tolist() == [5, 100, 101]
    with pytest.raises(ValueError, match="are not in 0:8"):
        kept.get(5, 9)


def test_rows_that_begin_before_those_that_are_kept_stand_alone():
    kept = Rows(4, torch.float32)
    kept.put(100, rows(100, 103))
    kept.put(40, rows(40, 42))
    assert torch.equal(kept.get(40, 42), rows(40, 42))


@pytest.mark.parametrize(("start", "end"), [(99, 101), (101, 104), (102, 101)])
def test_rows_that_are_not_there_are_refused(start, end):
    kept = Rows(4, torch.float32)
    kept.put(100, rows(100, 103))
    with pytest.raises(ValueError, match="are not in 100:103"):
        kept.get(start, end)


def exact_ends(ledger: Ledger) -> list[int]:
    """Where the steps of an exact replay end."""
    ends = [ledger.start]
    while ends[-1] < ledger.end:
        ends.append(ledger.next_end(ends[-1], exact=True))
    return ends[1:]


def test_truncating_forgets_rows_and_the_steps_that_held_them():
    ledger = Ledger()
    ledger.append(10)
    for end in (4, 8):
        ledger.mark_step(end)
    ledger.truncate(6)
    ledger.append(3)
    assert ledger.end == 9
    assert exact_ends(ledger) == [4, 9]
    assert [ledger.knows_steps_since(position) for position in (0, 5, 6)] == [False, False, True]


def test_rows_that_were_never_sent_belong_to_no_step():
    ledger = Ledger()
    ledger.append(10)
    ledger.mark_step(4)
    ledger.truncate(6)
    ledger.append(3)
    assert exact_ends(ledger) == [4, 9]
    assert ledger.knows_steps_since(0)


def test_steps_are_repeated_as_they_were_first_sent_or_in_chunks():
    ledger = Ledger()
    ledger.append(200)
    for end in (5, 6, 7, 7, 6, 107):
        ledger.mark_step(end)
    assert exact_ends(ledger) == [5, 6, 7, 107, 200]
    assert ledger.next_end(4, exact=True) == 5
    assert [ledger.next_end(position, exact=False) for position in (0, 100)] == [CHUNK_TOKENS, 200]


def test_the_step_of_a_row_has_a_beginning():
    ledger = Ledger(start=10)
    ledger.append(10)
    for end in (14, 15):
        ledger.mark_step(end)
    assert [ledger.step_start(position) for position in (10, 13, 14, 15, 19)] == [10, 10, 14, 15, 15]


def test_a_ledger_can_be_cut_before_its_beginning_and_goes_on_from_there():
    ledger = Ledger(start=100)
    ledger.append(3)
    ledger.truncate(40)
    assert (ledger.start, ledger.end) == (40, 40)
    ledger.append(2)
    assert ledger.end == 42


def test_the_steps_of_rows_that_were_recalled_are_not_known():
    ledger = Ledger()
    ledger.recall(5)
    ledger.append(1)
    assert [ledger.knows_steps_since(position) for position in (0, 4, 5)] == [False, False, True]
    ledger.truncate(0)
    assert ledger.knows_steps_since(0)
