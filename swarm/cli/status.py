"""`swarm status`: the models of a swarm, how well each block is covered, and the peers."""

import time
from typing import TYPE_CHECKING

import click

from swarm.cli.output import print_json, print_result
from swarm.cli.runtime import run_command
from swarm.errors import UnknownModel

if TYPE_CHECKING:
    from rich.console import Console

    from swarm.status.snapshot import ModelStatus

_DIGITS = "·123456789"  # peers a block; more than nine are a plus


@click.command("status")
@click.argument("model", required=False)
@click.option("--join", multiple=True, required=True, metavar="ADDRESS", help="A node of the swarm.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def command(model: str | None, join: tuple[str, ...], as_json: bool) -> None:
    """Show the models of a swarm (or one MODEL of it), their coverage by block, and their peers."""
    models = run_command(_read(join, model))
    if as_json:
        print_json({"models": models})
    elif not models:
        print_result("The swarm hosts no model yet. Host one: swarm peer MODEL --join ADDRESS")
    else:
        _draw(models)


async def _read(join: tuple[str, ...], wanted: str | None) -> "list[ModelStatus]":
    from swarm.network.directory import Directory
    from swarm.network.libp2p import Libp2pConfig, Libp2pNetwork
    from swarm.security.identity import new_identity
    from swarm.status.snapshot import summarize
    from swarm.values import ModelDigest

    network = await Libp2pNetwork.start(Libp2pConfig(join=join, client=True), new_identity())
    try:
        directory = Directory(network, time.time)
        records = await directory.models()
        chosen = [record for record in records if wanted in (None, record.name, record.model)]
        if wanted is not None and not chosen:
            known = ", ".join(sorted({record.name for record in records})) or "none"
            raise UnknownModel(f"The swarm hosts no model {wanted!r}", f"It hosts: {known}.")
        return [
            summarize(record, await directory.snapshot(ModelDigest(record.model), record.num_blocks)) for record in chosen
        ]
    finally:
        await network.close()


def _draw(models: "list[ModelStatus]") -> None:
    from rich.console import Console

    console = Console()
    for model in models:
        state = "[green]whole[/]" if model.whole else f"[red]blocks {', '.join(model.missing)} missing[/]"
        weakest = f", weakest: {', '.join(model.weakest)} with {model.replicas}" if model.whole else ""
        console.print(f"[bold]{model.name}[/]  {model.num_blocks} blocks, {state}{weakest}", highlight=False)
        console.print(f"  {''.join(_DIGITS[count] if count < 10 else '+' for count in model.coverage)}", highlight=False)
        _draw_peers(console, model)


def _draw_peers(console: "Console", model: "ModelStatus") -> None:
    from rich.markup import escape
    from rich.table import Table

    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for heading in ("  peer", "name", "blocks", "state", "dtype", "tokens/s", "free tokens", "queue", "up"):
        table.add_column(heading)
    for peer in model.peers:
        table.add_row(
            f"  …{peer.peer[-8:]}",
            escape(peer.name),
            peer.blocks,
            peer.state,
            peer.dtype,
            f"{peer.decode_tokens_per_s:.1f}",
            str(peer.free_tokens),
            str(peer.queue_depth),
            _ago(peer.uptime_s),
        )
    console.print(table)


def _ago(seconds: float) -> str:
    for unit, length in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= length:
            return f"{seconds / length:.0f} {unit}"
    return f"{seconds:.0f} s"
