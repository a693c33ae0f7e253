"""Pictures as inline SVG: the coverage of a model block by block, and the past as small plots.

Pure: numbers in, markup out; no text from anybody goes in here. Shapes only and sized by CSS, so that
one picture serves a phone and a wall; labels stand beside it as HTML. Colours are classes.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from markupsafe import Markup

from swarm.values import Span

WIDTH, HEIGHT = 1000, 120
PLOT_WIDTH, PLOT_HEIGHT = 600, 100
MAX_CELLS = 12  # replicas drawn one by one; beyond, a column is drawn to scale
MIN_CELLS = 3


def coverage(claimed: Sequence[int], working: Sequence[int]) -> Markup:
    """A column a block: a cell for each working peer, hatched ones for peers that fail, none for a hole."""
    tallest = max(MIN_CELLS, max(claimed, default=0))
    width = WIDTH / max(1, len(working))
    gap = min(3.0, width / 5)
    shapes = []
    for block, (said, proven) in enumerate(zip(claimed, working, strict=True)):
        left = block * width + gap / 2
        if proven == 0:
            shapes.append(_rect("hole", left, 0, width - gap, HEIGHT))
        shapes += _column(left, width - gap, _Column(proven, said, tallest))
    return _svg("coverage", WIDTH, HEIGHT, shapes)


def span_bar(span: Span, num_blocks: int, condition: str) -> Markup:
    """Where a peer's blocks are in its model."""
    scale = 100 / max(1, num_blocks)
    bar = _rect(condition, span.start * scale, 0, max(1.0, len(span) * scale), 8)
    return _svg("bar", 100, 8, [_rect("track", 0, 0, 100, 8), bar])


def share_bar(share: float) -> Markup:
    """A part of a whole, 0 to 1."""
    return _svg("bar", 100, 8, [_rect("track", 0, 0, 100, 8), _rect("share", 0, 0, max(0.5, 100 * share), 8)])


@dataclass(frozen=True, slots=True)
class Series:
    """Values over time; None where there are none, which leaves a gap."""

    times: Sequence[float]
    values: Sequence[float | None]
    start: float
    end: float
    step: float  # between neighbouring points
    top: float  # the value at the upper edge; the lower is 0


def line(series: Series) -> Markup:
    """A line with the area below it."""
    shapes = list(_grid())
    for run in _runs(series):
        points = " ".join(f"{x:.1f},{y:.1f}" for x, y in run)
        first, last = run[0][0], run[-1][0]
        shapes.append(
            f'<polygon class="area" points="{first:.1f},{PLOT_HEIGHT} {points} {last:.1f},{PLOT_HEIGHT}"/>'
        )
        shapes.append(f'<polyline class="line" points="{points}"/>')
    return _svg("plot", PLOT_WIDTH, PLOT_HEIGHT, shapes)


def bars(series: Series) -> Markup:
    """A bar for each value above 0."""
    width = max(2.0, 0.8 * PLOT_WIDTH * series.step / max(1.0, series.end - series.start))
    shapes = list(_grid())
    for time, value in zip(series.times, series.values, strict=True):
        if value:
            x, y = _place(series, time, value)
            shapes.append(_rect("column", x, y, width, PLOT_HEIGHT - y))
    return _svg("plot", PLOT_WIDTH, PLOT_HEIGHT, shapes)


def badge(label: str, text: str, colour: str) -> str:
    """A small label for another page. `label` and `text` are ours, not a peer's."""
    left, right = 7 * len(label) + 14, 7 * len(text) + 14
    width = left + right
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="20" role="img" '
        f'aria-label="{label}: {text}"><title>{label}: {text}</title>'
        f'<clipPath id="r"><rect width="{width}" height="20" rx="4"/></clipPath><g clip-path="url(#r)">'
        f'<rect width="{left}" height="20" fill="#30363d"/>'
        f'<rect x="{left}" width="{right}" height="20" fill="{colour}"/></g>'
        '<g fill="#fff" font-family="Verdana,DejaVu Sans,sans-serif" font-size="11" text-anchor="middle">'
        f'<text x="{left / 2}" y="14">{label}</text>'
        f'<text x="{left + right / 2}" y="14">{text}</text></g></svg>'
    )


@dataclass(frozen=True, slots=True)
class _Column:
    working: int
    claimed: int
    tallest: int


def _column(left: float, width: float, column: _Column) -> list[str]:
    kind = "one" if column.working == 1 else "many"
    if column.tallest <= MAX_CELLS:
        cell = HEIGHT / column.tallest
        classes = [kind] * column.working + ["failing"] * (column.claimed - column.working)
        return [
            _rect(name, left, HEIGHT - (level + 1) * cell + 2, width, cell - 2)
            for level, name in enumerate(classes)
        ]
    scale = HEIGHT / column.tallest
    good, bad = column.working * scale, (column.claimed - column.working) * scale
    return [
        _rect(name, left, HEIGHT - below - height, width, height)
        for name, below, height in ((kind, 0.0, good), ("failing", good, bad))
        if height > 0
    ]


def _runs(series: Series) -> list[list[tuple[float, float]]]:
    """Points that stand side by side in time. A lone one becomes a short stroke."""
    runs: list[list[tuple[float, float]]] = []
    previous: float | None = None
    for time, value in zip(series.times, series.values, strict=True):
        if value is None:
            previous = None
            continue
        if previous is None or time - previous > 1.5 * series.step:
            runs.append([])
        runs[-1].append(_place(series, time, value))
        previous = time
    return [run if len(run) > 1 else [run[0], (run[0][0] + 4, run[0][1])] for run in runs]


def _place(series: Series, time: float, value: float) -> tuple[float, float]:
    across = (time - series.start) / max(1.0, series.end - series.start)
    up = min(1.0, value / series.top) if series.top > 0 else 0.0
    return min(1.0, max(0.0, across)) * PLOT_WIDTH, 2 + (1 - up) * (PLOT_HEIGHT - 2)


def _grid() -> list[str]:
    return [f'<line class="grid" x1="0" x2="{PLOT_WIDTH}" y1="{y}" y2="{y}"/>' for y in (2, 51, PLOT_HEIGHT)]


def _rect(name: str, x: float, y: float, width: float, height: float) -> str:
    return f'<rect class="{name}" x="{x:.2f}" y="{y:.2f}" width="{width:.2f}" height="{height:.2f}"/>'


def _svg(name: str, width: int, height: int, shapes: Sequence[str]) -> Markup:
    return Markup(  # noqa: S704 - numbers and our own class names only
        f'<svg class="{name}" viewBox="0 0 {width} {height}" preserveAspectRatio="none" '
        f'aria-hidden="true" focusable="false">{"".join(shapes)}</svg>'
    )
