"""`swarm chaos`: break a small swarm on this machine in every way, and see whether a token changes."""

from collections.abc import Sequence
from contextlib import aclosing
from typing import TYPE_CHECKING, Protocol

import click

from swarm.cli.output import note, print_json, print_result, progress
from swarm.cli.runtime import run_command
from swarm.errors import UsageError

if TYPE_CHECKING:
    from swarm.bench.chaos.runner import ChaosConfig
    from swarm.bench.chaos.scenarios import Scenario
    from swarm.session.rules import SparePolicy

EXIT_BROKEN = 1


class _Line(Protocol):
    """What is reported, one at a time."""

    def to_json(self) -> dict[str, object]: ...
    def row(self) -> tuple[str, ...]: ...


@click.command("chaos")
@click.argument("names", nargs=-1, metavar="[SCENARIO]...")
@click.option("--list", "only_list", is_flag=True, help="Print the scenarios and end.")
@click.option("--model", help="A cached model or a directory. [default: a tiny random one]")
@click.option("--seed", type=int, default=0, help="The same seed gives the same prompts and the same faults.")
@click.option(
    "--spares",
    type=click.Choice(["off", "auto", "always"]),
    default="auto",
    help="Whether replicas follow the sessions.",
)
@click.option(
    "--soak", type=click.IntRange(1), metavar="SESSIONS", help="Run so many sessions through random faults."
)
@click.option(
    "--failure-table", is_flag=True, help="Measure the speed at failure probabilities, by strategy."
)
@click.option("--json", "as_json", is_flag=True, help="Print a line of JSON for each scenario.")
def command(
    names: tuple[str, ...],
    only_list: bool,
    model: str | None,
    seed: int,
    spares: "SparePolicy",
    soak: int | None,
    failure_table: bool,
    as_json: bool,
) -> int:
    """Run real peers on this machine, break them, and compare every token with an undisturbed reply.

    Without a SCENARIO all are run, which takes about ten minutes. The exit status is 1 if a token
    was wrong, a bound was missed, or anything was left behind.
    """
    from swarm.bench.chaos.runner import ChaosConfig
    from swarm.bench.chaos.scenarios import SCENARIOS, choose

    if only_list:
        for scenario in SCENARIOS:
            print_result(f"{scenario.name:20} {scenario.summary}")
        return 0
    if bool(names) + bool(soak) + failure_table > 1:
        raise UsageError(
            "Scenarios, --soak and --failure-table are three different runs", "Choose one of them."
        )
    config = ChaosConfig(model, seed, spares)
    if soak:
        return run_command(_soak(config, soak, as_json))
    if failure_table:
        return run_command(_failure_table(config, as_json))
    return run_command(_scenarios(config, choose(names), as_json))


async def _scenarios(config: "ChaosConfig", scenarios: "Sequence[Scenario]", as_json: bool) -> int:
    from swarm.bench.chaos.runner import COLUMNS, open_harness, run_scenarios

    _prepare()
    results = []
    async with open_harness(config) as harness, aclosing(run_scenarios(harness, scenarios)) as running:
        async for result in running:
            results.append(result)
            note(f"{result.scenario}: {'passed' if result.passed else 'FAILED'}")
            _print_line(result, as_json)
    _print_table(COLUMNS, results, as_json)
    return 0 if all(result.passed for result in results) else EXIT_BROKEN


async def _soak(config: "ChaosConfig", sessions: int, as_json: bool) -> int:
    from swarm.bench.chaos.runner import COLUMNS, open_harness
    from swarm.bench.chaos.soak import soak

    _prepare()
    async with open_harness(config) as harness:
        with progress() as show:
            result = await soak(harness, sessions, lambda done, total: show("Sessions", done, total))
    _print_line(result, as_json)
    _print_table(COLUMNS, [result], as_json)
    return 0 if result.passed else EXIT_BROKEN


async def _failure_table(config: "ChaosConfig", as_json: bool) -> int:
    from swarm.bench.chaos.failure_table import COLUMNS, failure_table
    from swarm.bench.chaos.runner import open_harness

    _prepare()
    cells = []
    async with open_harness(config) as harness, aclosing(failure_table(harness)) as measuring:
        async for cell in measuring:
            cells.append(cell)
            note(f"{cell.probability:g} {cell.strategy}: {cell.steps_per_s:.1f} steps/s")
            _print_line(cell, as_json)
    _print_table(COLUMNS, cells, as_json)
    return 0 if all(cell.tokens_ok for cell in cells) else EXIT_BROKEN


def _prepare() -> None:
    import torch

    torch.set_num_threads(1)  # the peers compute on the same cores
    note("Starting a swarm ...")


def _print_line(line: _Line, as_json: bool) -> None:
    if as_json:
        print_json(line.to_json())


def _print_table(columns: Sequence[str], lines: Sequence[_Line], as_json: bool) -> None:
    """In Markdown, so that it can be put into a page as it is."""
    if as_json:
        return
    rows = [line.row() for line in lines]
    widths = [max(map(len, column)) for column in zip(columns, *rows, strict=True)]
    for cells in (columns, ["-" * width for width in widths], *rows):
        print_result(
            "| " + " | ".join(cell.ljust(width) for cell, width in zip(cells, widths, strict=True)) + " |"
        )
