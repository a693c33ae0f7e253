"""Command lines as people find them in files, read by the real command line without being run."""

import re
import shlex
from collections.abc import Sequence
from pathlib import Path

import click

from swarm.cli.main import build_group

_ENDS = {"|", "||", "&&", ";", ">", ">>", "2>", "&"}


def parse(words: Sequence[str], config: Path | None = None) -> click.Context:
    """The context of the command that `swarm WORDS` would run. Raises what the command line raises."""
    command: click.Command = build_group()
    options = ["--config", str(config)] if config else []
    ctx = command.make_context("swarm", [*options, *words])
    while isinstance(command, click.Group):
        name, found, rest = command.resolve_command(ctx, [*ctx._protected_args, *ctx.args])
        assert found is not None
        command, ctx = found, found.make_context(name, rest, parent=ctx)
    return ctx


def swarm_words(line: str) -> list[str] | None:
    """What follows `swarm` in a line of shell, or None when the line runs something else."""
    words = shlex.split(line, comments=True)
    starts = [index for index, word in enumerate(words) if Path(word).name == "swarm" and word != "/swarm"]
    if not starts:
        return None
    rest = words[starts[0] + 1 :]
    end = next((index for index, word in enumerate(rest) if word in _ENDS), len(rest))
    return rest[:end]


def shell_lines(script: str) -> list[str]:
    """The lines of a shell script or a session, continued ones joined, comments and prompts gone."""
    joined = re.sub(r"\\\n\s*", " ", script)
    lines = (line.strip().removeprefix("$ ") for line in joined.splitlines())
    return [line for line in lines if line and not line.startswith("#")]
