"""`swarm bench`: what this machine can do, alone and in a chain, and beside llama.cpp."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from swarm.cli.output import note, print_json, print_result
from swarm.cli.runtime import run_command
from swarm.config import store_root
from swarm.errors import UsageError

if TYPE_CHECKING:
    from swarm.bench.numbers import Numbers

_FORMATS = ("fp32", "bf16", "int8", "int4")
_model = click.argument("model", default="smollm2-135m")
_formats = click.option(
    "--format",
    "formats",
    multiple=True,
    default=_FORMATS,
    metavar="FORMAT",
    help="fp32, bf16, fp16, int8 or int4, which are in bf16, or bf16+int8. Several times for more.",
)
_json = click.option("--json", "as_json", is_flag=True, help="Print a line of JSON for each row.")
_against = click.option(
    "--against",
    nargs=2,
    type=(click.Choice(["llama-bench"]), click.Path(path_type=Path)),
    metavar="llama-bench PATH",
    help="Also run this program of llama.cpp, in one process with as many threads.",
)
_gguf = click.option(
    "--gguf",
    "ggufs",
    multiple=True,
    type=click.Path(path_type=Path),
    help="The file that llama-bench is given. Several times for more.",
)


@click.group("bench")
def command() -> None:
    """Measure how fast this machine is.

    On an idle machine only: compare what was measured in one run.
    """


@command.command("engine")
@_model
@_formats
@click.option("--threads", type=click.IntRange(1, 1024), default=1, help="Threads to compute with.")
@_against
@_gguf
@_json
def engine(
    model: str,
    formats: tuple[str, ...],
    threads: int,
    against: tuple[str, Path] | None,
    ggufs: tuple[Path, ...],
    as_json: bool,
) -> None:
    """Measure the engine alone: a step of 1 to 16 sessions, a prompt of 512 tokens, and the kernels chosen.

    MODEL is the name of a cached model, or a directory.
    """
    from swarm.bench.engine import COLUMNS, measure_engine
    from swarm.bench.numbers import parse_numbers
    from swarm.model.linear.chooser import MeasuringChooser
    from swarm.model.store import resolve

    directory, root = resolve(model, store_root()), store_root()
    wanted = [parse_numbers(each) for each in formats]
    _check_against(against, ggufs)
    rows = []
    for numbers in wanted:
        note(f"Measuring {numbers} ...")
        for line in measure_engine(directory, numbers, threads, MeasuringChooser(root)):
            rows.append(line.row())
            _print_line(line, as_json)
    if not as_json:
        _print_table(COLUMNS, rows)
    run_command(_llama(against, ggufs, threads, 64, 512, as_json))


@command.command("chain")
@_model
@_formats
@click.option("--peers", type=click.IntRange(1, 64), default=2, help="How many peers share the model.")
@click.option(
    "--pairs", type=click.IntRange(1, 100), default=5, help="How often chain and engine take turns."
)
@click.option("--tokens", type=click.IntRange(2, 4096), default=64, help="Tokens of the reply.")
@click.option("--prompt", type=click.IntRange(8, 4096), default=512, help="Tokens of the long prompt.")
@_against
@_gguf
@_json
def chain(
    model: str,
    formats: tuple[str, ...],
    peers: int,
    pairs: int,
    tokens: int,
    prompt: int,
    against: tuple[str, Path] | None,
    ggufs: tuple[Path, ...],
    as_json: bool,
) -> None:
    """Measure peers on this machine, one thread each, against the same engine in one process.

    MODEL is the name of a cached model, or a directory. The exit status is 1 if a token differed.
    """
    from swarm.bench.numbers import parse_numbers
    from swarm.model.store import resolve

    directory = resolve(model, store_root())
    wanted = [parse_numbers(each) for each in formats]
    _check_against(against, ggufs)
    same = run_command(_chain(directory, wanted, peers, (prompt, tokens, pairs), as_json))
    run_command(_llama(against, ggufs, 1, tokens, prompt, as_json))
    if not same:
        raise click.exceptions.Exit(1)


async def _chain(
    directory: Path, formats: "Sequence[Numbers]", peers: int, work: tuple[int, int, int], as_json: bool
) -> bool:
    from swarm.bench.chain import COLUMNS, chain_work, measure_chain
    from swarm.model.config import read_config

    vocabulary = read_config(directory).vocab_size
    lines = []
    for numbers in formats:
        note(f"Measuring {numbers} ...")
        line = await measure_chain(directory, store_root(), numbers, peers, chain_work(vocabulary, *work))
        lines.append(line)
        _print_line(line, as_json)
    if not as_json:
        _print_table(COLUMNS, [line.row() for line in lines])
    return all(line.parity for line in lines)


async def _llama(
    against: tuple[str, Path] | None,
    ggufs: tuple[Path, ...],
    threads: int,
    tokens: int,
    prompt_tokens: int,
    as_json: bool,
) -> None:
    from swarm.bench.llama_bench import run_llama_bench

    for gguf in ggufs if against else ():
        note(f"Measuring llama.cpp with {gguf.name} ...")
        line = await run_llama_bench(
            against[1] if against else Path(),
            gguf,
            threads=threads,
            prompt_tokens=prompt_tokens,
            tokens=tokens,
        )
        _print_line(line, as_json)
        if not as_json:
            print_result(
                f"llama-bench {line.model}: decode {line.decode_tokens_per_s:.1f}, "
                f"prefill {line.prefill_tokens_per_s:.0f} tokens/s"
            )


def _check_against(against: tuple[str, Path] | None, ggufs: tuple[Path, ...]) -> None:
    if bool(against) != bool(ggufs):
        raise UsageError("--against needs --gguf, and --gguf is for --against", "Give both or none.")


def _print_line(line: Any, as_json: bool) -> None:
    if as_json:
        print_json(line.to_json())


def _print_table(columns: Sequence[str], rows: Sequence[tuple[str, ...]]) -> None:
    """In Markdown, so that it can be put into a page as it is."""
    widths = [max(map(len, column)) for column in zip(columns, *rows, strict=True)]
    for cells in (columns, ["-" * width for width in widths], *rows):
        print_result(
            "| " + " | ".join(cell.ljust(width) for cell, width in zip(cells, widths, strict=True)) + " |"
        )
