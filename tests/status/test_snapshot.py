"""The summary that page, API and terminal share."""

from status_values import NOW, proof, record, shown, state

from swarm.status.snapshot import SwarmState


def only(*records, **settings):
    return state(*records, **settings).models[0]


def test_a_summary_says_what_is_claimed_and_what_works():
    failing = proof({"b": shown("failed", reason="answers wrongly")})
    model = only(record("a", 0, 6), record("b", 0, 3), shown_by=failing)
    assert model.claimed == (2, 2, 2, 1, 1, 1)
    assert model.coverage == (1, 1, 1, 1, 1, 1)
    assert (model.whole, model.replicas, model.weakest) == (True, 1, ("0:6",))


def test_the_span_most_wanted_is_the_hole_else_the_weakest_of_the_usual_length():
    assert only(record("a", 0, 2), record("b", 3, 6)).wanted == "2:3"
    assert only(record("a", 0, 3), record("b", 3, 6), record("c", 0, 3)).wanted == "3:6"


def test_blocks_of_a_failing_peer_are_wanted():
    failing = proof({"c": shown("failed")})
    records = (record("a", 0, 3), record("b", 3, 6), record("c", 3, 6), record("d", 0, 3))
    assert only(*records, shown_by=failing).wanted == "3:6"


def test_a_model_that_does_not_work_has_no_speed():
    assert only(record("a", 0, 6)).tokens_per_s == 15.0
    assert only(record("a", 0, 5)).tokens_per_s is None


def test_hostile_fields_of_a_record_are_bounded_and_finite():
    hostile = record(
        "a", 0, 6, public_name="x\u202e" + "y" * 62, dtype="z" * 10_000, software="\n" * 10_000 + "<b>",
        free_tokens=10**30, queue_depth=-5, started_at=float("-inf"),
    )  # fmt: skip
    [peer] = only(hostile).peers
    assert (len(peer.name), len(peer.dtype), peer.software) == (48, 16, "…")
    assert (peer.free_tokens, peer.queue_depth, peer.uptime_s) == (10**12, 0, 0.0)


def test_the_swarm_is_as_healthy_as_all_that_is_known_says():
    healthy = state(record("a", 0, 6), record("b", 0, 6)).models
    broken = state(record("a", 0, 5)).models
    unknown = state(record("a", 0, 6), shown_by=proof(passed_ago_s=None)).models
    assert SwarmState(NOW, NOW, healthy + unknown).health == "healthy"
    assert SwarmState(NOW, NOW, healthy + broken).health == "degraded"
    assert SwarmState(NOW, NOW, broken).health == "broken"
    assert SwarmState(NOW, NOW, unknown).health == "unknown"
    assert SwarmState(NOW, NOW - 120, healthy).health == "unknown"
