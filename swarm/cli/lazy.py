"""A click group whose commands are imported when they are used, not when they are listed.

Also what every command gets here in one place: an environment variable for each option, named
after its flag, and its defaults from the configuration file.
"""

import copy
import importlib
from collections.abc import Callable, Mapping
from typing import Any

import click
from click.shell_completion import CompletionItem

from swarm.config import Table, check_names, did_you_mean
from swarm.errors import ConfigurationError

SharedOptions = Callable[[], list[click.Option]]


class LazyGroup(click.Group):
    """A group of the commands in `summaries` (name -> one line of help).

    The command `status-page` is the attribute `command` of the module `<package>.status_page`.
    Each command is also given the `shared_options`.
    """

    def __init__(
        self,
        package: str,
        summaries: Mapping[str, str],
        shared_options: SharedOptions,
        **settings: Any,
    ) -> None:
        super().__init__(**settings)
        self._package = package
        self._summaries = summaries
        self._shared_options = shared_options

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self._summaries)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name in self._summaries and cmd_name not in self.commands:
            self.commands[cmd_name] = self._load(cmd_name)
        return self.commands.get(cmd_name)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name = args[0]
        if name not in self._summaries and not name.startswith("-") and not ctx.resilient_parsing:
            ctx.fail(f"There is no command {name!r}. {did_you_mean(name, self._summaries)}")
        _, command, rest = super().resolve_command(ctx, args)
        if command is not None and ctx.default_map is not None and name in ctx.default_map:
            ctx.default_map = {**ctx.default_map, name: defaults_of(command, ctx.default_map[name], name)}
        return name, command, rest

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(self._summaries.items()))

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        items = [
            CompletionItem(name, help=summary)
            for name, summary in self._summaries.items()
            if name.startswith(incomplete)
        ]
        return items + click.Command.shell_complete(self, ctx, incomplete)

    def _load(self, name: str) -> click.Command:
        module = importlib.import_module(f"{self._package}.{name.replace('-', '_')}")
        return adapted(module.command, f"SWARM_{_as_variable(name)}", self._shared_options)


def adapted(command: click.Command, prefix: str, shared_options: SharedOptions) -> click.Command:
    """A copy of a command, and of all below it, with what all commands have in common.

    Every option can be set by the variable `prefix` + its flag and says so in its help; a command
    that does something itself also gets the shared options.
    """
    twin = copy.copy(command)
    if isinstance(twin, click.Group):
        twin.params = list(command.params)
        twin.commands = {
            name: adapted(below, f"{prefix}_{_as_variable(name)}", shared_options)
            for name, below in twin.commands.items()
        }
    else:
        twin.params = [*command.params, *shared_options()]
    twin.params = [with_variable(parameter, prefix) for parameter in twin.params]
    return twin


def with_variable(parameter: click.Parameter, prefix: str) -> click.Parameter:
    """A copy of an option that is also set by an environment variable; arguments stay as they are."""
    if not isinstance(parameter, click.Option) or parameter.envvar is not None:
        return parameter
    twin = copy.copy(parameter)
    twin.envvar = f"{prefix}_{_as_variable(_key_of(parameter))}"
    twin.show_envvar = not twin.hidden
    return twin


def defaults_of(command: click.Command, table: Table, where: str) -> dict[str, Any]:
    """A table of the configuration file as click's default map.

    Keys are flags without their dashes, names of arguments, or commands below. Raises
    `ConfigurationError` on any other, with the nearest one there is.
    """
    below = command.commands if isinstance(command, click.Group) else {}
    parameters = {_key_of(parameter): parameter.name or "" for parameter in command.params}
    table = {key.replace("_", "-"): value for key, value in table.items()}
    check_names(
        table,
        [*parameters, *below],
        f"The configuration file sets {{!r}} in [{where}]; it has no such option",
    )
    defaults: dict[str, Any] = {}
    for key, value in table.items():
        _check_is_table(value, key in below, f"{where}.{key}")
        if key in below:
            defaults[key] = defaults_of(below[key], value, f"{where}.{key}")
        else:
            defaults[parameters[key]] = value
    return defaults


def _check_is_table(value: object, is_command: bool, where: str) -> None:
    if isinstance(value, dict) != is_command:
        meant = "a command, so it needs a table" if is_command else "an option, so it needs a value"
        raise ConfigurationError(f"The configuration file is wrong at [{where}]", f"That is {meant}.")


def _key_of(parameter: click.Parameter) -> str:
    """How the configuration file names it: the longest flag without dashes."""
    return max(parameter.opts, key=len).lstrip("-").replace("_", "-")


def _as_variable(name: str) -> str:
    return name.upper().replace("-", "_")
