"""The fair queue and the rates, without a clock and without a network."""

from hypothesis import given
from hypothesis import strategies as st

from swarm.gateway.admission import FairQueue, TokenBucket


def test_a_full_bucket_gives_a_minutes_worth_at_once_and_then_says_how_long_to_wait():
    bucket = TokenBucket(60, filled_at=0.0)
    assert [bucket.take(0.0) for _ in range(60)] == [0.0] * 60
    assert bucket.take(0.0) == 1.0
    assert bucket.take(0.4) == 0.6
    assert bucket.take(1.0) == 0.0


def test_a_slow_rate_still_lets_one_through():
    bucket = TokenBucket(0.5, filled_at=0.0)
    assert bucket.take(0.0) == 0.0
    assert bucket.take(0.0) == 120.0
    assert bucket.take(120.0) == 0.0


def test_tickets_run_up_to_the_limit_and_then_wait():
    queue = FairQueue[str](max_running=2, max_waiting=1)
    assert queue.arrive("a1", "a")
    assert queue.arrive("a2", "a")
    assert not queue.full
    assert not queue.arrive("a3", "a")
    assert queue.full
    assert queue.place("a3") == 0
    assert queue.leave("a1") == ["a3"]


def test_keys_take_turns_so_that_one_who_asks_much_delays_nobody():
    queue = FairQueue[str](max_running=1, max_waiting=100)
    queue.arrive("first", "greedy")
    for number in range(5):
        queue.arrive(f"g{number}", "greedy")
    queue.arrive("m0", "modest")
    queue.arrive("o0", "other")
    assert queue.place("m0") == 1
    served, running = [], "first"
    while started := queue.leave(running):
        [running] = started
        served.append(running)
    assert served == ["g0", "m0", "o0", "g1", "g2", "g3", "g4"]


def test_a_ticket_that_gives_up_leaves_the_queue():
    queue = FairQueue[str](max_running=1, max_waiting=9)
    queue.arrive("a", "a")
    queue.arrive("b", "b")
    queue.arrive("c", "c")
    assert queue.leave("b") == []
    assert queue.leave("a") == ["c"]
    assert queue.waiting == 0


def test_the_estimate_follows_how_long_replies_take():
    queue = FairQueue[str](max_running=4, max_waiting=9)
    for _ in range(50):
        queue.served(2.0)
    assert round(queue.wait_s(place=7), 1) == 4.0


@given(st.lists(st.tuples(st.sampled_from("abc"), st.booleans()), max_size=60))
def test_nobody_is_lost_and_never_too_many_run(moves):
    queue, known, number = FairQueue[int](max_running=3, max_waiting=1000), set(), 0
    for key, arrives in moves:
        if arrives or not known:
            number += 1
            known.add(number)
            queue.arrive(number, key)
        else:
            gone = min(known)
            known.discard(gone)
            queue.leave(gone)
        assert len(queue.running) == min(3, len(known))
        assert set(queue.running) | set(queue.order()) == known
