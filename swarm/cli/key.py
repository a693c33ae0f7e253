"""`swarm key`: make and show the identity that a peer or bootstrap node is known by."""

from pathlib import Path

import click

from swarm.cli.output import note, print_json, print_result
from swarm.config import identity_file
from swarm.errors import ConfigurationError, UsageError

_path_option = click.option(
    "--path",
    type=click.Path(dir_okay=False, path_type=Path),
    default=lambda: identity_file("peer"),
    show_default="the identity of swarm peer",
    help="The identity's file.",
)
_json_option = click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")


@click.group("key")
def command() -> None:
    """Make or show an identity.

    An identity is an Ed25519 key in a file that only you may read. The peer id is its public half:
    others know you by it, and your records are signed with it. Keep the file to keep the name.
    """


@command.command("new")
@_path_option
@_json_option
def new(path: Path, as_json: bool) -> None:
    """Make an identity. An existing one is never replaced."""
    if path.exists():
        raise ConfigurationError(
            f"There is an identity in {path} already",
            "Name another file with --path, or move that one away; who loses it loses its peer id.",
        )
    _print_identity(path, as_json)


@command.command("show")
@_path_option
@_json_option
def show(path: Path, as_json: bool) -> None:
    """Show the peer id of an identity."""
    if not path.exists():
        raise UsageError(f"There is no identity in {path}", "Make one with: swarm key new")
    _print_identity(path, as_json)


def _print_identity(path: Path, as_json: bool) -> None:
    from swarm.security.identity import load_or_create_identity

    peer_id = load_or_create_identity(path).peer_id
    if as_json:
        print_json({"peer_id": peer_id, "path": str(path)})
    else:
        print_result(peer_id)
        note(f"The key is in {path}")
