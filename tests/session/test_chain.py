"""What a chain does about each thing that may happen to it: events, and the actions they give."""

import pytest

from swarm.session.events import (
    Answered,
    CallCancelled,
    EndWanted,
    ExtendWanted,
    Late,
    LeavingSoon,
    RewindWanted,
    Slow,
    TakenUp,
    Ticked,
)
from swarm.wire.records import PeerRecord
from tests.session.chain_play import ChainPlay, hop

A, B, C = hop(1, "0:2"), hop(2, "2:4"), hop(3, "4:6")
TICK = Ticked(unix_now=1e9)


def record(started_at: float) -> PeerRecord:
    return PeerRecord(
        peer="peer 1", model="0" * 64, issued_at=0.0, expires_at=30.0, sequence=1, start=0, end=6,
        state="online", dtype="fp32", quantization="none", decode_tokens_per_s=100.0,
        prefill_tokens_per_s=500.0, free_tokens=1, queue_depth=0, wire_version=1, software="0",
        started_at=started_at,
    )  # fmt: skip


def whole(**rules) -> ChainPlay:
    """A chain of one hop that holds five rows."""
    play = ChainPlay(**rules)
    play.extended(5, hop(1, "0:6"))
    return play


def thirds(**rules) -> ChainPlay:
    """A chain of three hops that hold five rows."""
    play = ChainPlay(**rules)
    play.extended(5, A, B, C)
    return play


def followed(**rules) -> ChainPlay:
    """A chain of one hop whose spare holds the five rows, too, and waits for eight more."""
    play = whole(spares="always", **rules)
    play.tell(TICK)
    play.opened(hop(9, "0:6"))
    play.extended(3)
    play.answered(9)
    return play


# Progress


def test_the_first_rows_open_a_chain_and_go_from_hop_to_hop():
    play = ChainPlay()
    assert play.tell(ExtendWanted(5)) == ["open 0:6"]
    assert play.opened(A, B, C) == ["send 1 0:5 back 5"]
    assert play.answered(1) == ["send 2 0:5 back 5"]
    assert play.answered(2) == ["send 3 0:5 back 1"]
    assert play.answered(3) == ["result"]
    assert (play.chain.position, play.chain.held) == (5, 5)


def test_a_long_prompt_goes_through_all_hops_at_once():
    play = ChainPlay()
    play.tell(ExtendWanted(300))
    assert play.opened(hop(1, "0:3"), hop(2, "3:6")) == ["send 1 0:128 back 128"]
    assert play.answered(1) == ["send 1 128:256 back 128", "send 2 0:128 back 0"]
    assert play.answered(1) == ["send 1 256:300 back 44"]
    assert play.answered(2) == ["send 2 128:256 back 0"]
    assert play.answered(1) == []
    assert play.answered(2) == ["send 2 256:300 back 1"]
    assert play.answered(2) == ["result"]


def test_an_answer_to_a_step_that_was_stopped_says_nothing():
    play = whole()
    play.tell(ExtendWanted(1))
    step = play.out[1]
    play.tell(CallCancelled())
    assert play.tell(Answered(step)) == []
    assert (play.chain.position, play.chain.held) == (6, 5)


# Losses


def test_a_lost_hop_is_replaced_and_sent_everything_but_asked_only_for_what_is_new():
    play = thirds()
    play.tell(ExtendWanted(1))
    play.answered(1)
    assert play.lost(2) == ["report 2", "open 2:4 for 2"]
    assert play.opened(hop(4, "2:4")) == ["close 2", "send 4 0:6 back 1"]
    assert play.answered(4) == ["send 3 5:6 back 1"]
    assert play.answered(3) == ["result"]
    [resume] = play.chain.resumes
    assert (resume.lost_peer, resume.kind, resume.replayed_tokens) == ("peer 2", "broken", 6)


def test_a_lost_peer_that_is_found_again_is_sent_only_what_it_has_not_got():
    play = whole()
    play.tell(ExtendWanted(1))
    play.lost(1)
    assert play.opened(hop(2, "0:6", position=5)) == ["close 1", "send 2 5:6 back 1"]


def test_a_span_may_be_taken_over_by_peers_with_another_cut():
    play = thirds()
    play.tell(ExtendWanted(1))
    play.answered(1)
    play.lost(2)
    assert play.opened(hop(4, "2:3"), hop(5, "3:4")) == ["close 2", "send 4 0:6 back 6"]
    assert play.answered(4) == ["send 5 0:6 back 1"]


def test_the_others_come_to_rest_before_a_loss_is_made_good():
    play = ChainPlay()
    play.tell(ExtendWanted(300))
    play.opened(hop(1, "0:3"), hop(2, "3:6"))
    play.answered(1)
    assert play.lost(1) == []
    assert play.answered(2) == ["report 1", "open 0:3 for 1"]
    assert play.opened(hop(3, "0:3")) == ["close 1", "send 3 0:128 back 0"]


def test_neighbours_lost_together_are_replaced_as_one():
    play = thirds()
    play.lost(2)
    play.lost(3)
    assert play.tell(ExtendWanted(1)) == ["report 2", "report 3", "open 2:6 for 2 3"]
    assert play.opened(hop(4, "2:6")) == ["close 2", "close 3", "send 1 5:6 back 1", "send 4 0:5 back 0"]


def test_hops_lost_apart_are_replaced_one_after_the_other():
    play = thirds()
    play.lost(1)
    play.lost(3)
    assert play.tell(ExtendWanted(1)) == ["report 1", "report 3", "open 0:2 for 1"]
    assert play.opened(hop(4, "0:2")) == ["close 1", "open 4:6 for 3"]
    assert play.opened(hop(5, "4:6")) == ["close 3", "send 4 0:6 back 1", "send 5 0:5 back 0"]


def test_a_loss_between_calls_waits_for_the_next_one():
    play = whole()
    assert play.lost(1) == []
    assert play.tell(ExtendWanted(1)) == ["report 1", "open 0:6 for 1"]


def test_a_loss_is_counted_once():
    play = whole()
    play.tell(ExtendWanted(1))
    play.lost(1)
    assert play.lost(1, "silent") == []
    play.tell(CallCancelled())
    assert play.tell(ExtendWanted(1)) == ["open 0:6 for 1"]
    assert [resume.kind for resume in play.chain.resumes] == ["broken"]


def test_everything_is_built_again_when_nobody_kept_what_a_new_hop_needs():
    play = ChainPlay()
    assert play.tell(TakenUp((hop(1, "0:3", 9), hop(2, "3:6", 7)), end=8)) == ["recall 0:7"]
    assert play.tell(ExtendWanted(1)) == ["send 1 7:8 back 1"]
    play.answered(1)
    play.lost(2)
    assert play.opened(hop(3, "3:6")) == ["close 2", "recall 0:8", "send 1 0:8 back 8"]
    assert play.answered(1) == ["send 3 0:8 back 1"]


# Patience


def test_an_opening_that_fails_is_tried_again_after_longer_and_longer():
    play = ChainPlay()
    play.tell(ExtendWanted(1))
    assert play.open_failed() == ["open 0:6 in 0.05 s"]
    assert play.open_failed() == ["open 0:6 in 0.10 s"]
    for _ in range(5):
        play.open_failed()
    assert play.open_failed() == ["open 0:6 in 1.00 s"]


def test_when_nobody_has_the_blocks_for_as_long_as_the_patience_the_call_fails():
    play = whole(patience_s=3.0)
    play.tell(ExtendWanted(2))
    play.lost(1)
    play.now = 2.9
    assert play.open_failed() == ["open 0:6 for 1 in 0.05 s"]
    play.now = 2.95
    assert play.open_failed() == ["fail 0:6"]
    assert play.chain.position == 7  # the rows are kept
    assert play.tell(ExtendWanted(1)) == ["open 0:6 for 1"]
    assert play.opened(hop(2, "0:6")) == ["close 1", "send 2 0:8 back 1"]


def test_a_call_that_fails_before_there_is_a_chain_keeps_nothing():
    play = ChainPlay(patience_s=0.0)
    play.tell(ExtendWanted(5))
    assert play.open_failed() == ["fail 0:6"]
    assert play.chain.position == 0
    play.tell(ExtendWanted(3))
    assert play.opened(hop(1, "0:6")) == ["send 1 0:3 back 1"]


def test_how_long_a_loss_went_unnoticed_does_not_count():
    play = whole(patience_s=3.0)
    play.tell(ExtendWanted(1))
    play.now = 20.0
    assert play.lost(1, "late") == ["report 1", "open 0:6 for 1"]


def test_patience_ends_with_peers_that_open_and_get_no_further():
    play = whole(patience_s=3.0)
    play.tell(ExtendWanted(1))
    play.lost(1)
    for number, now in ((2, 1.0), (3, 3.0)):
        play.opened(hop(number, "0:6"))
        play.now = now
        assert play.lost(number) == [f"report {number}", f"open 0:6 for {number}"]
    play.opened(hop(4, "0:6"))
    play.now = 3.5
    assert play.lost(4) == ["report 4", "fail 0:6"]


def test_patience_begins_anew_when_any_hop_gets_further():
    play = whole(patience_s=3.0)
    play.tell(ExtendWanted(300))
    play.lost(1)
    play.opened(hop(2, "0:6"))
    play.now = 2.9
    play.answered(2)
    play.now = 5.0
    assert play.lost(2) == ["report 2", "open 0:6 for 2"]


# Calls that are given up


def test_a_cancelled_call_leaves_the_rows_and_takes_back_what_is_out():
    play = thirds()
    play.tell(ExtendWanted(1))
    play.answered(1)
    assert play.tell(CallCancelled()) == ["stop 2"]
    assert (play.chain.position, play.chain.held) == (6, 5)
    assert play.tell(ExtendWanted(1)) == ["send 1 6:7 back 1", "send 2 5:6 back 1"]


def test_a_call_cancelled_while_hops_are_opened_leaves_nothing_open():
    play = ChainPlay()
    play.tell(ExtendWanted(5))
    assert play.tell(CallCancelled()) == ["cancel opening"]
    assert play.chain.position == 0


def test_a_call_cancelled_while_a_loss_is_made_good_leaves_it_to_the_next():
    play = whole()
    play.tell(ExtendWanted(1))
    play.lost(1)
    assert play.tell(CallCancelled()) == ["cancel opening"]
    assert play.tell(ExtendWanted(1)) == ["open 0:6 for 1"]
    assert play.opened(hop(2, "0:6")) == ["close 1", "send 2 0:7 back 1"]


def test_what_comes_after_a_rewind_is_sent_from_there():
    play = thirds()
    assert play.tell(RewindWanted(3)) == []
    assert play.tell(ExtendWanted(1)) == ["send 1 3:4 back 1"]


@pytest.mark.parametrize("keep", [False, True])
def test_the_end_stops_and_closes_everything(keep):
    play = followed()
    play.tell(ExtendWanted(1))
    assert play.tell(EndWanted(keep)) == ["stop 1", "leave 1" if keep else "close 1", "close 9"]
    assert play.tell(ExtendWanted(1)) == ["open 0:6"]


# Exactness


def test_a_replay_repeats_the_very_steps_in_bf16():
    play = ChainPlay()
    play.extended(5, hop(1, "0:6", dtype="bf16"))
    play.extended(1)
    play.tell(ExtendWanted(1))
    play.lost(1)
    assert play.opened(hop(2, "0:6", dtype="bf16")) == ["close 1", "send 2 0:5 back 0"]
    assert play.answered(2) == ["send 2 5:6 back 0"]
    assert play.answered(2) == ["send 2 6:7 back 1"]
    assert play.chain.resumes[0].exact


@pytest.mark.parametrize(("exactness", "dtype"), [("fast", "bf16"), ("auto", "fp32")])
def test_a_replay_goes_in_chunks_where_bits_do_not_matter(exactness, dtype):
    play = ChainPlay(exactness=exactness)
    play.extended(5, hop(1, "0:6", dtype=dtype))
    play.extended(1)
    play.tell(ExtendWanted(1))
    play.lost(1)
    assert play.opened(hop(2, "0:6", dtype=dtype)) == ["close 1", "send 2 0:7 back 1"]
    assert not play.chain.resumes[0].exact


def test_a_replay_that_began_in_chunks_goes_on_in_chunks():
    play = ChainPlay()
    play.extended(640, hop(1, "0:6", dtype="bf16"))
    for _ in range(3):
        play.extended(1)
    play.tell(ExtendWanted(1))
    play.lost(1)
    play.opened(hop(2, "0:6", dtype="bf16"))
    for _ in range(4):
        play.answered(2)
    assert play.answered(2) == ["send 2 640:644 back 1"]


# Spares


def test_a_spare_is_opened_at_a_tick_and_sent_all_at_once():
    play = whole(spares="always")
    assert play.tell(TICK) == ["open spare beside 1"]
    assert play.tell(TICK) == []
    play.extended(4)
    assert play.opened(hop(9, "0:6")) == ["send 9 0:9 back 0"]
    assert play.answered(9) == []


def test_a_spare_is_sent_more_when_it_lags_by_eight():
    play = followed()
    for _ in range(7):
        play.extended(1)
        assert 9 not in play.out
    play.tell(ExtendWanted(1))
    assert play.answered(1) == ["result", "send 9 8:16 back 0"]


def test_a_spare_of_several_hops_is_fed_from_hop_to_hop():
    play = whole(spares="always")
    play.tell(TICK)
    play.extended(4)
    assert play.opened(hop(8, "0:3"), hop(9, "3:6")) == ["send 8 0:9 back 9"]
    assert play.answered(8) == ["send 9 0:9 back 0"]
    assert play.tell(ExtendWanted(1)) == ["send 1 9:10 back 1", "send 8 9:10 back 1"]
    promoted = ["report 1", "stop 8", "stop 9", "promote 8", "promote 9", "close 1"]
    assert play.lost(1) == [*promoted, "send 8 9:10 back 1", "send 9 0:9 back 0"]


def test_a_lost_hop_is_replaced_by_its_spare_which_is_sent_what_it_lags():
    play = followed()
    play.extended(1)
    play.tell(ExtendWanted(1))
    assert play.lost(1) == ["report 1", "promote 9", "close 1", "send 9 8:10 back 1"]
    assert play.answered(9) == ["result"]
    assert play.chain.resumes[0].replayed_tokens == 2


def test_a_spare_that_knows_an_unanswered_row_is_sent_it_again():
    play = followed()
    play.tell(ExtendWanted(1))
    play.tell(Late(1))
    assert play.tell(TICK) == ["send 9 8:9 back 0"]
    assert play.answered(9) == ["give up 1"]
    assert play.lost(1, "late") == ["report 1", "promote 9", "close 1", "send 9 8:9 back 1"]


def test_a_late_hop_that_answers_first_stays():
    play = followed()
    play.tell(ExtendWanted(1))
    play.tell(Late(1))
    play.tell(TICK)
    assert play.answered(1) == ["result"]
    assert play.answered(9) == []


def test_a_late_hop_has_another_opened_beside_it_whatever_the_policy():
    play = whole(spares="off")
    play.tell(ExtendWanted(1))
    assert play.tell(TICK) == []
    play.tell(Late(1))
    assert play.tell(TICK) == ["open active beside 1"]


def test_no_loss_is_met_by_a_spare_that_is_still_being_opened():
    play = whole(spares="always")
    play.tell(TICK)
    play.tell(ExtendWanted(1))
    assert play.lost(1) == ["report 1", "cancel opening", "open 0:6 for 1"]


def test_a_spare_that_opens_for_a_hop_that_is_gone_is_closed():
    play = whole(spares="always")
    play.tell(TICK)
    play.lost(1)
    assert play.opened(hop(9, "0:6")) == ["close 9"]


def test_a_spare_that_is_lost_is_closed_and_another_opened_after_a_while():
    play = followed()
    assert play.lost(9) == ["close 9"]
    assert play.tell(TICK) == []
    play.now = 5.0
    assert play.tell(TICK) == ["open spare beside 1"]


def test_no_spare_is_opened_soon_after_none_could_be_had():
    play = whole(spares="always")
    play.tell(TICK)
    assert play.open_failed() == []
    play.now = 4.9
    assert play.tell(TICK) == []
    play.now = 5.0
    assert play.tell(TICK) == ["open spare beside 1"]


def test_what_is_out_to_a_spare_is_taken_back_by_a_rewind():
    play = followed()
    for _ in range(8):
        play.extended(1)
    assert play.tell(RewindWanted(6)) == ["stop 9"]
    play.extended(8)
    assert play.out[9].start == 6


def test_a_spare_that_comes_during_an_edit_follows_the_edited_conversation():
    play = whole(spares="always")
    play.extended(6)
    play.tell(TICK)
    play.tell(RewindWanted(2))
    play.extended(7)
    assert play.opened(hop(9, "0:6")) == ["send 9 0:9 back 0"]


def test_a_hop_whose_ledger_has_no_beginning_gets_no_spare():
    play = ChainPlay(spares="always")
    play.tell(TakenUp((hop(1, "0:3", 7), hop(2, "3:6", 7)), end=7))
    assert play.tell(TICK) == ["open spare beside 1"]


def test_auto_keeps_a_spare_only_where_it_is_worth_it():
    play = ChainPlay()
    play.extended(400, hop(1, "0:6"))
    young = {A.planned.peer: record(started_at=1e9 - 60)}
    settled = {A.planned.peer: record(started_at=1e9 - 86_400)}
    assert play.tell(Ticked(1e9, settled)) == []
    assert play.tell(Ticked(1e9, young)) == ["open spare beside 1"]


# Leaving in time


@pytest.mark.parametrize(("event", "kind"), [(LeavingSoon(1), "leaving"), (Slow(1), "slow")])
def test_a_hop_that_is_to_be_left_is_swapped_between_calls_when_its_spare_caught_up(event, kind):
    play = whole(spares="off")
    play.tell(event)
    assert play.tell(TICK) == ["open active beside 1"]
    play.tell(ExtendWanted(4))
    assert play.opened(hop(9, "0:6")) == ["send 9 0:9 back 0"]
    assert play.answered(9) == []  # a call is under way
    assert play.answered(1) == ["result", "promote 9", "close 1"]
    assert [(resume.kind, resume.stall_s) for resume in play.chain.resumes] == [(kind, 0.0)]
    assert play.tell(ExtendWanted(1)) == ["send 9 9:10 back 1"]


def test_an_idle_hop_that_leaves_is_swapped_as_soon_as_its_spare_caught_up():
    play = followed()
    play.extended(3)
    play.tell(LeavingSoon(1))
    assert play.tell(TICK) == ["send 9 8:11 back 0"]
    assert play.answered(9) == ["promote 9", "close 1"]


def test_a_move_to_a_spare_that_has_died_is_neither_made_nor_counted():
    play = followed()
    play.lost(9)
    assert play.tell(LeavingSoon(1)) == []
    assert play.chain.resumes == []
