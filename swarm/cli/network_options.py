"""The options of every command that is a node others can reach: where to listen, whom to join, who it is."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from swarm.config import identity_file
from swarm.errors import UsageError

if TYPE_CHECKING:
    from swarm.network.libp2p import Libp2pConfig
    from swarm.security.identity import Identity

Command = TypeVar("Command", bound=Callable[..., Any])

_FIELDS = ("join", "listen", "announce", "relay", "relay_for_others", "identity_path")
_DEFAULT_LISTEN = ("0.0.0.0:0", "[::]:0")  # without the second where the machine has no IPv6


@dataclass(frozen=True, slots=True)
class NetworkOptions:
    """What was given on the command line."""

    role: str
    join: tuple[str, ...]
    listen: tuple[str, ...]
    announce: tuple[str, ...]
    relay: bool | None  # None: only when nobody can dial it
    relay_for_others: bool
    identity_path: Path | None

    @contextmanager
    def claim(self) -> Iterator[tuple["Identity", "Libp2pConfig"]]:
        """Who the node is and how it is to be started; the identity is held while the block runs."""
        from swarm.network.daemon import listenable
        from swarm.network.libp2p import Libp2pConfig
        from swarm.security.claim import claim_identity

        if self.relay and not self.join:
            raise UsageError("--relay needs a node to relay", "Name one with --join.")
        with claim_identity(self.identity_path, identity_file(self.role)) as claim:
            config = Libp2pConfig(
                join=self.join,
                listen=self.listen or listenable(_DEFAULT_LISTEN),
                announce=self.announce,
                relay="auto" if self.relay is None else "always" if self.relay else "never",
                relays_for_others=self.relay_for_others,
                peer_list=claim.path.with_suffix(".peers.json"),
            )
            yield claim.identity, config


def network_options(role: str) -> Callable[[Command], Command]:
    """Adds the options; the command is given them as `network: NetworkOptions`."""

    def decorate(function: Command) -> Command:
        def wrapped(**arguments: Any) -> Any:
            arguments.setdefault("relay", False)  # a bootstrap node is never behind another
            options = NetworkOptions(role, **{field: arguments.pop(field) for field in _FIELDS})
            return function(network=options, **arguments)

        wrapped.__doc__ = function.__doc__
        wrapped.__click_params__ = list(getattr(function, "__click_params__", []))  # type: ignore[attr-defined]
        for option in reversed(_options(role)):
            option(wrapped)
        return wrapped  # type: ignore[return-value]

    return decorate


def _options(role: str) -> tuple[Callable[[Any], Any], ...]:
    return (
        click.option("--join", multiple=True, metavar="ADDRESS", help="A node of the swarm to join."),
        click.option(
            "--listen",
            multiple=True,
            metavar="HOST:PORT",
            help="Where to listen; port 0 is any. [default: 0.0.0.0:0 and [::]:0]",
        ),
        click.option(
            "--announce", multiple=True, metavar="HOST:PORT", help="Where others reach it, if elsewhere."
        ),
        *(() if role == "bootstrap" else (_relay_option(),)),
        click.option(
            "--relay-for-others/--no-relay-for-others",
            default=role == "bootstrap",
            help="Pass the bytes of peers that nobody can dial. Only for a node that everybody can dial. "
            f"[default: {'yes' if role == 'bootstrap' else 'no'}]",
        ),
        click.option(
            "--identity",
            "identity_path",
            type=click.Path(dir_okay=False, path_type=Path),
            help=f"The key that names it. [default: that of swarm {role}, one for each that runs]",
        ),
    )


def _relay_option() -> Callable[[Any], Any]:
    text = "Be reached through a node that relays: always, or never. [default: when nobody can dial it]"
    return click.option("--relay/--no-relay", default=None, help=text)
