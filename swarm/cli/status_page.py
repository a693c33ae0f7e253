"""`swarm status-page`: a public page that shows whether a swarm works, and proves it."""

import asyncio
import time
from pathlib import Path
from typing import TYPE_CHECKING

import click

from swarm.cli.output import note, print_json, print_result
from swarm.cli.params import DURATION, HOST_PORT, SIZE
from swarm.cli.runtime import run_service
from swarm.cli.supervisor import notify
from swarm.config import find_paths, known_peers_folder
from swarm.lifetime import until_stopped

if TYPE_CHECKING:
    from swarm.status.app import StatusPageConfig


@click.command("status-page")
@click.option("--join", multiple=True, required=True, metavar="ADDRESS", help="A node of the swarm.")
@click.option(
    "--listen",
    type=HOST_PORT,
    default="127.0.0.1:8090",
    metavar="HOST:PORT",
    help="Where to serve; port 0 is any.",
)
@click.option(
    "--host",
    "hosts",
    multiple=True,
    metavar="NAME",
    help="Answer under this name, too. Needed behind a proxy that passes the name on.",
)
@click.option("--database", type=click.Path(dir_okay=False, path_type=Path), help="Where history is kept.")
@click.option("--database-limit", type=SIZE, default="256MiB", help="How large it may grow.")
@click.option(
    "--model", "models", multiple=True, metavar="DIRECTORY", help="A model's files, besides those cached."
)
@click.option(
    "--canary-every", type=DURATION, default="20s", help="How often to prove each model; 0 is never."
)
@click.option("--title", default="swarm status", help="The page's name.")
@click.option("--show-join", default="", metavar="ADDRESS", help="An address to join, published on the page.")
@click.option("--until-eof", is_flag=True, help="Also leave when standard input ends.")
@click.option("--json", "as_json", is_flag=True, help="Print events as lines of JSON.")
def command(
    join: tuple[str, ...],
    listen: tuple[str, int],
    hosts: tuple[str, ...],
    database: Path | None,
    database_limit: int,
    models: tuple[str, ...],
    canary_every: float,
    title: str,
    show_join: str,
    until_eof: bool,
    as_json: bool,
) -> None:
    """Serve a page that shows the models of a swarm, their peers and their past.

    Works for a private swarm as for a public one. Models are proven by small generations; where this
    machine has a model's files (swarm model pull), against the answer it computes itself. Readable by
    everybody who reaches it: no address of a peer is on it, and none to join unless --show-join is given.
    """
    from swarm.model.store import resolve
    from swarm.status.app import StatusPageConfig
    from swarm.status.page import Site
    from swarm.status.watch import CanarySettings

    paths = find_paths()
    every_s = canary_every or None
    host, port = listen
    config = StatusPageConfig(
        database=database or paths.state_dir / "status.sqlite",
        host=host,
        port=port,
        hosts=hosts,
        site=Site(title=title, join=show_join, canary_every_s=every_s),
        canaries=CanarySettings(
            every_s, paths.store_root, tuple(resolve(m, paths.store_root) for m in models)
        ),
        limit_bytes=database_limit,
    )
    run_service(lambda stop: _serve(config, join, stop, as_json), until_eof=until_eof)


async def _serve(
    config: "StatusPageConfig", join: tuple[str, ...], stop: asyncio.Event, as_json: bool
) -> None:
    import torch

    from swarm.network.directory import Directory
    from swarm.network.libp2p import Libp2pConfig, Libp2pNetwork
    from swarm.network.rejoin import shared_peer_list
    from swarm.security.identity import new_identity
    from swarm.status.app import StatusPage

    def tell(url: str) -> None:
        notify("READY=1")
        if as_json:
            print_json({"event": "listening", "url": url})
        else:
            print_result(f"Status page: {url}")
            note("Serving until Ctrl-C.")

    torch.set_num_threads(1)  # a page beside peers must not take their cores
    peer_list = shared_peer_list(known_peers_folder(), join)
    network = await Libp2pNetwork.start(
        Libp2pConfig(join=join, client=True, peer_list=peer_list), new_identity()
    )
    try:
        page = StatusPage(config, network, Directory(network, time.time), time.time)
        await page.run(tell, until_stopped(stop, network))
    finally:
        await network.close()
