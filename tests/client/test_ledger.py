"""A ledger gives back every row it was given, however it grew."""

import torch
from hypothesis import given
from hypothesis import strategies as st

from swarm.client.ledger import Ledger


def rows(start: int, end: int) -> torch.Tensor:
    return torch.arange(start, end, dtype=torch.float32).unsqueeze(1).expand(-1, 4)


@given(st.lists(st.integers(1, 90), max_size=12))
def test_rows_come_back_as_they_went_in(lengths):
    ledger = Ledger(4, torch.float32)
    for length in lengths:
        ledger.append(rows(ledger.end, ledger.end + length))
    assert ledger.end == sum(lengths)
    assert torch.equal(ledger.rows(0, ledger.end), rows(0, ledger.end))


def test_truncating_forgets_rows_and_the_steps_that_held_them():
    ledger = Ledger(4, torch.float32)
    ledger.append(rows(0, 10))
    for end in (4, 8, 10):
        ledger.mark_step(end)
    ledger.truncate(6)
    assert ledger.end == 6
    assert ledger.step_end_after(0) == 4
    assert ledger.step_end_after(4) == 6


def test_steps_are_remembered_as_they_were_first_sent():
    ledger = Ledger(4, torch.float32)
    ledger.append(rows(0, 7))
    for end in (5, 6, 7, 7, 6):
        ledger.mark_step(end)
    assert [ledger.step_end_after(position) for position in (0, 4, 5, 6)] == [5, 5, 6, 7]


def test_a_ledger_that_lost_its_beginning_keeps_positions():
    ledger = Ledger(4, torch.float32, start=100)
    ledger.append(rows(100, 103))
    assert (ledger.start, ledger.end) == (100, 103)
    assert torch.equal(ledger.rows(101, 103), rows(101, 103))
