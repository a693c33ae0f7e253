"""A node in a process of its own, for tests that kill it: serves an echo, prints its address, waits.

Arguments: how many seconds its clock is ahead, then the addresses to join.
"""

import asyncio
import dataclasses
import sys
import time

from swarm.network.channel import Channel
from swarm.network.libp2p import Libp2pConfig, Libp2pNetwork, open_libp2p
from swarm.security.identity import new_identity


async def echo(channel: Channel) -> None:
    while True:
        message, body = await channel.receive()
        await channel.send(message, body)


def set_clock_ahead(network: Libp2pNetwork, ahead_s: float) -> None:
    """What this node tells others as its time."""
    dht = network._node._dht
    dht._around = dataclasses.replace(dht._around, now=lambda: time.time() + ahead_s)


async def main(ahead_s: float, join: tuple[str, ...]) -> None:
    async with open_libp2p(Libp2pConfig(join=join), new_identity()) as network:
        if ahead_s:
            set_clock_ahead(network, ahead_s)
        await network.serve("/test/echo/1", echo)
        sys.stdout.write(f"{network.addresses[0]}\n")
        sys.stdout.flush()
        await asyncio.Event().wait()


asyncio.run(main(float(sys.argv[1]), tuple(sys.argv[2:])))
