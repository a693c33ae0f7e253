"""Writes docs/cli.md from the `--help` of every command; `--check` only compares.

Run as `python -m swarm.cli.reference [--check]` in the repository root.
"""

from collections.abc import Iterator
from pathlib import Path

import click

from swarm.cli.main import build_group

TARGET = Path("docs/cli.md")
_WIDTH = 100
_HEAD = """# Command line

Written from the commands' own `--help` by `python -m swarm.cli.reference`; do not edit by hand.

Options take effect in the order defaults < configuration file < environment < flags. The file is TOML with
one table for each command (`[peer]`, `[model.pull]`) whose keys are flags without their dashes; the options
before the command are in `[swarm]`. Results go to stdout, everything else to stderr.

| exit code | meaning |
|---|---|
| 0 | done |
| 1 | failed |
| 2 | the call is wrong |
| 69 | no route: nobody answers, or nobody hosts some blocks |
| 78 | this machine or its configuration cannot do it |
| 130 | interrupted |
"""


def reference() -> str:
    """The whole page."""
    group = build_group()
    sections = [f"## {path}\n\n```text\n{text}\n```\n" for path, text in _helps(group, "swarm", None)]
    return "\n".join([_HEAD, *sections])


def _helps(command: click.Command, name: str, parent: click.Context | None) -> Iterator[tuple[str, str]]:
    """(path, help) of a command and of all below it."""
    settings = {**command.context_settings, "max_content_width": _WIDTH, "terminal_width": _WIDTH}
    ctx = click.Context(command, info_name=name, parent=parent, **settings)
    yield ctx.command_path, command.get_help(ctx)
    if isinstance(command, click.Group):
        for below in command.list_commands(ctx):
            found = command.get_command(ctx, below)
            if found is not None:
                yield from _helps(found, below, ctx)


@click.command("reference")
@click.option("--check", is_flag=True, help="Only say whether the page is up to date.")
@click.pass_context
def main(ctx: click.Context, check: bool) -> None:
    """Write docs/cli.md."""
    text = reference()
    if not check:
        TARGET.write_text(text, encoding="utf-8")
    elif not TARGET.exists() or TARGET.read_text(encoding="utf-8") != text:
        click.echo(f"{TARGET} is not up to date: run python -m swarm.cli.reference", err=True)
        ctx.exit(1)


if __name__ == "__main__":
    main()
