"""The command `swarm`: the table of its commands, and the one place where an error becomes an exit code.

Loading this module, and `swarm --help`, import neither torch nor hivemind nor any command.
Results go to stdout, everything else to stderr.
"""

import contextlib
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from types import FrameType
from typing import Any

import click

from swarm.cli.lazy import LazyGroup, defaults_of, with_variable
from swarm.config import config_file, load_config_file, software_version
from swarm.errors import DoesNotFit, SwarmError
from swarm.log import configure_logging
from swarm.memory import available_bytes, is_shortage
from swarm.plain_text import one_line
from swarm.values import format_size

COMMANDS = {
    "demo": "Start a small swarm on this machine and ask it a question.",
    "bootstrap": "Run a node that introduces peers to each other.",
    "peer": "Host blocks of a model for others.",
    "chat": "Talk with a model that a swarm hosts.",
    "generate": "Continue one prompt and print the result.",
    "gateway": "Serve a swarm to any OpenAI client, with a chat page.",
    "status": "Show the models of a swarm, their coverage and their peers.",
    "status-page": "Serve a page that shows whether a swarm works, and proves it.",
    "model": "Fetch, check and describe models.",
    "service": "Let the system keep a peer or a gateway running.",
    "key": "Make or show an identity.",
    "bench": "Measure how fast this machine is, alone and in a chain.",
    "chaos": "Break a small swarm on this machine and see whether a token changes.",
    "simulate": "Play days of a big swarm in minutes.",
    "plan": "Tell whether a model fits your machines, and how fast it would be.",
    "doctor": "Check whether this machine is fit to take part.",
    "completion": "Print the completion script of a shell.",
}
OWN_TABLE = "swarm"  # of the configuration file, for the options before the command

EXIT_FAILURE = 1
EXIT_INTERRUPTED = 130
EXIT_TERMINATED = 128 + signal.SIGTERM


def log_options(hidden: bool) -> list[click.Option]:
    """`-v`, `-q` and `--log-format`, which are understood before and after the command's name."""
    shared: dict[str, Any] = {"hidden": hidden, "expose_value": False, "callback": _apply_log_option}
    return [
        click.Option(
            ["-v", "--verbose"],
            count=True,
            show_default=False,
            help="Say more; -vv also lets libraries speak.",
            **shared,
        ),
        click.Option(["-q", "--quiet"], is_flag=True, help="Say nothing but errors.", **shared),
        click.Option(
            ["--log-format"], type=click.Choice(["human", "json"]), help="Lines of the log.", **shared
        ),
    ]


def _apply_log_option(ctx: click.Context, param: click.Parameter, value: object) -> None:
    settings = ctx.find_root().ensure_object(dict)
    if value:
        settings[param.name] = value
    verbosity = -1 if settings.get("quiet") else settings.get("verbose", 0)
    configure_logging(verbosity, settings.get("log_format", "human"))


def _read_config(ctx: click.Context, param: click.Parameter, value: Path | None) -> None:
    path = value or config_file()
    if ctx.resilient_parsing or (value is None and not path.exists()):
        return
    tables = load_config_file(path, [OWN_TABLE, *COMMANDS])
    own = defaults_of(ctx.command, tables.pop(OWN_TABLE, {}), OWN_TABLE)
    ctx.default_map = {**tables, **own}


def build_group() -> LazyGroup:
    """The whole command line, with nothing of it loaded yet."""
    config_option = click.Option(
        ["--config"],
        type=click.Path(dir_okay=False, path_type=Path),
        is_eager=True,
        expose_value=False,
        callback=_read_config,
        help="Read defaults from this TOML file, one table for each command.",
    )
    version_option = click.Option(
        ["--version"],
        is_flag=True,
        is_eager=True,
        expose_value=False,
        callback=_print_version,
        help="Print the version.",
    )
    own_options = [with_variable(option, "SWARM") for option in (config_option, *log_options(hidden=False))]
    return LazyGroup(
        "swarm.cli",
        COMMANDS,
        lambda: log_options(hidden=True),
        name="swarm",
        help="Run language models that are too big for one machine, together with others.",
        epilog="Every option can be set by its environment variable or in the configuration file. "
        "SWARM_HOME moves all files of swarm into one directory.",
        context_settings={"help_option_names": ["-h", "--help"], "show_default": True},
        params=[*own_options, version_option],
    )


def _print_version(ctx: click.Context, param: click.Parameter, value: bool) -> None:
    if value and not ctx.resilient_parsing:
        print(f"swarm {software_version()}")
        ctx.exit()


def run(arguments: Sequence[str]) -> int:
    """Run one command line; returns the exit code. Errors have been told on stderr."""
    try:
        result = build_group().main(list(arguments), prog_name="swarm", standalone_mode=False)
        sys.stdout.flush()
    except SwarmError as error:
        return _fail(str(error), error.exit_code)
    except BaseExceptionGroup as group:
        return _fail_group(group)
    except click.exceptions.NoArgsIsHelpError as error:
        click.echo(error.format_message(), err=True)
        return error.exit_code
    except click.ClickException as error:
        return _fail_click(error)
    except click.Abort:
        return _fail("Interrupted", EXIT_INTERRUPTED)
    except BrokenPipeError:
        return _fail_unread()
    except (MemoryError, RuntimeError, ImportError) as error:
        return _fail_memory(error)
    except OSError as error:  # the edge of the program: a full disk, a file that may not be read
        return _fail(f"The system refused: {error}. Put that right and run the command again", EXIT_FAILURE)
    return result if isinstance(result, int) else 0


def main() -> int:
    """Entry point of the program."""
    ended_by: list[int] = []

    def end(number: int, frame: FrameType | None) -> None:
        # an exception, so that everything in use is put away; programs with a loop set their own handler
        ended_by.append(number)
        signal.signal(number, signal.SIG_DFL)  # the next one ends what swallowed this exception
        raise KeyboardInterrupt if number == signal.SIGINT else SystemExit(EXIT_TERMINATED)

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, end)
    try:
        return run(sys.argv[1:])
    except Exception:  # an import that the signal tore fails in whatever way it likes
        if not ended_by:
            raise
        return 128 + ended_by[0]


def _fail(text: str, exit_code: int) -> int:
    text = one_line(text)  # a part of it may be what a peer said
    sentence = text if text.endswith((".", "?", "!", ")")) else f"{text}."
    print(f"swarm: {sentence}", file=sys.stderr)
    return exit_code


def _fail_memory(error: Exception) -> int:
    """No memory is left, even to load the program, and nobody below knew for what."""
    if not is_shortage(error):
        raise error
    free = "next to nothing"
    with contextlib.suppress(MemoryError, ImportError, OSError):
        free = format_size(available_bytes())
    what = str(error).splitlines()[0] if str(error) else "the system gives no more"
    return _fail(
        f"There is not enough memory; {free} is free ({what}). "
        "Close other programs, or raise the limit of this one (ulimit, or its container)",
        DoesNotFit.exit_code,
    )


def _fail_group(group: BaseExceptionGroup[BaseException]) -> int:
    """Tasks that failed together: the first is told, unless one of them is no error of ours."""
    if group.split(BrokenPipeError)[1] is None:
        return _fail_unread()
    ours, others = group.split(SwarmError)
    if ours is None or others is not None:
        raise group
    first: BaseException = ours
    while isinstance(first, BaseExceptionGroup):
        first = first.exceptions[0]
    return _fail(str(first), first.exit_code if isinstance(first, SwarmError) else EXIT_FAILURE)


def _fail_unread() -> int:
    """The reader of our stdout is gone, as in `swarm ... | head`: there is nobody to tell."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return EXIT_FAILURE


def _fail_click(error: click.ClickException) -> int:
    text = error.format_message().rstrip(".")
    if isinstance(error, click.UsageError) and error.ctx is not None:
        separator = "" if text.endswith("?") else "."
        text = f"{text}{separator} See '{error.ctx.command_path} --help'."
    return _fail(text, error.exit_code)
