"""The simulator: the same seed gives the same day, and what it tells is what happened."""

import json

import pytest

from swarm.bench.simulate.bound import Server, most_tokens_per_s
from swarm.bench.simulate.report import RunSettings, picture, simulate
from swarm.bench.simulate.rules import Ours, Petals
from swarm.bench.simulate.trace import WARM_UP_S, Stay, TraceSettings, draw, read
from swarm.bench.simulate.world import World
from swarm.errors import UsageError

SMALL = TraceSettings("regions", peers=40, blocks=12, hours=1.0, capacity=4.0, online_share=0.3)


def stay(peer: str, from_s: float, until_s: float, fits: int = 3, planned: bool = False) -> Stay:
    return Stay(peer, from_s, until_s, fits, 100.0, planned)


def played(stays, blocks=6, hours=1.0, rule=None) -> World:
    world = World(rule or Ours(), blocks, stays, hours * 3600)
    world.run()
    return world


def test_the_same_seed_gives_the_same_result():
    settings = RunSettings(40, 12, 1.0, requests_per_hour=30.0)
    first, second = (simulate(draw(SMALL), settings) for _ in range(2))
    assert first.to_json() == second.to_json()
    assert picture(first) == picture(second)
    assert first.played[0].replies.stalls_s == second.played[0].replies.stalls_s


def test_a_report_has_these_keys_and_the_oracle_is_never_beaten():
    report = simulate(draw(SMALL), RunSettings(40, 12, 1.0, 30.0)).to_json()
    assert list(report) == [
        "peers", "blocks", "hours", "coverage", "coverage_by_rule", "errors", "moves_per_peer_day",
        "weakest_to_oracle",
    ]  # fmt: skip
    by_rule = report["coverage_by_rule"]
    assert by_rule["oracle"] == max(by_rule.values())
    assert report["errors"] == 0
    assert 0 < report["weakest_to_oracle"] <= 1


def test_a_peer_moves_when_the_only_one_of_some_blocks_dies():
    ever = 10**6
    stays = [stay("a", -WARM_UP_S, ever), stay("b", -WARM_UP_S + 60, 1800), stay("c", -WARM_UP_S + 120, ever)]
    world = played(stays)
    assert world.replicas.tolist() == [1] * 6
    assert world.tally.moves in (0, 1)  # none where the third stood beside the one that died
    assert world.tally.hole_block_s < 3 * 120


def test_blocks_without_a_peer_are_counted_as_long_as_they_have_none():
    world = played([stay("a", -WARM_UP_S, 10**6)])
    assert world.tally.hole_block_s == pytest.approx(3 * 3600)
    assert world.tally.unhosted_block_s == pytest.approx(3 * 3600)


def test_petals_rule_moves_a_peer_from_a_crowd_to_the_weakest_blocks():
    ever = 10**6
    stays = [stay(name, -WARM_UP_S + index, ever) for index, name in enumerate("abcd")]
    stays += [stay("e", -WARM_UP_S + 5, 600)]
    assert (played(stays, rule=Petals()).replicas > 0).all()


def test_what_a_swarm_bears_is_limited_by_the_peers_that_can_help_each_other():
    halves = [Server(0, 2, 10.0), Server(2, 4, 30.0)]
    assert most_tokens_per_s(halves, 4) == pytest.approx(5.0, rel=0.01)
    assert most_tokens_per_s([*halves, Server(0, 4, 20.0)], 4) == pytest.approx(15.0, rel=0.01)
    assert most_tokens_per_s([Server(0, 1, 10.0)], 2) == pytest.approx(0.0, abs=0.01)


def test_a_trace_of_ones_own_is_read_and_what_is_none_is_refused(tmp_path):
    path = tmp_path / "trace.jsonl"
    line = {"peer": "a", "from_s": 0, "until_s": 9, "fits_blocks": 2, "blocks_per_s": 5.0, "planned": True}
    path.write_text(json.dumps(line) + "\n")
    assert read(path) == [Stay(**line)]
    path.write_text(json.dumps(line) + '\n{"peer": "b"}\n')
    with pytest.raises(UsageError, match=r"Line 2 of trace\.jsonl is not a stay"):
        read(path)


def test_two_hundred_that_come_at_once_do_not_stand_in_each_others_way():
    herd = TraceSettings("herd", peers=40, blocks=20, hours=1.5, capacity=2.0, online_share=0.5)
    world = World(Ours(), 20, draw(herd), 1900.0)  # just after they have come
    world.run()
    assert world.replicas.min() >= 0.5 * world.replicas.mean()
