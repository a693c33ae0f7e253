"""`swarm bootstrap`: a node that only introduces peers to each other."""

import asyncio

import click

from swarm.cli.network_options import NetworkOptions, network_options
from swarm.cli.output import print_json, print_result
from swarm.cli.runtime import run_service
from swarm.lifetime import until_stopped


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
            try:
                _tell(identity.peer_id, node.addresses, as_json)
                await until_stopped(stop, node)
            finally:
                await node.close()

        run_service(serve, until_eof=until_eof)


def _tell(peer_id: str, addresses: tuple[str, ...], as_json: bool) -> None:
    if as_json:
        print_json({"event": "joined", "peer": peer_id, "join": list(addresses)})
        return
    for address in addresses:
        print_result(f"Others join with: --join {address}")
