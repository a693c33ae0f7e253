"""Who answers truly, when nobody here knows the right answer: peers compared with each other.

Pure. Each run sent the same question through a chain and kept a fingerprint of the hidden states at
the end of every hop. Two runs whose states are alike at one boundary and not at a later one have a
wrong peer between the two; where the stretches share no peer and come out alike, both are borne out.
A majority of peers that lie alike wins: this is a check of health, not of honesty.
"""

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Literal

Fingerprint = tuple[float, ...]  # a few random projections of a hidden state
Opinion = Literal["agreed", "outvoted", "disputed", "inconsistent", "alone"]

TOLERANCE = {"fp32": 0.02, "bf16": 0.15, "fp16": 0.05}  # relative, of peers that compute in it
TOLERANCE_QUANTIZED = 0.4


@dataclass(frozen=True, slots=True)
class Trace:
    """One hop of a run: who took the states to block `end`, and what came out."""

    peer: str
    end: int
    left: Fingerprint
    tolerance: float


Run = Sequence[Trace]  # from block 0 on; shorter than the model when a hop was lost


def tolerance_of(dtype: str, quantization: str) -> float:
    """How far a peer of these numerics may be off, relative to the size of the state."""
    return TOLERANCE.get(dtype, TOLERANCE_QUANTIZED) if quantization == "none" else TOLERANCE_QUANTIZED


def alike(left: Fingerprint, right: Fingerprint, tolerance: float) -> bool:
    """Whether two states differ by less than the tolerance, relative to the larger. NaN and infinity are
    like nothing."""
    distance = math.dist(left, right)
    return math.isfinite(distance) and distance <= tolerance * max(
        math.hypot(*left), math.hypot(*right), 1e-12
    )


def opinions(runs: Sequence[Run]) -> dict[str, Opinion]:
    """What the runs say about every peer in them."""
    allies: dict[str, set[str]] = defaultdict(set)
    opponents: dict[str, set[str]] = defaultdict(set)
    inconsistent: set[str] = set()
    for first, second in combinations(runs, 2):
        for ours, theirs, same in _stretches(first, second):
            if ours.isdisjoint(theirs):
                _note(allies if same else opponents, ours, theirs)
            elif not same and ours == theirs and len(ours) == 1:
                inconsistent |= ours
    peers = {trace.peer for run in runs for trace in run}
    told: dict[str, Opinion] = dict.fromkeys(inconsistent, "inconsistent")
    for peer in peers - inconsistent:
        told[peer] = _opinion(len(allies[peer] - inconsistent), len(opponents[peer] - inconsistent))
    return told


def _note(sides: dict[str, set[str]], ours: frozenset[str], theirs: frozenset[str]) -> None:
    for peer in ours:
        sides[peer] |= theirs
    for peer in theirs:
        sides[peer] |= ours


def _stretches(first: Run, second: Run) -> list[tuple[frozenset[str], frozenset[str], bool]]:
    """The peers of both runs between neighbouring shared boundaries, and whether they left alike.

    Only stretches that both runs entered alike.
    """
    found = []
    later = {trace.end: index for index, trace in enumerate(second)}
    ours_from = theirs_from = 0
    entered_alike = True
    for index, trace in enumerate(first):
        other_index = later.get(trace.end)
        if other_index is None:
            continue
        other = second[other_index]
        same = alike(trace.left, other.left, max(trace.tolerance, other.tolerance))
        if entered_alike:
            ours = frozenset(each.peer for each in first[ours_from : index + 1])
            theirs = frozenset(each.peer for each in second[theirs_from : other_index + 1])
            found.append((ours, theirs, same))
        ours_from, theirs_from, entered_alike = index + 1, other_index + 1, same
    return found


def _opinion(allies: int, opponents: int) -> Opinion:
    if not allies and not opponents:
        return "alone"
    votes = allies + 1  # its own
    if votes == opponents:
        return "disputed"
    return "agreed" if votes > opponents else "outvoted"
