"""`swarm bootstrap`: a node that only introduces peers to each other."""

import asyncio
from typing import TYPE_CHECKING

import click

from swarm.cli.network_options import NetworkOptions, network_options
from swarm.cli.output import note, print_json, print_result
from swarm.cli.runtime import run_service
from swarm.cli.supervisor import notify
from swarm.lifetime import until_stopped

if TYPE_CHECKING:
    from swarm.network.transport import Network


@click.command("bootstrap")
@network_options(role="bootstrap")
@click.option("--until-eof", is_flag=True, help="Also leave when standard input ends.")
@click.option("--json", "as_json", is_flag=True, help="Print events as lines of JSON.")
def command(network: NetworkOptions, until_eof: bool, as_json: bool) -> None:
    """Run a node that introduces peers to each other. It hosts nothing and needs little.

    Its address stays the same as long as its identity, its port and its host's name do.
    """
    with network.claim() as (identity, config):

        async def serve(stop: asyncio.Event) -> None:
            from swarm.network.libp2p import Libp2pNetwork

            node = await Libp2pNetwork.start(config, identity)
            watching = asyncio.create_task(_tell_unreachable(node))
            try:
                notify("READY=1")
                _tell(identity.peer_id, node.addresses, as_json)
                await until_stopped(stop, node, [watching])
            finally:
                watching.cancel()
                await node.close()

        run_service(serve, until_eof=until_eof)


async def _tell_unreachable(node: "Network") -> None:
    """A node that introduces others is of no use where nobody can dial it: its owner is to know."""
    while True:
        await node.wait_changed()
        if node.why_unreachable:
            note(node.why_unreachable)


def _tell(peer_id: str, addresses: tuple[str, ...], as_json: bool) -> None:
    if as_json:
        print_json({"event": "joined", "peer": peer_id, "join": list(addresses)})
        return
    for address in addresses:
        print_result(f"Others join with: --join {address}")
