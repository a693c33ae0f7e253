"""Canary runs add up to verdicts, costs and speeds."""

import pytest
from status_values import NOW

from swarm.session.plan import Numerics, PlannedHop
from swarm.status.canary import CanaryRun, HopResult
from swarm.status.proof_ledger import ProofLedger
from swarm.status.schedule import ScheduledCanary
from swarm.values import PeerId, Span


def hop(peer: str, start: int, end: int, **changes) -> HopResult:
    planned = PlannedHop(PeerId(peer), Span(start, end), Numerics("fp32", "none"), 1.0)
    fields = {
        "left": (float(end), 1.0),
        "steps": 4,
        "tokens": 8,
        "compute_ms": 20.0,
        "decode_ms": 30.0,
        "rtt_ms": 2.0,
    }
    return HopResult(planned, **(fields | changes))


def run(*hops: HopResult, **changes) -> CanaryRun:
    whole = not any(each.fault for each in hops)
    fields = {"token_ids": [1], "whole": whole, "ttft_s": 0.2, "tokens_per_s": 10.0, "text": " Paris."}
    return CanaryRun(list(hops), **(fields | changes))


def note(ledger: ProofLedger, made: CanaryRun, at: float = NOW) -> None:
    peers = frozenset(each.planned.peer for each in made.hops)
    ledger.note_run(made, ScheduledCanary(tuple(each.planned for each in made.hops), peers), at)


def test_a_whole_run_against_the_known_answer_proves_its_peers_and_the_model():
    ledger = ProofLedger(prompt="The capital", expects=True)
    note(ledger, run(hop("a", 0, 3), hop("b", 3, 6)))
    shown = ledger.proof
    assert (shown.proof, shown.passed.text, shown.passed.at, shown.runs) == ("expected", " Paris.", NOW, 1)
    assert {peer: proof.verdict for peer, proof in shown.peers.items()} == {"a": "passed", "b": "passed"}
    assert shown.peers["a"].ms_per_token == 10.0


def test_a_fault_fails_its_peer_and_the_run_but_not_the_others():
    ledger = ProofLedger(expects=True)
    note(ledger, run(hop("a", 0, 3), hop("b", 3, 6, fault="went silent"), interrupted=True))
    assert ledger.proof.passed is None
    assert ledger.proof.last_failure == "peer b went silent"
    assert (ledger.proof.peers["a"].verdict, ledger.proof.peers["b"].verdict) == ("passed", "failed")
    assert (ledger.failing, ledger.proof.interrupted) == (frozenset({"b"}), 1)


def test_a_peer_without_room_keeps_the_verdict_it_had():
    ledger = ProofLedger(expects=True)
    note(ledger, run(hop("a", 0, 6)))
    note(ledger, run(hop("a", 0, 6, fault="has no room", busy=True, steps=0)), NOW + 20)
    assert ledger.proof.peers["a"].verdict == "passed"
    assert ledger.proof.peers["a"].passed_at == NOW
    assert ledger.proof.last_failure == ""


def test_a_hop_that_was_never_reached_is_not_judged():
    ledger = ProofLedger()
    note(
        ledger,
        run(hop("a", 0, 3, fault="does not answer", steps=0, left=None), hop("b", 3, 6, steps=0, left=None)),
    )
    assert set(ledger.proof.peers) == {"a"}


def test_costs_add_up_over_runs():
    ledger = ProofLedger(expects=True)
    for turn in range(3):
        note(ledger, run(hop("a", 0, 6)), NOW + turn)
    proof = ledger.proof.peers["a"]
    assert (proof.runs, proof.steps, proof.tokens) == (3, 12, 24)
    assert proof.compute_s == pytest.approx(0.06)
    assert ledger.proof.tokens == 24


def test_the_speed_told_is_the_median_of_late_runs():
    ledger = ProofLedger(expects=True)
    for speed in (1.0, 10.0, 12.0):
        note(ledger, run(hop("a", 0, 6), tokens_per_s=speed))
    assert ledger.proof.tokens_per_s == 10.0


def test_a_later_run_settles_a_dispute_also_about_those_who_are_not_in_it():
    ledger = ProofLedger()
    note(ledger, run(hop("a", 0, 6, left=(1.0, 2.0))))
    note(ledger, run(hop("b", 0, 6, left=(9.0, -2.0))))
    assert {proof.verdict for proof in ledger.proof.peers.values()} == {"disputed"}
    note(ledger, run(hop("c", 0, 6, left=(1.0, 2.0))))
    assert {peer: proof.verdict for peer, proof in ledger.proof.peers.items()} == {
        "a": "passed", "b": "failed", "c": "passed",
    }  # fmt: skip
    assert ledger.proof.proof == "agreement"


def test_text_of_the_other_end_is_cleaned_before_it_becomes_a_reason():
    ledger = ProofLedger(expects=True)
    note(ledger, run(hop("a", 0, 6, fault="refused: \u202e" + "<script>" * 1000)))
    reason = ledger.proof.peers["a"].reason
    assert len(reason) <= 100
    assert "\u202e" not in reason


def test_peers_that_are_gone_are_forgotten():
    ledger = ProofLedger(expects=True)
    note(ledger, run(hop("a", 0, 3), hop("b", 3, 6)))
    ledger.keep_only({"a"})
    note(ledger, run(hop("a", 0, 6)), NOW + 1)
    assert set(ledger.proof.peers) == {"a"}
    assert set(ledger.exercised_at) == {"a"}
