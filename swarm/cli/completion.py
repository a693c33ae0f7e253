"""`swarm completion`: the script that lets a shell complete swarm's commands and options."""

import click
from click.shell_completion import get_completion_class

from swarm.cli.output import print_result

SHELLS = ("bash", "zsh", "fish")


@click.command("completion")
@click.argument("shell", type=click.Choice(SHELLS))
@click.pass_context
def command(ctx: click.Context, shell: str) -> None:
    """Print the completion script of SHELL.

    \b
    bash:  swarm completion bash >> ~/.bashrc
    zsh:   swarm completion zsh >> ~/.zshrc
    fish:  swarm completion fish > ~/.config/fish/completions/swarm.fish
    """
    completion_class = get_completion_class(shell)
    if completion_class is None:
        ctx.fail(f"click cannot complete for {shell}")
    print_result(completion_class(ctx.find_root().command, {}, "swarm", "_SWARM_COMPLETE").source())
