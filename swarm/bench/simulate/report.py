"""Runs a trace under each rule and tells what came of it: for people, for machines, and as a picture."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from swarm.bench.simulate.requests import Replies, Requests
from swarm.bench.simulate.rules import Chance, Ours, Petals, Rule
from swarm.bench.simulate.trace import HOUR_S, Stay
from swarm.bench.simulate.world import SimTally, World

RECORD_BYTES = 450  # a signed record, about
RENEW_EVERY_S = 10.0
WIDTH, HEIGHT = 720, 160
COLOURS = {"ours": "#1a7f37", "petals": "#bf8700", "random": "#cf222e"}


@dataclass(frozen=True, slots=True)
class RunSettings:
    """What is played."""

    peers: int  # volunteers in the trace
    blocks: int
    hours: float
    requests_per_hour: float = 60.0
    rules: tuple[str, ...] = ("ours", "petals", "random")
    seed: int = 0


@dataclass(frozen=True, slots=True)
class Played:
    """A trace played under one rule."""

    rule: str
    tally: SimTally
    replies: Replies


@dataclass(frozen=True, slots=True)
class Report:
    """A trace played under all rules. The first is ours."""

    settings: RunSettings
    played: tuple[Played, ...]

    @property
    def block_s(self) -> float:
        """Blocks times seconds."""
        return self.settings.blocks * self.settings.hours * HOUR_S

    def coverage(self, played: Played) -> float:
        """The share of block-time in which somebody served the block."""
        return 1 - played.tally.hole_block_s / self.block_s

    def to_json(self) -> dict[str, object]:
        """One object; `coverage` and what follows are those of the first rule."""
        first = self.played[0]
        by_rule = {each.rule: round(self.coverage(each), 7) for each in self.played}
        by_rule["oracle"] = round(1 - first.tally.unhosted_block_s / self.block_s, 7)
        return {
            "peers": self.settings.peers,
            "blocks": self.settings.blocks,
            "hours": self.settings.hours,
            "coverage": by_rule[first.rule],
            "coverage_by_rule": by_rule,
            "errors": first.replies.errors,
            "moves_per_peer_day": round(_moves_per_peer_day(first.tally), 4),
            "weakest_to_oracle": round(_weakest_share(first.tally), 4),
        }

    def lines(self) -> list[str]:
        """For a person."""
        return [line for each in self.played for line in self._lines(each)]

    def _lines(self, played: Played) -> list[str]:
        tally, replies = played.tally, played.replies
        stalls_s = np.array(replies.stalls_s or [0.0])
        median_s, late_s = np.quantile(stalls_s, [0.5, 0.95])
        peers, moves = float(np.mean(tally.peers)), _moves_per_peer_day(tally)
        per_s = peers / RENEW_EVERY_S + tally.fetched_records / (self.settings.hours * HOUR_S)
        decision_ms = 1e3 * tally.decisions_s / max(1, tally.decisions)
        return [
            f"{played.rule}: {self.coverage(played):.4%} of block-time served, {peers:.0f} peers on average",
            f"  the weakest blocks bear {_weakest_share(tally):.2f} of what all peers together could",
            f"  {moves:.2f} moves per peer-day, {moves / 24:.4f} per peer-hour",
            f"  {replies.completed} replies at {np.mean(replies.tokens_per_s or [0.0]):.1f} tokens/s, "
            f"{replies.errors} errors while every block was served, "
            f"{replies.unhosted} given up for want of a block",
            f"  {len(replies.stalls_s)} stalls: median {median_s:.2f} s, p95 {late_s:.2f} s, "
            f"longest {stalls_s.max():.1f} s",
            f"  directory, for placement: {per_s:.0f} records/s, {per_s * RECORD_BYTES / 1e3:.0f} kB/s "
            f"in all; {decision_ms:.2f} ms a decision",
        ]


def simulate(
    stays: Sequence[Stay], settings: RunSettings, on_rule: Callable[[str], None] = lambda name: None
) -> Report:
    """Play the trace under each rule."""
    made: list[Rule] = [rule for rule in (Ours(), Petals(), Chance()) if rule.name in settings.rules]
    played = []
    for rule in made:
        on_rule(rule.name)
        world = World(rule, settings.blocks, stays, settings.hours * HOUR_S)
        requests = Requests(world, settings.requests_per_hour, settings.seed)
        played.append(Played(rule.name, world.run(), requests.replies))
    return Report(settings, tuple(played))


def picture(report: Report) -> str:
    """Two plots over time as SVG: blocks that are served, and what the weakest bear, for each rule."""
    plots: tuple[tuple[str, Callable[[SimTally], Sequence[float]]], ...] = (
        ("share of the blocks that are served", lambda tally: tally.covered),
        ("what the weakest blocks bear, of what all peers together could", _weakest_shares),
    )
    parts = []
    for index, (title, values) in enumerate(plots):
        top = 20 + index * (HEIGHT + 40)
        parts.append(f'<text x="8" y="{top - 4}">{title}, 0 to 1, over {report.settings.hours:g} h</text>')
        parts.append(
            f'<rect x="0" y="{top}" width="{WIDTH}" height="{HEIGHT}" fill="none" stroke="#d0d7de"/>'
        )
        parts += [_line(values(each.tally), top, COLOURS[each.rule]) for each in report.played]
    for index, each in enumerate(report.played):
        parts.append(f'<text x="{400 + 90 * index}" y="16" fill="{COLOURS[each.rule]}">{each.rule}</text>')
    height = 2 * (HEIGHT + 40)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" '
        f'font-family="sans-serif" font-size="12">{"".join(parts)}</svg>\n'
    )


def _line(values: Sequence[float], top: int, colour: str) -> str:
    across = WIDTH / max(1, len(values) - 1)
    points = " ".join(
        f"{index * across:.1f},{top + HEIGHT * (1 - value):.1f}" for index, value in enumerate(values)
    )
    return f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="1.5"/>'


def _moves_per_peer_day(tally: SimTally) -> float:
    return tally.moves / max(1e-9, tally.peer_s / (24 * HOUR_S))


def _weakest_share(tally: SimTally) -> float:
    return float(np.sum(tally.weakest) / max(1e-9, np.sum(tally.fair)))


def _weakest_shares(tally: SimTally) -> list[float]:
    return [low / max(1e-9, high) for low, high in zip(tally.weakest, tally.fair, strict=True)]
