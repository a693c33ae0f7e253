"""Who is there when: the comings and goings of volunteers, drawn from distributions or read from a file.

A trace is a list of stays, in the order they begin. The same settings and seed draw the same one.
"""

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

import numpy as np

from swarm.errors import UsageError

HOUR_S, DAY_S = 3600.0, 86400.0
WARM_UP_S = 3 * HOUR_S  # before the time that is measured begins, at 0
FILLED_WITHIN_S = 600.0  # those who are there at first come within so long
REGIONS = 4
OUTAGE_EVERY_S, OUTAGE_LASTS_S = 6 * HOUR_S, 0.5 * HOUR_S
HERD_PEERS = 200
PLANNED_SHARE = 0.6  # of the stays that end with a word to the others; the rest end without
SESSION_SIGMA, SIZE_SIGMA, SPEED_SIGMA = 1.0, 0.7, 0.5  # of the logarithms
MEDIAN_BLOCKS_PER_S = 400.0

Shape = Literal["steady", "diurnal", "regions", "herd"]


@dataclass(frozen=True, slots=True)
class Stay:
    """One volunteer's peer from start to end. Times are seconds since the time that is measured began."""

    peer: str
    from_s: float
    until_s: float
    fits_blocks: int
    blocks_per_s: float  # of one session, one token at a time
    planned: bool  # its end is announced


@dataclass(frozen=True, slots=True)
class TraceSettings:
    """How a trace is drawn."""

    shape: Shape = "diurnal"
    peers: int = 1000  # volunteers; so many of them are there at a time as `online_share` says
    blocks: int = 80
    hours: float = 24.0
    capacity: float = 3.0  # how often the peers that are there could host the model, on average
    online_share: float = 0.2
    median_session_s: float = 2 * HOUR_S
    seed: int = 0


def draw(settings: TraceSettings) -> list[Stay]:
    """Draw a trace."""
    rng = np.random.default_rng(settings.seed)
    sizes = rng.lognormal(0.0, SIZE_SIGMA, settings.peers)
    sizes *= settings.capacity * settings.blocks / (settings.online_share * sizes.sum())
    speeds = MEDIAN_BLOCKS_PER_S * rng.lognormal(0.0, SPEED_SIGMA, settings.peers)
    stays: list[Stay] = []
    for index in range(settings.peers):
        fits = int(np.clip(round(float(sizes[index])), 1, settings.blocks))
        for from_s, until_s in _times(settings, rng):
            planned = bool(rng.random() < PLANNED_SHARE)
            stays.append(Stay(f"v{index:05}", from_s, until_s, fits, float(speeds[index]), planned))
    if settings.shape == "regions":
        stays = _cut_by_outages(stays, settings, rng)
    if settings.shape == "herd":
        stays += _herd(stays, settings)
    return sorted(stays, key=lambda stay: (stay.from_s, stay.peer))


def _times(settings: TraceSettings, rng: np.random.Generator) -> list[tuple[float, float]]:
    """When one volunteer comes and goes."""
    mean_stay_s = settings.median_session_s * float(np.exp(SESSION_SIGMA**2 / 2))
    mean_gap_s = mean_stay_s * (1 - settings.online_share) / settings.online_share
    end_s, times = settings.hours * HOUR_S, []
    at = -WARM_UP_S + float(rng.uniform(0, FILLED_WITHIN_S))
    if rng.random() >= settings.online_share:
        at += float(rng.exponential(mean_gap_s))
    while at < end_s:
        if settings.shape != "steady" and rng.random() > _wakefulness(at):
            at += float(rng.exponential(HOUR_S))
            continue
        stay_s = settings.median_session_s * float(rng.lognormal(0.0, SESSION_SIGMA))
        times.append((at, at + stay_s))
        at += stay_s + float(rng.exponential(mean_gap_s))
    return times


def _wakefulness(at_s: float) -> float:
    """How willing people are to start their machines: least at night."""
    return float(0.6 + 0.4 * np.sin(2 * np.pi * at_s / DAY_S))


def _cut_by_outages(stays: list[Stay], settings: TraceSettings, rng: np.random.Generator) -> list[Stay]:
    """Again and again a whole region goes without a word, and comes back half an hour later."""
    outages = []
    at = OUTAGE_EVERY_S / 2
    while at < settings.hours * HOUR_S:
        outages.append((at, int(rng.integers(REGIONS))))
        at += OUTAGE_EVERY_S
    kept = []
    for stay in stays:
        region = int(stay.peer[1:]) % REGIONS
        for out_s, where in outages:
            if where == region and stay.from_s < out_s < stay.until_s:
                kept.append(_with(stay, until_s=out_s, planned=False))
                stay = _with(stay, from_s=min(stay.until_s, out_s + OUTAGE_LASTS_S))
        if stay.from_s < stay.until_s:
            kept.append(stay)
    return kept


def _herd(stays: list[Stay], settings: TraceSettings) -> list[Stay]:
    """Two hundred that come in the same second, and go one by one."""
    at = settings.hours * HOUR_S / 3
    models = [stays[index % len(stays)] for index in range(HERD_PEERS)]
    return [
        _with(stay, peer=f"h{index:05}", from_s=at, until_s=at + HOUR_S + 30.0 * index)
        for index, stay in enumerate(models)
    ]


def _with(stay: Stay, **changes: object) -> Stay:
    return Stay(**(asdict(stay) | changes))


def read(path: Path) -> list[Stay]:
    """A trace of one's own: a JSON object a line, with the fields of `Stay`. Raises `UsageError`."""
    stays = []
    for number, line in enumerate(path.read_text().splitlines(), 1):
        try:
            stays.append(Stay(**json.loads(line)))
        except (ValueError, TypeError) as error:
            raise UsageError(
                f"Line {number} of {path.name} is not a stay: {error}",
                f"Write a JSON object with {', '.join(Stay.__annotations__)}.",
            ) from error
    return sorted(stays, key=lambda stay: (stay.from_s, stay.peer))
