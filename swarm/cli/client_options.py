"""The options of every command that asks a swarm: where to join, how to sample, when to give up."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

import click

from swarm.cli.fetching import MANIFEST_HELP, fetch_ends
from swarm.cli.output import StatusLine, note
from swarm.cli.params import DURATION

if TYPE_CHECKING:
    from swarm.client.client import Client
    from swarm.model.sampling import Sampling
    from swarm.session.rules import Exactness, SparePolicy

Command = TypeVar("Command", bound=Callable[..., Any])

_SAMPLING = ("temperature", "top_p", "top_k", "min_p", "seed", "repetition_penalty")
_CLIENT = (
    "join",
    "manifest",
    "patience",
    "lease",
    "dtype",
    "recovery",
    "spares",
    "local_fallback",
    "threads",
)


@dataclass(frozen=True, slots=True)
class ClientFlags:
    """How to reach a swarm and behave towards it."""

    join: tuple[str, ...]
    manifest: tuple[str, ...]
    patience: float
    lease: float
    dtype: str | None
    recovery: "Exactness"
    spares: "SparePolicy"
    local_fallback: bool
    threads: int
    waiting: StatusLine = field(default_factory=StatusLine)

    async def open(self, model: str) -> "Client":
        """Fetch what is missing of the ends of the model, load them and join."""
        await fetch_ends([model], self.manifest, self.join)
        (client,) = await self.open_all([model])
        return client

    async def open_all(self, models: Sequence[str]) -> "list[Client]":
        """Load the ends of the models and join, with one node for all."""
        import torch

        from swarm.client.client import Client, ClientOptions

        torch.set_num_threads(self.threads)
        options = ClientOptions(
            patience_s=self.patience,
            lease_s=self.lease,
            dtype=self.dtype,
            recovery=self.recovery,
            spares=self.spares,
            local_fallback=self.local_fallback,
            on_wait=lambda error: self.waiting.show(f"Waiting: {error.what}."),
            on_local=lambda text: note(f"{text}."),
        )
        return await Client.open_all(models, join=self.join, options=options)


def client_options(function: Command) -> Command:
    """Adds the options; the command is given them as `client: ClientFlags`."""
    options = (
        click.option("--join", multiple=True, required=True, metavar="ADDRESS", help="A node of the swarm."),
        click.option(
            "--manifest",
            multiple=True,
            metavar="FILE|DIGEST",
            help=MANIFEST_HELP,
        ),
        click.option("--patience", type=DURATION, default="30s", help="How long to wait for missing blocks."),
        click.option(
            "--lease", type=DURATION, default="2s", help="Silence after which a peer counts as lost."
        ),
        click.option(
            "--dtype", type=click.Choice(["fp32", "bf16", "fp16"]), help="Only peers that compute in it."
        ),
        click.option(
            "--recovery",
            type=click.Choice(["auto", "fast", "exact"]),
            default="auto",
            help="Rebuild a lost peer's state in large chunks, or step by step to the same bits; "
            "auto is exact where chunks could change a token and the history is short.",
        ),
        click.option(
            "--spares",
            type=click.Choice(["off", "auto", "always"]),
            default="auto",
            help="Let other peers follow the conversation, ready to take over; auto where it is worth it.",
        ),
        click.option("--local-fallback", is_flag=True, help="Run blocks that nobody hosts on this machine."),
        click.option(
            "--threads", type=click.IntRange(1, 1024), default=1, help="Threads for the model's ends."
        ),
    )
    return _gather(function, "client", _CLIENT, ClientFlags, options)


def sampling_options(function: Command) -> Command:
    """Adds the options; the command is given those that were set as `sampling: SamplingFlags`."""
    options = (
        click.option("--temperature", type=float, help="0 always takes the likeliest token."),
        click.option("--top-p", type=float, help="Only the likeliest tokens with this probability together."),
        click.option("--top-k", type=int, help="Only so many of the likeliest tokens; 0 for all."),
        click.option("--min-p", type=float, help="Only tokens so likely relative to the likeliest."),
        click.option("--seed", type=int, help="The same seed gives the same reply."),
        click.option("--repetition-penalty", type=float, help="Above 1 discourages what was said already."),
    )
    return _gather(function, "sampling", _SAMPLING, SamplingFlags, options)


class SamplingFlags:
    """The sampling options that were set; the model's own defaults hold for the rest."""

    def __init__(self, **flags: Any) -> None:
        self._set = {name: value for name, value in flags.items() if value is not None}

    def over(self, defaults: "Sampling") -> "Sampling":
        """The defaults with what was set."""
        from dataclasses import replace

        return replace(defaults, **self._set)


def _gather(
    function: Command, name: str, fields: tuple[str, ...], make: Callable[..., Any], options: tuple[Any, ...]
) -> Command:
    def wrapped(**arguments: Any) -> Any:
        arguments[name] = make(**{field: arguments.pop(field) for field in fields})
        return function(**arguments)

    wrapped.__doc__ = function.__doc__
    wrapped.__click_params__ = list(getattr(function, "__click_params__", []))  # type: ignore[attr-defined]
    for option in reversed(options):
        option(wrapped)
    return wrapped  # type: ignore[return-value]
