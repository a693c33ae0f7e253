"""The state and the past as JSON objects of version 1 of the API, and incidents as an Atom feed.

Pure. Fields are added over time and never change their meaning; docs/operations.md describes them.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Any
from xml.etree import ElementTree as Xml

from swarm.status.history import Point, Range
from swarm.status.incidents import Incident
from swarm.status.page import headline
from swarm.status.snapshot import ModelStatus, SwarmState
from swarm.status.view import HistoryView

Json = dict[str, Any]
MAX_PEERS = 1000  # in one answer
_ATOM = "http://www.w3.org/2005/Atom"


def state_json(state: SwarmState, history: HistoryView) -> Json:
    """The swarm without its peers, bounded whatever its size."""
    return {
        "at": state.at,
        "seen_at": state.seen_at,
        "blind": state.blind,
        "health": state.health,
        "headline": headline(state),
        "models": [_model_summary(model, history) for model in state.models],
        "models_left_out": state.models_left_out,
        "open_incidents": sum(incident.ended_at is None for incident in history.incidents),
    }


def model_json(model: ModelStatus, history: HistoryView, offset: int, limit: int) -> Json:
    """A model with some of its peers."""
    peers = model.peers[offset : offset + min(limit, MAX_PEERS)]
    return _model_summary(model, history) | {"peers": [asdict(peer) for peer in peers], "offset": offset}


def find_model(state: SwarmState, name: str) -> ModelStatus | None:
    """By name or manifest digest; of several with one name, the one with most peers."""
    return next((model for model in state.models if name in (model.manifest, model.name)), None)


def peer_json(state: SwarmState, peer: str) -> Json | None:
    """Everything known of a peer now; None when it is unknown."""
    found = [
        {"model": model.name, "manifest": model.manifest, **asdict(status)}
        for model in state.models
        for status in model.peers
        if status.peer == peer
    ]
    return {"peer": peer, "hosting": found} if found else None


def history_json(model: ModelStatus, range_: Range, points: Sequence[Point]) -> Json:
    """The past of a model."""
    return {
        "model": model.name,
        "manifest": model.manifest,
        "range": range_,
        "points": [asdict(point) for point in points],
    }


def incidents_json(incidents: Sequence[Incident]) -> Json:
    """The latest incidents."""
    return {"incidents": [asdict(incident) for incident in incidents]}


def incidents_atom(title: str, incidents: Sequence[Incident], now: float) -> bytes:
    """The latest incidents as an Atom feed (RFC 4287)."""
    feed = Xml.Element("feed", xmlns=_ATOM)
    name = f"urn:swarm:incidents:{hashlib.sha256(title.encode()).hexdigest()[:16]}"
    _add(feed, "id", name)
    _add(feed, "title", f"Incidents: {title}")
    changes = [incident.ended_at or incident.began_at for incident in incidents]
    _add(feed, "updated", _moment(max(changes, default=now)))
    Xml.SubElement(feed, "link", rel="self", href="/incidents.atom")
    Xml.SubElement(Xml.SubElement(feed, "author"), "name").text = title
    for incident in incidents:
        entry = Xml.SubElement(feed, "entry")
        _add(entry, "id", f"{name}:{incident.number}")
        over = "Over: " if incident.ended_at is not None else ""
        _add(entry, "title", f"{over}{incident.cause}")
        _add(entry, "published", _moment(incident.began_at))
        _add(entry, "updated", _moment(incident.ended_at or incident.began_at))
        _add(
            entry,
            "summary",
            f"{incident.model_name}: {incident.cause}" if incident.model_name else incident.cause,
        )
        Xml.SubElement(entry, "link", href="/#incidents")
    return b'<?xml version="1.0" encoding="utf-8"?>\n' + Xml.tostring(feed, encoding="unicode").encode()


def _model_summary(model: ModelStatus, history: HistoryView) -> Json:
    fields = {name: getattr(model, name) for name in ModelStatus.__slots__ if name != "peers"}
    online = sum(peer.state == "online" for peer in model.peers)
    counts = {"peers_total": len(model.peers), "peers_online": online}
    return fields | counts | {"availability_24h": history.availability(model.manifest)}


def _add(parent: Xml.Element, tag: str, text: str) -> None:
    Xml.SubElement(parent, tag).text = text


def _moment(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
