"""`swarm doctor`: says whether this machine is fit to take part, and what to do where it is not."""

import asyncio
import time
from collections.abc import Callable, Iterator

import click

from swarm.cli import checks
from swarm.cli.checks import Check, Status
from swarm.cli.output import print_json, print_result
from swarm.config import Paths, find_paths
from swarm.errors import SwarmError

_MARKS: dict[Status, str] = {"ok": "ok  ", "warn": "warn", "fail": "FAIL"}


@click.command("doctor")
@click.option(
    "--join", metavar="ADDRESS", multiple=True, help="Also ask a swarm: the address of a node of it."
)
@click.option("--port", type=click.IntRange(0, 65535), default=0, help="The TCP port to try; 0 is any.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@click.pass_context
def command(ctx: click.Context, join: tuple[str, ...], port: int, as_json: bool) -> None:
    """Check whether this machine is fit to take part.

    Exits with 1 when a check fails. Nothing is changed.
    """
    found: list[Check] = []
    for check in _checks(find_paths(), join, port):
        found.append(check())
        if not as_json:
            _print_check(found[-1])
    failed = any(check.status == "fail" for check in found)
    if as_json:
        print_json({"ok": not failed, "checks": found})
    ctx.exit(1 if failed else 0)


def _checks(paths: Paths, join: tuple[str, ...], port: int) -> Iterator[Callable[[], Check]]:
    yield checks.check_python
    yield checks.check_compute
    yield checks.check_memory
    yield lambda: checks.check_disk(paths.store_root)
    yield checks.check_daemon
    yield lambda: checks.check_port(port)
    yield checks.check_clock
    yield lambda: checks.check_models(paths.store_root)
    yield lambda: checks.check_identities(paths.identity_file("peer").parent)
    if join:
        yield lambda: asyncio.run(check_swarm(join))


async def check_swarm(join: tuple[str, ...]) -> Check:
    """Whether a swarm answers, agrees on the time, and what it hosts."""
    from swarm.network.directory import Directory
    from swarm.network.libp2p import Libp2pConfig, open_libp2p
    from swarm.security.identity import new_identity

    begun = time.perf_counter()
    try:
        async with open_libp2p(Libp2pConfig(join=join, client=True), new_identity()) as network:
            models = await Directory(network, time.time).models()
    except SwarmError as error:
        return Check("swarm", "fail", error.what, error.fix)
    what = f"answered in {time.perf_counter() - begun:.1f} s"
    if not models:
        return Check(
            "swarm", "warn", f"{what}; it hosts no model yet", "Be the first: swarm peer MODEL --join ADDRESS"
        )
    return Check("swarm", "ok", f"{what}; it hosts {', '.join(sorted({model.name for model in models}))}")


def _print_check(check: Check) -> None:
    print_result(f"{_MARKS[check.status]} {check.name}: {check.what}")
    if check.fix:
        print_result(f"     {check.fix}")
