"""Each processor against transformers' or a hand-computed value; the draw against the distribution."""

import math
import subprocess
import sys

import pytest
import torch
from transformers.generation import logits_process as reference

from swarm.errors import ModelError, UsageError
from swarm.model.sampling import Constraint, Sampling, choose, uniform

VOCAB = 1000
LOGITS = torch.randn(VOCAB, generator=torch.Generator().manual_seed(3)) * 3
DRAWS = 4000


def support(sampling: dict[str, float], logits: torch.Tensor = LOGITS) -> set[int]:
    """The tokens that are ever drawn."""
    return set(draws(sampling, logits, number=500))


def draws(sampling: dict[str, float], logits: torch.Tensor = LOGITS, number: int = DRAWS) -> list[int]:
    return [
        choose(logits, Sampling(**{"temperature": 1.0, **sampling, "seed": seed}), [1], []).token_id
        for seed in range(number)
    ]


def kept(*warpers: reference.LogitsProcessor, logits: torch.Tensor = LOGITS) -> torch.Tensor:
    """The distribution after transformers' processors."""
    scores = logits[None].clone()
    for warper in warpers:
        scores = warper(torch.zeros(1, 1, dtype=torch.long), scores)
    return scores[0].softmax(0)


def test_greedy_takes_the_likeliest_and_the_first_of_equals():
    assert choose(LOGITS, Sampling(), [1], []).token_id == int(LOGITS.argmax())
    assert choose(torch.tensor([0.0, 2.0, 2.0]), Sampling(), [1], []).token_id == 1


def test_the_logits_given_in_are_left_untouched():
    before = LOGITS.clone()
    sampling = Sampling(
        temperature=0.5, repetition_penalty=2.0, presence_penalty=1.0, logit_bias={3: 5.0}, seed=1
    )
    choose(LOGITS, sampling, [1, 2], [3], Constraint(allowed=torch.ones(VOCAB, dtype=torch.bool)))
    assert torch.equal(LOGITS, before)


@pytest.mark.parametrize(
    ("sampling", "warpers"),
    [
        ({"temperature": 0.7}, [reference.TemperatureLogitsWarper(0.7)]),
        ({"top_k": 7}, [reference.TopKLogitsWarper(7)]),
        ({"top_p": 0.6}, [reference.TopPLogitsWarper(0.6)]),
        ({"min_p": 0.2}, [reference.MinPLogitsWarper(0.2)]),
        ({"top_k": 20, "top_p": 0.8}, [reference.TopKLogitsWarper(20), reference.TopPLogitsWarper(0.8)]),
        (
            {"temperature": 1.5, "min_p": 0.1, "top_k": 9, "top_p": 0.7},
            [
                reference.TemperatureLogitsWarper(1.5),
                reference.MinPLogitsWarper(0.1),
                reference.TopKLogitsWarper(9),
                reference.TopPLogitsWarper(0.7),
            ],
        ),
    ],
)
def test_draws_follow_the_distribution_of_transformers_processors(sampling, warpers):
    expected = kept(*warpers)
    found = torch.bincount(torch.tensor(draws(sampling)), minlength=VOCAB) / DRAWS
    assert set(found.nonzero().flatten().tolist()) <= set(expected.nonzero().flatten().tolist())
    deviation = (expected * (1 - expected) / DRAWS).sqrt()
    assert bool(((found - expected).abs() <= 5 * deviation + 1 / DRAWS).all())


def test_top_p_keeps_the_token_that_reaches_it_and_no_more():
    logits = torch.tensor([0.5, 0.3, 0.15, 0.05]).log()
    assert support({"top_p": 0.5}, logits) == {0}
    assert support({"top_p": 0.51}, logits) == {0, 1}
    assert support({"top_p": 1e-9}, logits) == {0}


def test_top_k_keeps_tokens_as_likely_as_the_last_one():
    assert support({"top_k": 2}, torch.tensor([3.0, 2.0, 2.0, 1.0])) == {0, 1, 2}


def test_a_flat_distribution_over_a_large_vocabulary_reaches_every_part_of_it():
    logits = torch.zeros(50_000)
    found = torch.tensor(draws({}, logits, number=400)).double()
    assert 22_000 < float(found.mean()) < 28_000
    assert float(found.max()) > 49_000


@pytest.mark.parametrize("sampling", [{}, {"top_p": 0.9}, {"top_k": 50}])
def test_the_draw_is_the_inverse_of_the_cumulative_distribution(sampling):
    warpers = [reference.TopPLogitsWarper(0.9)] if "top_p" in sampling else []
    warpers += [reference.TopKLogitsWarper(50)] if "top_k" in sampling else []
    logits = LOGITS / 10  # flat, so that more than one prefix of the order is needed
    probabilities = kept(*warpers, logits=logits).double()
    order = probabilities.argsort(descending=True, stable=True)
    cumulative = probabilities[order].cumsum(0)
    for seed in range(300):
        chosen = Sampling(temperature=1.0, seed=seed, **sampling)
        draw = uniform(chosen, 5)
        expected = int(order[int((cumulative <= draw).sum())])
        assert choose(logits, chosen, [1, 2], [3, 4, 5]).token_id == expected


def test_repetition_penalty_counts_prompt_and_output_as_in_transformers():
    expected = reference.RepetitionPenaltyLogitsProcessor(1.7)(
        torch.tensor([[5, 9, 9, 30]]), LOGITS[None].clone()
    )[0]
    for token in (5, 9, 30):  # alone, each can be seen through its margin over another token
        margin = float(expected[token] - LOGITS[77])
        for nudge, winner in ((-0.01, token), (0.01, 77)):
            mask = torch.zeros(VOCAB, dtype=torch.bool)
            mask[[token, 77]] = True
            sampling = Sampling(repetition_penalty=1.7, logit_bias={77: margin + nudge})
            assert choose(LOGITS, sampling, [5, 9], [9, 30], Constraint(allowed=mask)).token_id == winner


@pytest.mark.parametrize(
    ("sampling", "expected"),
    [
        ({"presence_penalty": 1.0}, 1.0),
        ({"frequency_penalty": 1.0}, 2.0),
        ({"presence_penalty": 0.5, "frequency_penalty": -1.0}, -1.5),
    ],
)
def test_presence_and_frequency_count_the_output_alone(sampling, expected):
    for nudge, winner in ((-0.01, 2), (0.01, 0)):
        logits = torch.tensor([0.0, -9.0, expected - nudge])
        assert choose(logits, Sampling(**sampling), [0, 0, 0], [2, 2]).token_id == winner


def test_logit_bias_moves_a_token_before_the_penalties():
    assert choose(torch.tensor([1.0, 0.0]), Sampling(logit_bias={1: 1.1}), [0], []).token_id == 1
    # 0.9 + 0.2 is above zero, so the penalty divides: 1.1 / 2 < 0.9
    sampling = Sampling(logit_bias={1: 2.0}, repetition_penalty=2.0)
    assert choose(torch.tensor([0.9, -0.9]), sampling, [1], []).token_id == 0


def test_only_allowed_tokens_are_chosen_greedy_or_not():
    allowed = torch.zeros(VOCAB, dtype=torch.bool)
    allowed[[10, 20]] = True
    constraint = Constraint(allowed=allowed)
    assert choose(LOGITS, Sampling(), [1], [], constraint).token_id in (10, 20)
    drawn = {
        choose(LOGITS, Sampling(temperature=9.0, seed=s), [1], [], constraint).token_id for s in range(50)
    }
    assert drawn == {10, 20}


def test_log_probabilities_are_those_of_the_untouched_logits():
    expected = LOGITS.log_softmax(0)
    choice = choose(LOGITS, Sampling(logit_bias={4: 100.0}), [1], [], Constraint(top_logprobs=3))
    assert choice.token_id == 4
    assert choice.logprob == pytest.approx(float(expected[4]), abs=1e-5)
    assert [token for token, _ in choice.top_logprobs] == expected.topk(3).indices.tolist()
    assert [value for _, value in choice.top_logprobs] == pytest.approx(
        expected.topk(3).values.tolist(), abs=1e-5
    )
    assert choose(LOGITS, Sampling(), [1], []).top_logprobs == ()


def test_the_draw_depends_on_seed_and_position_alone():
    sampling = Sampling(temperature=1.0, seed=7)
    assert uniform(sampling, 3) == uniform(Sampling(temperature=0.2, top_k=3, seed=7), 3)
    assert (
        len(
            {
                uniform(Sampling(temperature=1.0, seed=seed), position)
                for seed in range(50)
                for position in range(50)
            }
        )
        == 2500
    )
    assert choose(LOGITS, sampling, [1, 2], [3, 4]) == choose(LOGITS, sampling, [9, 9, 9], [8])


def test_the_draw_is_pinned_across_versions():
    assert [uniform(Sampling(seed=seed), 11) for seed in (0, -1, 2**63 - 1)] == [
        0.04190918851374392,
        0.42005672902728064,
        0.09872799730220705,
    ]


def test_another_process_draws_the_same_tokens():
    code = (
        "import torch; from swarm.model.sampling import Sampling, choose\n"
        "logits = torch.arange(2000.0).sin() * 4\n"
        "sampling = [Sampling(temperature=1.3, top_p=.95, seed=seed) for seed in range(40)]\n"
        "print([choose(logits, each, [1], [2]).token_id for each in sampling])"
    )
    outputs = {
        subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout
        for _ in range(2)
    }
    assert len(outputs) == 1
    assert len(set(outputs.pop().strip("[]\n").split(", "))) > 5


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("temperature", -0.1),
        ("temperature", math.nan),
        ("top_k", -1),
        ("top_p", 0.0),
        ("top_p", 1.1),
        ("min_p", 1.5),
        ("repetition_penalty", 0.0),
        ("presence_penalty", 2.1),
        ("frequency_penalty", -2.1),
        ("seed", 2**63),
    ],
)
def test_a_value_out_of_range_is_refused_by_its_name(field, value):
    with pytest.raises(UsageError, match=f"^{field} cannot be"):
        Sampling(**{field: value})


def test_a_logit_bias_out_of_range_is_refused():
    with pytest.raises(UsageError, match=r"logit_bias\[5\] cannot be 101"):
        Sampling(logit_bias={5: 101})
    with pytest.raises(UsageError, match="names the token 1000, which the model does not have"):
        choose(LOGITS, Sampling(logit_bias={1000: 1.0}), [1], [])


def test_a_temperature_without_a_seed_is_refused():
    with pytest.raises(UsageError, match="needs a seed"):
        choose(LOGITS, Sampling(temperature=1.0), [1], [])


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_logits_that_are_not_numbers_are_refused(value):
    logits = LOGITS.clone()
    logits[5] = value
    with pytest.raises(ModelError, match="not numbers"):
        choose(logits, Sampling(), [1], [])


def test_a_constraint_that_allows_nothing_is_refused():
    with pytest.raises(UsageError, match="Not one token"):
        choose(LOGITS, Sampling(), [1], [], Constraint(allowed=torch.zeros(VOCAB, dtype=torch.bool)))


@pytest.mark.parametrize("temperature", [5e-324, 1e-40, 1e-38, 1e-6])
def test_a_temperature_next_to_zero_is_greedy(temperature):
    logits = torch.tensor([1.0, 30.0, 29.999, -4.0])
    chosen = choose(logits, Sampling(temperature=temperature, seed=3), [0], [])
    assert chosen == choose(logits, Sampling(), [0], [])


def test_the_least_temperature_that_counts_draws_without_overflow():
    logits = torch.tensor([1e4, -1e4, 1e4 - 1e-3])
    drawn = {choose(logits, Sampling(temperature=1e-5, seed=seed), [0], []).token_id for seed in range(9)}
    assert drawn == {0}
