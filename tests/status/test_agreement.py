"""Without the right answer at hand, peers are held against each other."""

import random

from hypothesis import given
from hypothesis import strategies as st

from swarm.status.agreement import Trace, alike, opinions, tolerance_of

RIGHT = {2: (1.0, 2.0, 3.0), 4: (0.5, -1.0, 2.0), 6: (3.0, 0.1, -2.0)}
WRONG = (-4.0, 5.0, 0.5)


def run(*hops: tuple[str, int], wrong: dict[int, tuple[float, ...]] | None = None):
    states = RIGHT | (wrong or {})
    return [Trace(peer, end, states[end], 0.02) for peer, end in hops]


def test_two_disjoint_chains_that_agree_bear_each_other_out():
    told = opinions([run(("a", 4), ("b", 6)), run(("c", 4), ("d", 6))])
    assert set(told.values()) == {"agreed"}


def test_one_chain_alone_proves_nothing():
    assert opinions([run(("a", 4), ("b", 6))]) == {"a": "alone", "b": "alone"}


def test_of_three_peers_the_one_that_differs_is_outvoted():
    runs = [
        run(("a", 4), ("x", 6)),
        run(("a", 4), ("y", 6)),
        run(("a", 4), ("z", 6), wrong={6: WRONG}),
    ]
    told = opinions(runs)
    assert told["z"] == "outvoted"
    assert (told["x"], told["y"]) == ("agreed", "agreed")


def test_two_peers_that_differ_are_both_disputed():
    told = opinions([run(("a", 4), ("x", 6)), run(("a", 4), ("y", 6), wrong={6: WRONG})])
    assert (told["x"], told["y"]) == ("disputed", "disputed")


def test_a_peer_that_answers_the_same_question_differently_is_found_out_alone():
    first, second = {4: (9.0, 1.0, 1.0)}, {4: (-2.0, 7.0, 3.0)}
    told = opinions([run(("a", 4), ("b", 6), wrong=first), run(("a", 4), ("b", 6), wrong=second)])
    assert told["a"] == "inconsistent"
    assert told["b"] == "alone"  # what it was given differed, so it is not to blame


def test_a_chain_cut_elsewhere_still_bears_out_a_longer_span():
    told = opinions([run(("a", 2), ("b", 6)), run(("c", 4), ("d", 6))])
    assert set(told.values()) == {"agreed"}


def test_a_run_that_lost_a_hop_is_compared_as_far_as_it_went():
    told = opinions([run(("a", 4)), run(("c", 4), ("d", 6))])
    assert told == {"a": "agreed", "c": "agreed", "d": "alone"}


def test_rounding_is_agreement_and_noise_is_not():
    assert alike((1.0, 2.0), (1.004, 1.995), tolerance_of("fp32", "none"))
    assert not alike((1.0, 2.0), (1.4, 1.6), tolerance_of("fp32", "none"))
    assert alike((1.0, 2.0), (1.4, 1.8), tolerance_of("bf16", "int4"))


def test_a_state_with_nan_or_infinity_is_like_nothing():
    nan, infinite = float("nan"), float("inf")
    assert not alike((nan, 1.0), (nan, 1.0), 0.4)
    assert not alike((infinite, 1.0), (1.0, 1.0), 0.4)
    assert not alike((infinite, 1.0), (infinite, 1.0), 0.4)


@given(st.integers(0, 10_000))
def test_honest_peers_are_never_outvoted_by_one_liar(seed):
    chance = random.Random(seed)  # noqa: S311 - repeatable on purpose
    runs = []
    for _ in range(chance.randint(2, 12)):
        first, second = chance.choice("abc"), chance.choice("xyL")
        wrong = {6: tuple(chance.uniform(-9, 9) for _ in range(3))} if second == "L" else {}
        runs.append(run((first, 4), (second, 6), wrong=wrong))
    told = opinions(runs)
    assert all(told.get(peer) != "outvoted" and told.get(peer) != "inconsistent" for peer in "abcxy")
