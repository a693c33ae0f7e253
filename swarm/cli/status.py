"""`swarm status`: the models of a swarm, whether they work, how each block is covered, and the peers."""

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import click

from swarm.cli.output import console, print_json, print_result
from swarm.cli.runtime import run_command
from swarm.config import known_peers_folder, store_root
from swarm.errors import NetworkError, UnknownModel

if TYPE_CHECKING:
    from rich.console import Console

    from swarm.status.observer import Observer
    from swarm.status.snapshot import ModelStatus, PeerStatus, SwarmState

WATCH_EVERY_S = 5.0
MAX_COLUMNS = 130  # as many as the largest models have blocks
_DIGITS = "·123456789"  # peers a block; more than nine are a plus
_COLOURS = {"healthy": "green", "degraded": "yellow", "broken": "red", "unknown": "blue"}
_EXPLAINED = ("failing", "disputed", "incompatible")
_PEER_COLOURS = {"proven": "green", "failing": "red", "disputed": "yellow", "slow": "yellow"}


@click.command("status")
@click.argument("model", required=False)
@click.option("--join", multiple=True, required=True, metavar="ADDRESS", help="A node of the swarm.")
@click.option("--prove", is_flag=True, help="Also ask every peer a short question, and check the answers.")
@click.option("--watch", is_flag=True, help="Look again every few seconds, until Ctrl-C.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object; with --watch, one a line.")
def command(model: str | None, join: tuple[str, ...], prove: bool, watch: bool, as_json: bool) -> None:
    """Show the models of a swarm (or one MODEL of it), their coverage by block, and their peers.

    Judges as the status page does. Without --prove only what peers claim is known, so that a model
    with a peer for every block is unknown, not healthy.
    """
    run_command(_status(join, model, prove, watch, as_json))


async def _status(join: tuple[str, ...], wanted: str | None, prove: bool, watch: bool, as_json: bool) -> None:
    async with _observer(join) as observer:
        while True:
            await observer.crawl()
            if prove:
                await observer.prove()
            state = await observer.state()
            if state.blind:
                raise NetworkError(
                    "The directory does not answer", "Check the --join address and the network."
                )
            _tell(_chosen(state, wanted), state.models_left_out, as_json, redraw=watch)
            if not watch:
                return
            await asyncio.sleep(WATCH_EVERY_S)


@asynccontextmanager
async def _observer(join: tuple[str, ...]) -> "AsyncIterator[Observer]":
    import torch

    from swarm.network.directory import Directory
    from swarm.network.libp2p import Libp2pConfig, Libp2pNetwork
    from swarm.network.rejoin import shared_peer_list
    from swarm.security.identity import new_identity
    from swarm.status.observer import Observer
    from swarm.status.watch import CanarySettings

    torch.set_num_threads(1)
    peer_list = shared_peer_list(known_peers_folder(), join)
    network = await Libp2pNetwork.start(
        Libp2pConfig(join=join, client=True, peer_list=peer_list), new_identity()
    )
    settings = CanarySettings(every_s=None, store_root=store_root())
    observer = Observer(network, Directory(network, time.time), settings, time.time)
    try:
        yield observer
    finally:
        await observer.close()
        await network.close()


def _chosen(state: "SwarmState", wanted: str | None) -> "list[ModelStatus]":
    chosen = [model for model in state.models if wanted in (None, model.name, model.manifest)]
    if wanted is not None and not chosen:
        known = ", ".join(sorted({model.name for model in state.models})) or "none"
        raise UnknownModel(f"The swarm hosts no model {wanted!r}", f"It hosts: {known}.")
    return chosen


def _tell(models: "Sequence[ModelStatus]", left_out: int, as_json: bool, redraw: bool) -> None:
    if as_json:
        print_json({"models": models})
        return
    screen = console()
    if redraw and screen.is_terminal:
        screen.clear()
    if not models:
        print_result("The swarm hosts no model yet. Host one: swarm peer MODEL --join ADDRESS")
    for model in models:
        _draw(screen, model)
    if left_out:
        screen.print(f"{left_out} more models are not shown.")


def _draw(screen: "Console", model: "ModelStatus") -> None:
    from rich.markup import escape

    heading = f"[bold]{escape(model.name)}[/]  {model.num_blocks} blocks, "
    heading += f"[{_COLOURS[model.health]}]{model.health}[/], "
    heading += f"{model.replicas} {'peer' if model.replicas == 1 else 'peers'} from an outage"
    if model.tokens_per_s is not None:
        heading += f", {model.tokens_per_s:.1f} tokens/s, first token after {model.ttft_s:.2f} s"
    screen.print(heading, highlight=False)
    screen.print(f"  [dim]manifest {escape(model.manifest)}[/]", highlight=False)
    for reason in model.reasons:
        screen.print(f"  {escape(reason)}", highlight=False)
    screen.print(f"  {coverage_line(model.coverage)}", highlight=False)
    _draw_peers(screen, model.peers)


def coverage_line(coverage: "Sequence[int]") -> str:
    """A character a block; where there are more than fit a line, the weakest of a few blocks each."""
    step = -(-len(coverage) // MAX_COLUMNS)
    weakest = [min(coverage[at : at + step]) for at in range(0, len(coverage), step)]
    return "".join(_DIGITS[count] if count < 10 else "+" for count in weakest)


def _draw_peers(screen: "Console", peers: "Sequence[PeerStatus]") -> None:
    from rich.markup import escape
    from rich.table import Table

    from swarm.values import duration

    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for heading in ("  peer", "name", "blocks", "seen as", "ms/token", "tokens/s", "dtype", "queue", "up"):
        table.add_column(heading)
    for peer in peers:
        colour = _PEER_COLOURS.get(peer.condition, "default")
        reason = (
            f" ({escape(peer.reason)})" if peer.condition in ("failing", "disputed", "incompatible") else ""
        )
        table.add_row(
            f"  …{peer.peer[-8:]}",
            escape(peer.name),
            peer.blocks,
            f"[{colour}]{peer.condition}[/]{reason}",
            f"{peer.ms_per_token:.1f}" if peer.ms_per_token is not None else "–",
            f"{peer.announced_tokens_per_s:.1f}",
            escape(peer.dtype),
            str(peer.queue_depth),
            duration(peer.uptime_s),
        )
    screen.print(table)
