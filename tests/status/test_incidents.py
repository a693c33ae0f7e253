"""Incidents begin with their cause, end with it, and are not invented while the page is blind."""

from status_values import DIGEST, NOW, proof, record, shown, state

from swarm.status.incidents import MAX_PEERS, IncidentKey, ended, troubles
from swarm.status.snapshot import SwarmState

WHOLE = (record("a", 0, 6), record("b", 0, 6))


def test_a_working_model_is_no_trouble_even_with_a_block_on_one_peer():
    assert troubles(state(record("a", 0, 6))) == {}


def test_a_hole_is_an_outage_with_its_cause():
    [(key, trouble)] = troubles(state(record("a", 0, 4))).items()
    assert key == IncidentKey("outage", DIGEST, "")
    assert trouble.cause == "No peer hosts blocks 4:6"


def test_a_failing_peer_is_an_incident_of_its_own():
    failing = proof({"b": shown("failed", reason="went silent")})
    assert (
        troubles(state(*WHOLE, shown_by=failing))[IncidentKey("peer", DIGEST, "b")].cause
        == "Peer b (0:6) went silent"
    )


def test_a_flood_of_failing_peers_is_bounded():
    peers = [record(f"p{n}", 0, 6) for n in range(100)]
    failing = proof({peer.peer: shown("failed") for peer in peers})
    assert len(troubles(state(*peers, record("a", 0, 6), shown_by=failing))) == MAX_PEERS


def test_a_blind_page_knows_only_that_and_ends_nothing():
    blind = SwarmState(NOW, NOW - 600, state(record("a", 0, 4)).models)
    assert list(troubles(blind)) == [IncidentKey("blind", "", "")]
    assert ended({IncidentKey("outage", DIGEST, ""): 7}, troubles(blind), blind) == []


def test_before_the_first_crawl_nothing_is_wrong_yet():
    assert troubles(SwarmState(NOW, None)) == {}


def test_what_is_no_longer_wrong_has_ended():
    seen = state(*WHOLE)
    assert ended({IncidentKey("outage", DIGEST, ""): 7}, troubles(seen), seen) == [7]
