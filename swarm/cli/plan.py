"""`swarm plan`: whether a model fits your machines, how to split it, and how fast it should be."""

from pathlib import Path
from typing import TYPE_CHECKING

import click

from swarm.cli.output import print_json, print_result
from swarm.config import find_paths
from swarm.errors import UsageError
from swarm.values import format_size

if TYPE_CHECKING:
    from swarm.bench.plan.advice import PlanAnswer, Question
    from swarm.model.config import ModelConfig

BAR_CHARS = 40


@click.command("plan")
@click.argument("model")
@click.option(
    "--machines",
    "machine_file",
    type=click.Path(dir_okay=False, path_type=Path),
    help="A TOML file with a table [[machine]] for each. [default: this machine, measured]",
)
@click.option("--join", multiple=True, metavar="ADDR", help="Tell what this machine would add to that swarm.")
@click.option(
    "--dtype",
    type=click.Choice(["fp32", "bf16", "fp16", "int8", "int4"]),
    help="Number format of the weights; int8 and int4 only to compare. [default: as stored]",
)
@click.option("--context", type=click.IntRange(1), default=4096, help="Tokens of a conversation.")
@click.option("--prompt", type=click.IntRange(1), default=512, help="Tokens of the prompt.")
@click.option(
    "--svg", type=click.Path(dir_okay=False, writable=True, path_type=Path), help="Write a picture here."
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def command(
    model: str,
    machine_file: Path | None,
    join: tuple[str, ...],
    dtype: str | None,
    context: int,
    prompt: int,
    svg: Path | None,
    as_json: bool,
) -> None:
    """Tell whether MODEL (a cached name, or a directory with its config.json) is worth splitting.

    Predicts from the speed of memory, processors and links; nothing of the model is loaded.
    """
    from swarm.bench.plan.advice import Question, answer
    from swarm.bench.plan.machines import read_machines
    from swarm.bench.plan.picture import picture
    from swarm.bench.plan.this_machine import measure_machine
    from swarm.model.dtypes import dtype_name, parse_dtype

    if machine_file and join:
        raise UsageError("--machines and --join are two different questions", "Choose one of them.")
    config = _read_config(model)
    machines = tuple(read_machines(machine_file)) if machine_file else (measure_machine(),)
    stored = dtype_name(parse_dtype(config.dtype))
    question = Question(config, machines, dtype or stored, context, prompt)
    if join:
        _plan_to_join(question, model, join, as_json)
        return
    answered = answer(question)
    if svg:
        svg.write_text(picture(answered))
    if as_json:
        print_json(answered.to_json())
    else:
        _tell(question, answered)


def _read_config(model: str) -> "ModelConfig":
    from swarm.model.config import read_config
    from swarm.model.store import resolve

    directory = Path(model)
    if not (directory / "config.json").is_file():  # weights are not needed, so their directory is enough
        directory = resolve(model, find_paths().store_root)
    return read_config(directory)


def _tell(question: "Question", answered: "PlanAnswer") -> None:
    from swarm.bench.plan.estimate import BYTES_PER_WEIGHT, blocks_on, needs

    print_result(f"{question.config.num_blocks} blocks; for {question.context_tokens} tokens of context:")
    for dtype in BYTES_PER_WEIGHT:
        need = needs(question.config, dtype, question.context_tokens)
        print_result(
            f"  {dtype:5} a block {format_size(need.block_bytes)} and {format_size(need.cache_bytes)} "
            f"of cache, all {format_size(need.total_bytes)}"
        )
    for machine in question.machines:
        print_result(f"{machine.name} holds {blocks_on(machine, question.need)} blocks in {question.dtype}")
    if best := answered.prediction:
        for part in best.parts:
            width = max(1, round(BAR_CHARS * len(part.span) / question.config.num_blocks))
            print_result(f"{part.machine.name:16} {part.span!s:9} {'█' * width}")
        print_result(
            f"Predicted: first token of {question.prompt_tokens} after {best.ttft_s:.2f} s, then "
            f"{best.tokens_per_s:.1f} tokens/s"
        )
        print_result(
            f"A token takes {best.token_ms:.1f} ms: compute {best.compute_ms:.1f}, network "
            f"{best.network_ms:.1f}, protocol {best.protocol_ms:.1f}"
        )
        modes = ", ".join(f"{name} {rate:.1f}" for name, rate in best.modes().items())
        print_result(f"Tokens/s by way of the chain (this version runs stars only): {modes}")
    print_result(f"Bottleneck: {answered.bottleneck}")
    for line in answered.advice:
        print_result(f"- {line}")


def _plan_to_join(question: "Question", model: str, join: tuple[str, ...], as_json: bool) -> None:
    from swarm.bench.plan.estimate import blocks_on
    from swarm.bench.plan.live import fetch, what_it_adds
    from swarm.cli.runtime import run_command
    from swarm.model.store import ensure_manifest, resolve

    root = find_paths().store_root
    manifest = ensure_manifest(resolve(model, root), root)
    snapshot = run_command(fetch(manifest.digest, question.config.num_blocks, join))
    machine = question.machines[0]
    fitting = blocks_on(machine, question.need)
    added = what_it_adds(snapshot, question.need, fitting, machine.reads_gb_per_s)
    if as_json:
        print_json(added)
        return
    for line in added.advice:
        print_result(line)
