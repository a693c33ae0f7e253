"""The scheduler hands out every row once, keeps decoding prompt, and lets nobody starve."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swarm.peer.scheduler import SLICE_TOKENS, SPARE_SHARE, PendingStep, Scheduler, Slice
from swarm.values import Span

SPAN = Span(0, 4)


def submit(scheduler: Scheduler, tokens: int, *, spare: bool = False, span: Span = SPAN) -> PendingStep:
    step = PendingStep(span, tokens, spare)
    scheduler.submit(step)
    return step


def steps_of(batch: list[Slice]) -> list[PendingStep]:
    return [part.step for part in batch]


def test_decoding_sessions_share_a_batch():
    scheduler = Scheduler()
    steps = [submit(scheduler, 1) for _ in range(3)]
    assert steps_of(scheduler.next_batch()) == steps
    assert scheduler.next_batch() == []


def test_a_long_prompt_is_cut_and_does_not_hold_up_decoding():
    scheduler = Scheduler()
    long = submit(scheduler, 3 * SLICE_TOKENS)
    scheduler.next_batch()
    short = submit(scheduler, 1)
    assert steps_of(scheduler.next_batch()) == [long, short]


def test_two_prompts_take_turns():
    scheduler = Scheduler()
    a, b = submit(scheduler, 2 * SLICE_TOKENS), submit(scheduler, 2 * SLICE_TOKENS)
    assert [scheduler.next_batch()[0].step for _ in range(4)] == [a, b, a, b]


def test_a_spare_waits_while_anybody_else_has_work():
    scheduler = Scheduler(spare_slice_tokens=32)
    spare = submit(scheduler, 40, spare=True)
    active = submit(scheduler, 1)
    assert [scheduler.next_batch()[0].step for _ in range(3)] == [active, spare, spare]


@pytest.mark.parametrize(
    ("spare_rows", "rows", "batches"),
    [
        (1, 1, SPARE_SHARE),  # a batch of one row costs no less than one of a few
        (32, 1, 4 * SPARE_SHARE),
        (32, SLICE_TOKENS, SPARE_SHARE // 4),
        (SLICE_TOKENS, SLICE_TOKENS, SPARE_SHARE),
    ],
)
def test_while_others_never_stop_a_spare_gets_a_small_share_of_the_work(spare_rows, rows, batches):
    scheduler = Scheduler(spare_slice_tokens=spare_rows)
    spare = submit(scheduler, 2 * spare_rows, spare=True)
    order = []
    while spare.done_tokens < spare.tokens:
        if len(scheduler) == 1:
            submit(scheduler, rows)
        order.append(scheduler.next_batch()[0].step is spare)
    assert order == ([False] * batches + [True]) * 2


def test_work_done_before_a_spare_came_does_not_count_for_its_share():
    scheduler = Scheduler()
    for _ in range(100):
        submit(scheduler, 1)
        scheduler.next_batch()
    submit(scheduler, 1, spare=True)
    active = submit(scheduler, 1)
    assert steps_of(scheduler.next_batch()) == [active]


def test_the_step_of_a_spare_that_is_promoted_waits_no_longer():
    scheduler = Scheduler()
    spare = submit(scheduler, 1, spare=True)
    active = submit(scheduler, 1)
    spare.spare = False
    assert steps_of(scheduler.next_batch()) == [spare, active]


def test_steps_through_other_blocks_are_not_mixed():
    scheduler = Scheduler(spare_slice_tokens=32)
    a, b = submit(scheduler, 1), submit(scheduler, 1, span=Span(1, 3))
    assert [steps_of(scheduler.next_batch()) for _ in range(2)] == [[a], [b]]


def test_a_cancelled_step_gets_no_more_turns():
    scheduler = Scheduler(spare_slice_tokens=32)
    cancelled = submit(scheduler, 3 * SLICE_TOKENS)
    scheduler.next_batch()
    other = submit(scheduler, 1)
    scheduler.cancel(cancelled)
    assert steps_of(scheduler.next_batch()) == [other]
    assert scheduler.next_batch() == []


@given(st.lists(st.tuples(st.integers(1, 700), st.booleans(), st.integers(0, 1)), max_size=20))
def test_every_row_is_computed_once_and_in_order(work):
    scheduler = Scheduler(spare_slice_tokens=32)
    steps = [submit(scheduler, tokens, spare=spare, span=Span(0, 4 + span)) for tokens, spare, span in work]
    progress = dict.fromkeys(steps, 0)
    while batch := scheduler.next_batch():
        assert len(set(steps_of(batch))) == len(batch)
        assert len({part.step.span for part in batch}) == 1
        for part in batch:
            assert part.start == progress[part.step] < part.end
            progress[part.step] = part.end
    assert progress == {step: step.tokens for step in steps}
