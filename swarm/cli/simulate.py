"""`swarm simulate`: play days of a big swarm in minutes, and compare the rules of placement."""

import json
from pathlib import Path

import click

from swarm.cli.output import note, print_json, print_result
from swarm.cli.params import DURATION


@click.command("simulate")
@click.option("--peers", type=click.IntRange(1, 100_000), default=1000, help="Volunteers who come and go.")
@click.option("--blocks", type=click.IntRange(1, 1024), default=80, help="Blocks of the model.")
@click.option("--hours", type=click.FloatRange(0.1, 24 * 60), default=24.0, help="Time that is measured.")
@click.option(
    "--capacity",
    type=click.FloatRange(0.1, 1000),
    default=3.0,
    help="How often the peers that are there could host the model, on average; each hosts a block at least.",
)
@click.option(
    "--online",
    type=click.FloatRange(0.01, 0.95),
    default=0.2,
    help="Share of them there at a time.",
)
@click.option("--session", "session_s", type=DURATION, default="2h", help="Median length of a stay.")
@click.option(
    "--shape",
    type=click.Choice(["steady", "diurnal", "regions", "herd"]),
    default="diurnal",
    help="Even; by day and night; with a quarter gone at once every six hours; with 200 that come at once.",
)
@click.option(
    "--trace",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Play the stays of this file of JSON lines instead.",
)
@click.option("--requests", "per_hour", type=click.FloatRange(0, 1e6), default=60.0, help="Requests an hour.")
@click.option("--only-ours", is_flag=True, help="Do not play the other rules for comparison.")
@click.option("--seed", type=click.IntRange(0), default=0, help="The same seed gives the same result.")
@click.option(
    "--svg", type=click.Path(dir_okay=False, writable=True, path_type=Path), help="Write a picture here."
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def command(
    peers: int,
    blocks: int,
    hours: float,
    capacity: float,
    online: float,
    session_s: float,
    shape: str,
    trace: Path | None,
    per_hour: float,
    only_ours: bool,
    seed: int,
    svg: Path | None,
    as_json: bool,
) -> None:
    """Play a swarm in which only time is simulated: peers and clients decide by the code that they run.

    Compared with placement by chance, Petals' rule as published, and what an oracle could host.
    """
    from swarm.bench.simulate.report import RunSettings, picture, simulate
    from swarm.bench.simulate.trace import TraceSettings, draw, read

    drawn = TraceSettings(shape, peers, blocks, hours, capacity, online, session_s, seed)  # type: ignore[arg-type]
    stays = read(trace) if trace else draw(drawn)
    rules = ("ours",) if only_ours else ("ours", "petals", "random")
    volunteers = len({stay.peer for stay in stays}) if trace else peers
    settings = RunSettings(volunteers, blocks, hours, per_hour, rules, seed)
    note(f"{len(stays)} stays")
    report = simulate(stays, settings, lambda name: note(f"Playing {name} ..."))
    if svg:
        svg.write_text(picture(report))
    if as_json:
        print_json(report.to_json())
        return
    for line in report.lines():
        print_result(line)
    print_result(f"oracle: {json.dumps(report.to_json()['coverage_by_rule'])}")
