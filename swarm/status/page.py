"""The page as HTML: from a state and the past, through templates that escape everything.

Pure but for reading its own templates. Nothing here asks anybody anything: a page is made from the
last state, whoever wants it and however often.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import lru_cache
from importlib.resources import files
from typing import Any

from jinja2 import Environment, FunctionLoader, StrictUndefined
from markupsafe import Markup

from swarm.plain_text import one_line
from swarm.status import plots
from swarm.status.health import Health
from swarm.status.history import RANGES, Point, Range
from swarm.status.snapshot import ModelStatus, PeerStatus, SwarmState
from swarm.status.view import HistoryView
from swarm.values import duration, parse_span, short_id

PEERS_SHOWN = 20  # of each model on the first page; the rest have pages of their own
PEERS_A_PAGE = 200
MODELS_SHOWN = 10
MAX_TEXT = 500  # characters in one place

_WORDS: dict[Health, str] = {
    "healthy": "working",
    "degraded": "working, with weak spots",
    "broken": "not working",
    "unknown": "not proven",
}
_RANK = {
    "failing": 0,
    "disputed": 1,
    "slow": 2,
    "joining": 3,
    "draining": 4,
    "incompatible": 5,
    "unproven": 6,
    "proven": 7,
    "gone": 8,
}


@dataclass(frozen=True, slots=True)
class Site:
    """What the operator set. `join` is shown to the world; it may be empty."""

    title: str = "swarm status"
    join: str = ""
    crawl_every_s: float = 10.0
    canary_every_s: float | None = 20.0


@dataclass(frozen=True, slots=True)
class Plot:
    """A picture of the past, and what it shows in words."""

    title: str
    picture: Markup
    top: str
    summary: str


def render_page(site: Site, state: SwarmState, history: HistoryView, range_: Range) -> str:
    """The page, with the past over one range."""
    shown = state.models[:MODELS_SHOWN]
    return (
        _templates()
        .get_template("page.html")
        .render(
            site=site,
            state=state,
            history=history,
            range=range_,
            ranges=list(RANGES),
            models=shown,
            models_hidden=len(state.models) - len(shown) + state.models_left_out,
            plots={
                model.manifest: plots_of(
                    history.points.get((model.manifest, range_), ()), range_, history.read_at
                )
                for model in shown
            },
            peers={model.manifest: by_gravity(model.peers)[:PEERS_SHOWN] for model in shown},
        )
    )


def render_peers(site: Site, state: SwarmState, model: ModelStatus, page: int) -> str:
    """One page of a model's peers; the first is 1."""
    ordered = by_gravity(model.peers)
    start = (page - 1) * PEERS_A_PAGE
    return (
        _templates()
        .get_template("peers.html")
        .render(
            site=site,
            state=state,
            model=model,
            peers=ordered[start : start + PEERS_A_PAGE],
            page=page,
            pages=max(1, -(-len(ordered) // PEERS_A_PAGE)),
        )
    )


def by_gravity(peers: Sequence[PeerStatus]) -> list[PeerStatus]:
    """Peers with trouble first, else in the order they have: by their blocks."""
    return sorted(peers, key=lambda peer: _RANK[peer.condition])


def headline(state: SwarmState) -> str:
    """The whole state in a few words."""
    if state.blind:
        return "This page cannot see the swarm"
    if not state.models:
        return "The swarm hosts no model yet"
    if len(state.models) == 1:
        return f"{state.models[0].name} is {_WORDS[state.models[0].health]}"
    working = sum(model.health in ("healthy", "degraded") for model in state.models)
    if working == len(state.models):
        return f"All {working} models are working"
    return f"{working} of {len(state.models)} models are working"


def plots_of(points: Sequence[Point], range_: Range, now: float) -> list[Plot]:
    """The past of a model, five ways."""
    wanted: list[tuple[str, list[float | None], str, float]] = [
        ("Availability", [_times(point.availability, 100) for point in points], "%", 100.0),
        ("Peers on the weakest block", [float(point.replicas) for point in points], "", 0.0),
        ("Tokens/s", [point.tokens_per_s for point in points], "", 0.0),
        ("Peers", [point.peers for point in points], "", 0.0),
        ("Sessions resumed", [float(point.resumed) for point in points], "", 0.0),
    ]
    resolution = RANGES[range_]
    made = []
    for title, values, unit, top in wanted:
        top = top or _round_up(max((value for value in values if value is not None), default=0.0))
        series = plots.Series(
            [p.at for p in points], values, now - resolution.kept_s, now, resolution.point_s, top
        )
        draw = plots.bars if title.startswith("Sessions") else plots.line
        made.append(Plot(title, draw(series), f"{_number(top)}{unit}", _in_words(values, unit)))
    return made


def _times(value: float | None, factor: float) -> float | None:
    return None if value is None else value * factor


def _in_words(values: Sequence[float | None], unit: str) -> str:
    known = [value for value in values if value is not None]
    if not known:
        return "nothing recorded yet"
    low, high, last = (f"{_number(value)}{unit}" for value in (min(known), max(known), known[-1]))
    return f"{last} throughout" if low == high else f"now {last}, between {low} and {high}"


def _round_up(value: float) -> float:
    """The next of 1, 2, 5, 10, 20, ..."""
    size = 1.0
    while size < value:
        size *= 2.5 if str(size)[0] == "2" else 2
    return size


def _number(value: float | None) -> str:
    if value is None:
        return "–"
    return f"{value:,.0f}" if value >= 100 or value == int(value) else f"{value:.3g}"


def _time(at: float | None, kind: str = "clock") -> Markup:
    """A moment; a script turns it into the reader's own time. `kind` is clock, date or ago."""
    if at is None:
        return Markup("never")
    moment = datetime.fromtimestamp(at, UTC)
    shown = moment.strftime("%-d %b %H:%M UTC" if kind == "date" else "%H:%M:%S UTC")
    return Markup('<time datetime="{}" data-kind="{}">{}</time>').format(
        moment.strftime("%Y-%m-%dT%H:%M:%SZ"), kind, shown
    )


def _coverage_words(model: ModelStatus) -> str:
    """The coverage picture for those who do not see it."""
    runs: list[tuple[int, int, int]] = []
    for block, count in enumerate(model.coverage):
        if runs and runs[-1][2] == count:
            runs[-1] = (runs[-1][0], block + 1, count)
        else:
            runs.append((block, block + 1, count))
    told = [f"blocks {start}:{end} have {count}" for start, end, count in runs[:20]]
    return f"Working peers by block: {', '.join(told)}{' and so on' if len(runs) > 20 else ''}."


def _as_argument(name: str) -> str:
    """A model's name for a command that strangers will paste into a shell; anyone may have chosen it."""
    return name if re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._/-]*", name) else "MODEL"


def _harmless(value: object) -> object:
    """The last look at whatever a template writes; most of it has been cleaned long before."""
    return one_line(value, MAX_TEXT) if type(value) is str else value


@lru_cache(maxsize=1)
def _templates() -> Environment:
    folder = files("swarm.status") / "templates"
    environment = Environment(
        loader=FunctionLoader(lambda name: (folder / name).read_text(encoding="utf-8")),
        autoescape=True,
        finalize=_harmless,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    filters: dict[str, Any] = {
        "time": _time,
        "duration": duration,
        "short_id": short_id,
        "number": _number,
        "argument": _as_argument,
        "coverage_words": _coverage_words,
        "coverage": lambda model: plots.coverage(model.claimed, model.coverage),
        "span_bar": lambda peer, model: plots.span_bar(
            parse_span(peer.blocks), model.num_blocks, peer.condition
        ),
        "share_bar": plots.share_bar,
        "word": lambda health: _WORDS[health],
        "headline": headline,
    }
    environment.filters |= filters
    return environment
