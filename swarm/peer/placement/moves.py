"""Whether a peer should host other blocks than it does: rarely, never at a price, and one at a time.

A peer looks now and then, at moments of its own. It moves when what it would add elsewhere is clearly
more than what it adds here, for as long as it is expected to stay, the time to load included; and never
when any block it serves has no other peer. It says so in the directory first, and looks again before it
lets anything go: of two that rely on each other, at least the later one sees it and stays.
"""

from dataclasses import dataclass
from hashlib import blake2b

from swarm.peer.placement.choice import Ability, Placement, best_window, gain_of
from swarm.peer.placement.cover import SETTLED_AFTER_S, YOUNGEST_S, Claims, Cover, typical_rate
from swarm.values import PeerId, Span

HYSTERESIS = 4.0  # so many times more than here it must help elsewhere
LEAST_GAIN = 30.0  # by which a move must help; see the weights of `choice`
LEAST_LOOK_S, MOST_LOOK_S = 10.0, 600.0
SWARM_LOOKS_EVERY_S = 1.0  # all peers of a model together, however many they are


@dataclass(frozen=True, slots=True)
class PresentPlace:
    """Where a peer is now, how long it has been up, and what a move would cost it."""

    span: Span
    uptime_s: float
    load_s: float  # to load as many blocks as it hosts, and to measure them


def better_place(
    claims: Claims, num_blocks: int, ability: Ability, standing: PresentPlace
) -> Placement | None:
    """Where the peer should move to; None when it should stay, as nearly always."""
    others = claims.without(ability.peer)
    cover = Cover.of(others, num_blocks)
    if opens_hole(cover, standing.span):
        return None
    typical = typical_rate(others)
    here = gain_of(cover, ability, standing.span, typical)
    there = best_window(cover, ability, typical)
    stays_s = min(SETTLED_AFTER_S, max(YOUNGEST_S, standing.uptime_s))
    cost = max(0.0, here) * standing.load_s / stays_s  # of what it does here while it loads
    worth_it = there.gain - here > max(LEAST_GAIN, (HYSTERESIS - 1) * max(0.0, here)) + cost
    return there if worth_it and there.span != standing.span else None


def opens_hole(others: Cover, span: Span) -> bool:
    """Whether some block of the span would be served by nobody without this peer."""
    return bool((others.online[span.start : span.end] == 0).any())


def may_go(claims: Claims, num_blocks: int, own: PeerId, span: Span) -> bool:
    """Asked again once the directory has heard of the move: whether the others still serve the old span."""
    return not opens_hole(Cover.of(claims.without(own), num_blocks), span)


def next_look_s(peers: int, own: PeerId, looks: int) -> float:
    """How long until a peer looks again: the longer the more peers there are, so that the swarm as a whole
    looks about once a second; spread by the peer's id, so that they do not look together."""
    usual_s = min(MOST_LOOK_S, max(LEAST_LOOK_S, peers * SWARM_LOOKS_EVERY_S))
    draw = blake2b(f"{own}/{looks}".encode(), digest_size=4).digest()
    return float(usual_s * (0.5 + int.from_bytes(draw) / 2**32))
