"""`swarm doctor`: says whether this machine is fit to take part, and what to do where it is not."""

import asyncio
import contextlib
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import click

from swarm.cli import checks
from swarm.cli.checks import Check, Status
from swarm.cli.output import print_json, print_result
from swarm.config import Paths, find_paths
from swarm.errors import SwarmError

if TYPE_CHECKING:
    from swarm.network.libp2p import Libp2pNetwork

_REACH_TIMEOUT_S = 10.0
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

    def note_check(check: Check) -> None:
        found.append(check)
        if not as_json:
            _print_check(check)

    for check in _checks(find_paths(), port):
        note_check(check())
    if join:
        for each in asyncio.run(check_swarm(join, port)):
            note_check(each)
    failed = any(check.status == "fail" for check in found)
    if as_json:
        print_json({"ok": not failed, "checks": found})
    ctx.exit(1 if failed else 0)


def _checks(paths: Paths, port: int) -> Iterator[Callable[[], Check]]:
    yield checks.check_python
    yield checks.check_compute
    yield checks.check_memory
    yield lambda: checks.check_kernels(paths.store_root)
    yield lambda: checks.check_disk(paths.store_root)
    yield checks.check_daemon
    yield lambda: checks.check_port(port)
    yield checks.check_clock
    yield lambda: checks.check_models(paths.store_root)
    yield lambda: checks.check_identities(paths.identity_file("peer").parent)


async def check_swarm(join: tuple[str, ...], port: int) -> list[Check]:
    """Whether a swarm answers, agrees on the time, what it hosts, and whether it can dial this machine."""
    from swarm.network.daemon import listenable
    from swarm.network.directory import Directory
    from swarm.network.libp2p import Libp2pConfig, open_libp2p
    from swarm.security.identity import new_identity

    begun = time.perf_counter()
    listen = listenable((f"0.0.0.0:{port}", f"[::]:{port}"))
    try:
        async with open_libp2p(
            Libp2pConfig(join=join, listen=listen, relay="never"), new_identity()
        ) as network:
            models = await Directory(network, time.time).models()
            answered_s = time.perf_counter() - begun
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_REACH_TIMEOUT_S):
                    await network.wait_changed()
            return [_swarm_found(sorted({model.name for model in models}), answered_s), _reach_found(network)]
    except SwarmError as error:
        return [Check("swarm", "fail", error.what, error.fix)]


def _swarm_found(models: list[str], answered_s: float) -> Check:
    what = f"answered in {answered_s:.1f} s"
    if not models:
        fix = "Be the first: swarm peer MODEL --join ADDRESS"
        return Check("swarm", "warn", f"{what}; it hosts no model yet", fix)
    return Check("swarm", "ok", f"{what}; it hosts {', '.join(models)}")


def _reach_found(network: "Libp2pNetwork") -> Check:
    if network.reach == "no":
        fix = "A peer here takes a relay by itself, if there is one; a forwarded port is faster."
        return Check("reach", "warn", "nobody of the swarm can connect to this machine", fix)
    if network.reach == "direct":
        return Check("reach", "ok", "others can connect to this machine")
    return Check("reach", "warn", "no node of the swarm could try to connect to this machine")


def _print_check(check: Check) -> None:
    print_result(f"{_MARKS[check.status]} {check.name}: {check.what}")
    if check.fix:
        print_result(f"     {check.fix}")
