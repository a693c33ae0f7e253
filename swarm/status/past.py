"""What the page knows of the past at one moment, read from the history in one go.

Values only; the thread that owns the file makes them.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from swarm.status.history import RANGES, Contributor, History, Point, Range
from swarm.status.incidents import Incident
from swarm.status.snapshot import SwarmState


@dataclass(frozen=True, slots=True)
class Past:
    """Incidents, contributors, and points by model and range."""

    read_at: float = 0.0
    incidents: tuple[Incident, ...] = ()
    contributors: tuple[Contributor, ...] = ()
    points: Mapping[tuple[str, Range], tuple[Point, ...]] = field(default_factory=dict)

    def availability(self, model: str) -> float | None:
        """Share of the last 24 hours in which the model worked, of those in which it is known."""
        known = [point.availability for point in self.points.get((model, "24h"), ())]
        shares = [share for share in known if share is not None]
        return sum(shares) / len(shares) if shares else None


def read_past(history: History, state: SwarmState) -> Past:
    """Everything that page and API tell of the past."""
    return Past(
        read_at=state.at,
        incidents=tuple(history.incidents()),
        contributors=tuple(history.contributors()),
        points={
            (model.manifest, name): tuple(history.points(model.manifest, name, state.at))
            for model in state.models
            for name in RANGES
        },
    )
