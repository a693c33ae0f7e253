"""`swarm gateway`: an OpenAI-compatible HTTP server, and a chat page, on top of a swarm."""

import asyncio
from collections.abc import Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import TYPE_CHECKING

import click

from swarm.cli.client_options import ClientFlags, client_options
from swarm.cli.fetching import fetch_ends
from swarm.cli.output import note, print_json, print_result
from swarm.cli.params import DURATION, HOST_PORT, SIZE
from swarm.cli.runtime import run_service
from swarm.cli.supervisor import notify
from swarm.errors import UsageError
from swarm.lifetime import Stopped, unless_stopped, until_stopped

if TYPE_CHECKING:
    from swarm.gateway.app import GatewayConfig


def _add_key(ctx: click.Context, param: click.Parameter, value: tuple[Path, str] | None) -> None:
    if value is None or ctx.resilient_parsing:
        return
    from swarm.gateway.auth import add_key

    path, name = value
    print_result(add_key(path, name))
    note(f"Its hash is in {path}; the key itself is nowhere else. Start with --keys {path}.")
    ctx.exit()


@click.command("gateway")
@click.argument("models", metavar="MODEL...", nargs=-1)
@client_options
@click.option(
    "--listen",
    type=HOST_PORT,
    default="127.0.0.1:8000",
    metavar="HOST:PORT",
    help="Where to listen; port 0 is any.",
)
@click.option(
    "--keys",
    type=click.Path(dir_okay=False, path_type=Path),
    help="File of API keys; without it everyone on this machine may ask, and nobody else.",
)
@click.option(
    "--new-key",
    nargs=2,
    type=(click.Path(dir_okay=False, path_type=Path), str),
    metavar="FILE NAME",
    is_eager=True,  # nothing else is needed for it, not even --join
    expose_value=False,
    callback=_add_key,
    help="Add a key to a file of keys, print it once, and end.",
)
@click.option("--cors", multiple=True, metavar="ORIGIN", help="Let web pages of this origin ask.")
@click.option("--max-running", type=click.IntRange(1), default=64, help="Replies in the making at once.")
@click.option(
    "--max-waiting", type=click.IntRange(0), default=256, help="Requests that may wait for their turn."
)
@click.option("--max-wait", type=DURATION, default="60s", help="How long a request may wait for its turn.")
@click.option("--deadline", type=DURATION, default="10m", help="How long a reply may take.")
@click.option(
    "--keep", type=DURATION, default="5m", help="How long a reader may come back to a broken stream."
)
@click.option("--max-body", type=SIZE, default="8MiB", help="Largest body of a request.")
@click.option("--strict", is_flag=True, help="Refuse fields that nobody knows; else a header names them.")
@click.option("--drain", type=DURATION, default="30s", help="How long replies may go on after Ctrl-C.")
@click.option("--until-eof", is_flag=True, help="Also stop when standard input ends.")
@click.option("--json", "as_json", is_flag=True, help="Print events as lines of JSON.")
def command(
    models: tuple[str, ...],
    client: ClientFlags,
    listen: tuple[str, int],
    keys: Path | None,
    cors: tuple[str, ...],
    max_running: int,
    max_waiting: int,
    max_wait: float,
    deadline: float,
    keep: float,
    max_body: int,
    strict: bool,
    drain: float,
    until_eof: bool,
    as_json: bool,
) -> None:
    """Serve MODELs (cached names or directories) of a swarm to any OpenAI client.

    The address works as base URL with /v1 behind it; opened in a browser it is a chat page. The
    first Ctrl-C lets replies end and takes no new ones; the second stops at once.
    """
    if not models:
        raise UsageError("No model is named", "Name one or more: swarm gateway MODEL --join ADDR.")
    from swarm.gateway.admission import AdmissionLimits
    from swarm.gateway.app import GatewayConfig

    host, port = listen
    config = GatewayConfig(
        host=host,
        port=port,
        keys=keys,
        origins=frozenset(cors),
        limits=AdmissionLimits(max_running, max_waiting, max_wait),
        deadline_s=deadline,
        kept_s=keep,
        max_body_bytes=max_body,
        strict=strict,
    )
    run_service(lambda stop: _serve(models, client, config, drain, as_json, stop), until_eof=until_eof)


async def _serve(
    models: Sequence[str],
    flags: ClientFlags,
    config: "GatewayConfig",
    drain_s: float,
    as_json: bool,
    stop: asyncio.Event,
) -> None:
    from swarm.gateway.app import Gateway

    try:
        await unless_stopped(stop, fetch_ends(models, flags.manifest, flags.join))
    except Stopped:
        return
    async with AsyncExitStack() as stack:
        clients = await flags.open_all(models)
        stack.push_async_callback(clients[0].close)
        gateway = Gateway(clients, config)
        stack.push_async_callback(gateway.close)
        url = await gateway.serve()
        notify("READY=1")
        _tell(url, list(gateway.models), as_json)
        await until_stopped(stop, clients[0].network)
        if running := gateway.gate.running:
            note(f"Stopping: {running} replies have {drain_s:.0f} s to end. Ctrl-C again stops at once.")
        await gateway.drain(drain_s)


def _tell(url: str, models: list[str], as_json: bool) -> None:
    if as_json:
        print_json(
            {"event": "listening", "url": url, "api": f"{url}/v1", "page": f"{url}/", "models": models}
        )
        return
    print_result(f"OpenAI base URL: {url}/v1    models: {', '.join(models)}")
    print_result(f"Chat page: {url}/")
