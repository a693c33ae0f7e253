"""A model is what canaries have shown it to be, not what its records claim."""

from status_values import NOW, proof, record, shown, snapshot, state

from swarm.status.health import LATELY_S, assess

PAIR = (record("a", 0, 3), record("b", 3, 6), record("c", 0, 3), record("d", 3, 6))
ALL = {peer: shown() for peer in "abcd"}


def test_two_peers_on_every_block_and_a_canary_that_passed_are_healthy():
    judged = assess(snapshot(*PAIR), proof(ALL), NOW)
    assert (judged.health, judged.reasons, judged.replicas) == ("healthy", (), 2)
    assert set(judged.conditions.values()) == {"proven"}


def test_without_any_canary_a_whole_model_is_unknown():
    judged = assess(snapshot(*PAIR), proof(passed_ago_s=None), NOW)
    assert judged.health == "unknown"
    assert judged.reasons[0] == "no canary has gone through all blocks yet"
    assert set(judged.conditions.values()) == {"unproven"}


def test_a_canary_of_long_ago_proves_nothing_about_now():
    judged = assess(snapshot(*PAIR), proof(ALL, passed_ago_s=LATELY_S + 60), NOW)
    assert judged.health == "unknown"
    assert judged.reasons[0] == "the last canary through all blocks passed 4 min ago"


def test_a_block_with_one_peer_makes_a_working_model_degraded():
    judged = assess(snapshot(*PAIR[:3]), proof(ALL), NOW)
    assert judged.health == "degraded"
    assert judged.reasons == ("blocks 3:6 have one working peer only",)
    assert [str(span) for span in judged.weakest] == ["3:6"]


def test_a_hole_is_named_and_breaks_the_model_whatever_canaries_said_before():
    judged = assess(snapshot(*PAIR[:1], record("e", 4, 6)), proof(ALL), NOW)
    assert judged.health == "broken"
    assert judged.reasons[0] == "no peer hosts block 3"
    assert [str(span) for span in judged.missing] == ["3:4"]


def test_a_peer_that_fails_its_canary_counts_as_absent():
    failing = ALL | {"b": shown("failed", reason="answers wrongly")}
    judged = assess(snapshot(*PAIR), proof(failing), NOW)
    assert judged.health == "degraded"
    assert judged.conditions["b"] == "failing"
    assert judged.working == (2, 2, 2, 1, 1, 1)
    assert judged.reasons[0] == "peer b answers wrongly"


def test_blocks_whose_only_peer_fails_are_a_hole_with_its_cause():
    failing = ALL | {"b": shown("failed", reason="went silent")}
    judged = assess(snapshot(*PAIR[:3]), proof(failing), NOW)
    assert judged.health == "broken"
    assert judged.reasons[0] == "nobody who hosts blocks 3:6 answers properly: peer b went silent"


def test_a_peer_that_is_far_slower_than_the_others_is_called_slow():
    slow = ALL | {"d": shown(ms_per_token=600.0)}
    judged = assess(snapshot(*PAIR), proof(slow), NOW)
    assert judged.health == "degraded"
    assert judged.conditions["d"] == "slow"


def test_peers_that_are_joining_or_leaving_are_no_replicas():
    records = (*PAIR[:2], record("c", 0, 6, state="joining"), record("d", 0, 6, state="draining"))
    judged = assess(snapshot(*records), proof(ALL), NOW)
    assert judged.replicas == 1
    assert (judged.conditions["c"], judged.conditions["d"]) == ("joining", "draining")


def test_a_snapshot_of_long_ago_makes_everything_unknown():
    judged = assess(snapshot(*PAIR, taken_at=NOW - 300), proof(ALL), NOW)
    assert judged.health == "unknown"
    assert judged.reasons == ("the directory has not answered for 5 min",)


def test_a_start_in_the_future_does_not_hide_a_failure():
    failing = ALL | {"b": shown("failed", reason="answers wrongly")}
    judged = assess(
        snapshot(PAIR[0], record("b", 3, 6, started_at=NOW + 1e9), *PAIR[2:]), proof(failing), NOW
    )
    assert judged.conditions["b"] == "failing"


def test_a_peer_of_another_wire_version_is_no_replica_and_is_told_apart():
    foreign = record("c", 0, 6, wire_version=9)
    judged = assess(snapshot(record("a", 0, 6), foreign), proof(), NOW)
    assert judged.conditions["c"] == "incompatible"
    assert judged.working == (1,) * 6
    assert "1 peer speaks another wire version (9) and cannot be used until it is updated" in judged.reasons
    shown = state(record("a", 0, 6), foreign).models[0].peers
    assert [peer.reason for peer in shown if peer.peer == "c"] == ["speaks wire version 9"]
