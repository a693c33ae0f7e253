"""When something is wrong, since when, and why: incidents out of one state after another.

Pure. An incident is open as long as its cause holds; what is merely thin (a block with one peer) or
not proven is shown by the state and is no incident.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, NamedTuple

from swarm.status.snapshot import ModelStatus, SwarmState
from swarm.values import short_id

MAX_PEERS = 20  # of one model with an incident each; more are told by the model's own
Kind = Literal["outage", "peer", "blind"]


class IncidentKey(NamedTuple):
    """What an incident is about. `model` is a manifest digest, empty for the page itself."""

    kind: Kind
    model: str
    peer: str


@dataclass(frozen=True, slots=True)
class Incident:
    """Something that was, or is, wrong. `ended_at` is None while it is."""

    number: int
    kind: Kind
    model: str
    model_name: str
    peer: str
    cause: str
    began_at: float  # Unix seconds
    ended_at: float | None


@dataclass(frozen=True, slots=True)
class IncidentCause:
    """What to tell about an incident."""

    model_name: str
    cause: str


def troubles(state: SwarmState) -> dict[IncidentKey, IncidentCause]:
    """Everything that is wrong in a state. While the page is blind it knows of nothing but that."""
    if state.blind:
        told = "The directory does not answer this page; nothing is known of the swarm"
        return {IncidentKey("blind", "", ""): IncidentCause("", told)} if state.seen_at is not None else {}
    found: dict[IncidentKey, IncidentCause] = {}
    for model in state.models:
        if model.health == "broken":
            found[IncidentKey("outage", model.manifest, "")] = IncidentCause(model.name, _sentence(model))
        failing = [peer for peer in model.peers if peer.condition == "failing"]
        for peer in failing[:MAX_PEERS]:
            cause = f"Peer {short_id(peer.peer)} ({peer.blocks}) {peer.reason or 'failed its canary'}"
            found[IncidentKey("peer", model.manifest, peer.peer)] = IncidentCause(model.name, cause)
    return found


def ended(
    open_now: Mapping[IncidentKey, int], found: Mapping[IncidentKey, IncidentCause], state: SwarmState
) -> list[int]:
    """The numbers of the incidents that are over. Nothing ends unseen, while the page is blind."""
    if state.blind:
        return []
    return [number for key, number in open_now.items() if key not in found]


def _sentence(model: ModelStatus) -> str:
    text = model.reasons[0] if model.reasons else "canaries fail"
    return text[:1].upper() + text[1:]
