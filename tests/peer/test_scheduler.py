"""The scheduler hands out every row once, keeps decoding prompt, and lets nobody starve."""

from hypothesis import given
from hypothesis import strategies as st

from swarm.peer.scheduler import SLICE_TOKENS, PendingStep, Scheduler
from swarm.values import Span

SPAN = Span(0, 4)


def step(session: str, tokens: int, *, spare: bool = False, span: Span = SPAN) -> PendingStep:
    return PendingStep(session, span, tokens, spare)


def test_decoding_sessions_share_a_batch():
    scheduler = Scheduler()
    for name in "abc":
        scheduler.submit(step(name, 1))
    assert [part.step.session for part in scheduler.next_batch()] == ["a", "b", "c"]
    assert scheduler.next_batch() == []


def test_a_long_prompt_is_cut_and_does_not_hold_up_decoding():
    scheduler = Scheduler()
    scheduler.submit(step("long", 3 * SLICE_TOKENS))
    scheduler.next_batch()
    scheduler.submit(step("short", 1))
    assert {part.step.session for part in scheduler.next_batch()} == {"long", "short"}


def test_two_prompts_take_turns():
    scheduler = Scheduler()
    scheduler.submit(step("a", 2 * SLICE_TOKENS))
    scheduler.submit(step("b", 2 * SLICE_TOKENS))
    assert [scheduler.next_batch()[0].step.session for _ in range(4)] == ["a", "b", "a", "b"]


def test_a_spare_waits_while_anybody_else_has_work():
    scheduler = Scheduler(spare_slice_tokens=32)
    scheduler.submit(step("spare", 40, spare=True))
    scheduler.submit(step("active", 1))
    assert [scheduler.next_batch()[0].step.session for _ in range(3)] == ["active", "spare", "spare"]


def test_steps_through_other_blocks_are_not_mixed():
    scheduler = Scheduler(spare_slice_tokens=32)
    scheduler.submit(step("a", 1))
    scheduler.submit(step("b", 1, span=Span(1, 3)))
    assert [[part.step.session for part in scheduler.next_batch()] for _ in range(2)] == [["a"], ["b"]]


def test_a_cancelled_session_gets_no_more_turns():
    scheduler = Scheduler(spare_slice_tokens=32)
    scheduler.submit(step("a", 3 * SLICE_TOKENS))
    scheduler.next_batch()
    scheduler.cancel("a")
    assert scheduler.next_batch() == []


@given(st.lists(st.tuples(st.integers(1, 700), st.booleans(), st.integers(0, 1)), max_size=20))
def test_every_row_is_computed_once_and_in_order(work):
    scheduler = Scheduler(spare_slice_tokens=32)
    steps = [
        step(str(n), tokens, spare=spare, span=Span(0, 4 + span))
        for n, (tokens, spare, span) in enumerate(work)
    ]
    for each in steps:
        scheduler.submit(each)
    progress = {each.session: 0 for each in steps}
    while batch := scheduler.next_batch():
        assert len({part.step.session for part in batch}) == len(batch)
        assert len({part.step.span for part in batch}) == 1
        for part in batch:
            assert part.start == progress[part.step.session] < part.end
            progress[part.step.session] = part.end
    assert progress == {each.session: each.tokens for each in steps}
