"""Measures how soon peers are reached, and how soon a reply goes on after a link is back. Needs root.

    python tests/netns/measure.py [SECONDS AWAY ...]

Prints a table in Markdown. Each row is one run, between namespaces on this machine.
"""

import asyncio
import sys
import tempfile
from pathlib import Path

from hosts import Hosts, why_not
from programs import online, start_bootstrap, start_peer, start_reply, write_endless_model
from test_cut_links import replying

IDLE_S = 60
MOVES = (
    ("peer", "same address", False),
    ("peer", "other address", False),
    ("peer", "other network", False),
    ("peer", "same address", True),
    ("peer", "other network", True),
    ("client", "same address", False),
    ("client", "other network", False),
)


async def measured(what, run):
    hosts = Hosts()
    with tempfile.TemporaryDirectory(prefix="swarm-reach-") as home:
        try:
            hosts.open()
            row(what, await run(hosts, Path(home)))
        finally:
            hosts.close()


def row(what, value):
    sys.stdout.write(f"| {what} | {value} |\n")
    sys.stdout.flush()


async def first_token(hosts, home):
    """From the start of a hidden peer to the first token at a hidden client that was started with it."""
    model, programs = write_endless_model(home / "tiny"), []
    try:
        bootstrap, join = await start_bootstrap(hosts, home, hosts.add())
        programs.append(bootstrap)
        peer = await start_peer(hosts, home, hosts.add(hosts.add_router()), model, join, "0:6")
        client = await start_reply(hosts, home, hosts.add(hosts.add_router()), model, join, 5)
        programs += [peer, client]
        await client.begun_text(1)
        return f"{peer.now:.1f} s"
    finally:
        await asyncio.gather(*(program.end() for program in programs))


async def told(hosts, home):
    """From the start of a peer that nobody can dial and nobody relays for, to the word that says so."""
    model, programs = write_endless_model(home / "tiny"), []
    try:
        bootstrap, join = await start_bootstrap(hosts, home, hosts.add(), "--no-relay-for-others")
        programs.append(bootstrap)
        programs.append(await start_peer(hosts, home, hosts.add(hosts.add_router()), model, join, "0:6"))
        await programs[-1].event("reach")
        return f"{programs[-1].now:.1f} s"
    finally:
        await asyncio.gather(*(program.end() for program in programs))


async def idle(hosts, home):
    """Received and sent by a bootstrap node, with two idle peers."""
    model, programs = write_endless_model(home / "tiny"), []
    try:
        bootstrap, join = await start_bootstrap(hosts, home, hosts.add())
        programs.append(bootstrap)
        for span in ("0:3", "3:6"):
            programs.append(await start_peer(hosts, home, hosts.add(), model, join, span))
            await online(programs[-1])
        await asyncio.sleep(IDLE_S / 2)
        before = hosts.traffic_bytes(bootstrap.number)
        await asyncio.sleep(IDLE_S)
        after = hosts.traffic_bytes(bootstrap.number)
        rates = [(now - was) / IDLE_S / 1e3 for was, now in zip(before, after, strict=True)]
        return " and ".join(f"{rate:.2f} kB/s" for rate in rates)
    finally:
        await asyncio.gather(*(program.end() for program in programs))


def away(seconds, who, where, is_hidden):
    """A link that is away for so long, and comes back somewhere."""

    async def run(hosts, home):
        async with replying(hosts, home, is_hidden=is_hidden, patience_s=600) as (reply, _, peer, client):
            number = peer if who == "peer" else client
            hosts.set_link(number, "down")
            await asyncio.sleep(seconds)
            if where == "same address":
                hosts.set_link(number, "up")
            elif where == "other address":
                hosts.plug(number, hosts.places[number][0], number + 100)
            else:
                hosts.plug(number, hosts.add_router(), number)
            return await after(reply)

    return run


def one_way(seconds):
    """Everything from the peer to its client is lost for so long."""

    async def run(hosts, home):
        async with replying(hosts, home, patience_s=600) as (reply, _, peer, client):
            hosts.close_way(client, peer)
            await asyncio.sleep(seconds)
            hosts.open_way(client)
            return await after(reply)

    return run


async def after(reply):
    back = reply.now
    await reply.wait_for(lambda: reply.goes_on_after(back) is not None, "more text", 120)
    return f"{reply.goes_on_after(back) - back:.1f} s"


async def main(durations):
    row("what", "measured")
    row("---", "---")
    await measured("hidden peer, from start to the first token through a relay", first_token)
    await measured("an undialable peer's owner is told", told)
    for seconds in durations:
        for who, where, is_hidden in MOVES:
            hidden = ", behind a router" if is_hidden else ""
            await measured(f"{who} away {seconds} s{hidden}, {where}", away(seconds, who, where, is_hidden))
    await measured("one way cut for 20 s", one_way(20))
    await measured("two idle peers, in and out at the bootstrap node", idle)


if __name__ == "__main__":
    if reason := why_not(routers=True):
        sys.exit(reason)
    asyncio.run(main([int(word) for word in sys.argv[1:]] or [10, 60]))
