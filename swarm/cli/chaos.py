"""`swarm chaos`: break a small swarm on this machine in every way, and see whether a token changes."""

from collections.abc import Sequence
from contextlib import aclosing
from typing import TYPE_CHECKING, Any

import click

from swarm.cli.output import note, print_json, print_result
from swarm.cli.runtime import run_command

if TYPE_CHECKING:
    from swarm.bench.chaos.runner import ChaosConfig
    from swarm.bench.chaos.scenarios import Scenario

EXIT_BROKEN = 1


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
@click.option("--json", "as_json", is_flag=True, help="Print a line of JSON for each scenario.")
def command(
    names: tuple[str, ...], only_list: bool, model: str | None, seed: int, spares: Any, as_json: bool
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
    return run_command(_run(ChaosConfig(model, seed, spares), choose(names), as_json))


async def _run(config: "ChaosConfig", scenarios: "Sequence[Scenario]", as_json: bool) -> int:
    import torch

    from swarm.bench.chaos.report import COLUMNS
    from swarm.bench.chaos.runner import run_scenarios

    torch.set_num_threads(1)  # the peers compute on the same cores
    note("Starting a swarm ...")
    results = []
    async with aclosing(run_scenarios(config, scenarios)) as running:
        async for result in running:
            results.append(result)
            if as_json:
                print_json(result.to_json())
            else:
                note(f"{result.scenario}: {'passed' if result.passed else 'FAILED'}")
    if not as_json:
        _print_table(COLUMNS, [result.row() for result in results])
    return 0 if all(result.passed for result in results) else EXIT_BROKEN


def _print_table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Markdown, so that it can be put into a page as it is."""
    widths = [max(map(len, column)) for column in zip(columns, *rows, strict=True)]
    for cells in (columns, ["-" * width for width in widths], *rows):
        print_result(
            "| " + " | ".join(cell.ljust(width) for cell, width in zip(cells, widths, strict=True)) + " |"
        )
