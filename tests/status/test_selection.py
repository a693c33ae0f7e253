"""Claims alone do not set the work: which models are looked at, and in which order."""

import pytest

from swarm.status.schedule import LOOK_UPS, MAX_MODELS, Standing, choose_models
from swarm.wire.records import MAX_BLOCKS, ModelRecord


def claim(number: int, num_blocks: int = 30) -> ModelRecord:
    return ModelRecord(
        peer="p", model=f"{number:064x}", issued_at=0.0, expires_at=1.0, sequence=0, name=f"m{number}",
        num_blocks=num_blocks, hidden_size=64, model_type="llama",
    )  # fmt: skip


def chosen(claims: list[ModelRecord], standings: dict[str, Standing]) -> list[str]:
    return [record.name for record in choose_models(claims, lambda m: standings.get(m, Standing()))]


def test_a_proven_model_comes_before_any_number_of_claims():
    honest = claim(10**6)
    flood = [claim(number, MAX_BLOCKS) for number in range(5000)]
    names = chosen([*flood, honest], {honest.model: Standing(proven=True, looked_at=5.0)})
    assert names[0] == honest.name
    assert len(names) <= MAX_MODELS


def test_a_crawl_makes_a_bounded_number_of_look_ups():
    names = chosen([claim(number, MAX_BLOCKS) for number in range(100)], {})
    assert len(names) == LOOK_UPS // (MAX_BLOCKS // 32)


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (Standing(), Standing(tried_in_vain=3)),
        (Standing(looked_at=1.0), Standing(looked_at=2.0)),
        (Standing(proven=True, looked_at=9.0), Standing()),
    ],
)
def test_the_surer_one_comes_first(first: Standing, second: Standing):
    claims = [claim(2), claim(1)]
    assert chosen(claims, {claims[0].model: first, claims[1].model: second}) == ["m2", "m1"]


def test_over_several_crawls_every_claim_has_its_turn():
    claims = [claim(number) for number in range(3 * MAX_MODELS)]
    looked: dict[str, Standing] = {}
    for crawl in range(1, 4):
        for record in choose_models(claims, lambda m: looked.get(m, Standing())):
            looked[record.model] = Standing(looked_at=float(crawl))
    assert len(looked) == len(claims)
