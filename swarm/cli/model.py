"""`swarm model`: fetch, import, check and describe models.

Torch and the model floor are imported when a command runs. Results go to stdout, progress to stderr.
"""

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

import click

from swarm.cli.fetching import MANIFEST_HELP, pull_parts, pull_whole
from swarm.cli.output import print_json, print_result, progress
from swarm.cli.runtime import run_command
from swarm.config import store_root
from swarm.errors import UsageError
from swarm.values import Span, format_size, parse_span

if TYPE_CHECKING:
    from swarm.model.config import ModelConfig
    from swarm.model.linear.layouts import Quantization

_json_option = click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
_model_argument = click.argument("model")
_DTYPES = ("fp32", "bf16", "fp16")


@click.group("model")
def command() -> None:
    """Fetch, check and describe models.

    MODEL is the name of a cached model, or a directory in the format of Hugging Face transformers.
    """


@command.command("pull")
@click.argument("name")
@click.option("--blocks", metavar="A:B", help="Fetch only the files that hold these blocks, for a peer.")
@click.option("--ends", is_flag=True, help="Fetch only the files that hold the ends, for a client.")
@click.option("--manifest", metavar="FILE|DIGEST", help=MANIFEST_HELP)
@click.option("--join", multiple=True, metavar="ADDRESS", help="A node of the swarm that knows the manifest.")
@_json_option
def pull(
    name: str, blocks: str | None, ends: bool, manifest: str | None, join: tuple[str, ...], as_json: bool
) -> None:
    """Fetch a model, or parts of one, unless they are there.

    NAME is smollm2-135m, or ORG/NAME[@REVISION] for a model of the Hugging Face hub, for which HF_HOME,
    HF_TOKEN and HF_HUB_OFFLINE are honoured. A download from there that was cut off or interrupted goes on
    where it was when the command is run again.

    Parts need the manifest, which says what each part must be: the one of --manifest, or the file
    swarm-manifest.json of the repository.
    """
    manifests = [] if manifest is None else [manifest]
    if blocks is None and not ends:
        directory = pull_whole(name, manifests, join)
    else:
        span = None if blocks is None else parse_span(blocks)
        directory = pull_parts(name, span, ends, manifests, join)
    _print_stored(name, directory, as_json)


@command.command("import")
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--name", help="Name of the model in the store.  [default: name of the file]")
@click.option("--dtype", type=click.Choice(_DTYPES), default="bf16", help="Number format of the weights.")
@_json_option
def import_(file: Path, name: str | None, dtype: str, as_json: bool) -> None:
    """Make a model of a GGUF file."""
    from swarm.model import store
    from swarm.model.dtypes import parse_dtype

    name = name or file.stem
    with progress(unit_is_bytes=True) as on_progress:
        directory = store.import_gguf(
            file, store_root(), name, dtype=parse_dtype(dtype), on_progress=on_progress
        )
    _print_stored(name, directory, as_json)


@command.command("manifest")
@_model_argument
@_json_option
def manifest(model: str, as_json: bool) -> None:
    """Print a model's digest, which is its identity; with --json the whole manifest.

    The manifest is made if there is none.
    """
    from swarm.model import store

    directory = store.resolve(model, store_root())
    with progress(unit_is_bytes=True) as on_progress:
        found = store.ensure_manifest(directory, store_root(), on_progress)
    print_result(found.to_json().rstrip() if as_json else found.digest)


@command.command("verify")
@_model_argument
@_json_option
def verify(model: str, as_json: bool) -> None:
    """Read a model, or as much of it as is here, and compare it with its manifest."""
    from swarm.model import parts, store

    directory = store.resolve(model, store_root())
    with progress(unit_is_bytes=True) as on_progress:
        found = store.verify(directory, store_root(), on_progress)
    whole, here = parts.is_whole(directory), len(parts.tensors_here(directory, found))
    if as_json:
        print_json({"model": model, "manifest": found.digest, "directory": str(directory), "whole": whole})
    elif whole:
        print_result(f"{model} is whole: {len(found.tensors)} tensors match {found.digest}")
    else:
        print_result(
            f"{model} is here in part: {here} of {len(found.tensors)} tensors, and they match {found.digest}"
        )


@command.command("show")
@_model_argument
@_json_option
def show(model: str, as_json: bool) -> None:
    """Describe a model: family, shape, size, and the memory that a block takes."""
    from swarm.model import store
    from swarm.model.config import read_config

    directory = store.resolve(model, store_root())
    config = read_config(directory)
    with progress(unit_is_bytes=True) as on_progress:
        digest = store.ensure_manifest(directory, store_root(), on_progress).digest
    facts = {"model": model, **_describe(config), "size_bytes": store.size_bytes(directory)}
    facts |= {"manifest": digest, "directory": str(directory)}
    if as_json:
        print_json(facts)
    else:
        _print_facts(facts)


@command.command("check")
@_model_argument
@_json_option
def check(model: str, as_json: bool) -> None:
    """Say whether a model can be hosted, by its configuration alone, and what a block and the ends need.

    MODEL is here already, a directory, or ORG/NAME[@REVISION], of which only the small files are fetched.
    Where it cannot be hosted, this says why and fails.
    """
    from swarm.model.config import read_config

    with TemporaryDirectory() as scratch:
        config = read_config(_small_files(model, Path(scratch)))
    facts = {"model": model, **_describe(config)}
    if as_json:
        print_json(facts)
    else:
        print_result(f"{model} can be hosted, as far as its configuration says")
        _print_facts(facts)


def _small_files(model: str, scratch: Path) -> Path:
    """The directory of a model, or `scratch` with all of a hub's model but its weights."""
    from swarm.model import store
    from swarm.model.hub import fetch_without_weights, parse_hub_name

    on_hub = parse_hub_name(model)
    if on_hub is None or Path(model).is_dir():
        return Path(model) if Path(model).is_dir() else store.resolve(model, store_root())
    with progress(unit_is_bytes=True) as show:
        run_command(fetch_without_weights(on_hub, scratch, show))
    return scratch


@command.command("list")
@_json_option
def list_(as_json: bool) -> None:
    """List the cached models."""
    from swarm.model import store

    models = store.list_models(store_root())
    if as_json:
        print_json({"models": [_stored(each.name, each.directory) for each in models]})
        return
    width = max((len(each.name) for each in models), default=0)
    for each in models:
        print_result(f"{each.name:{width}}  {format_size(each.size_bytes):>10}  {each.directory}")


def _stored(name: str, directory: Path) -> dict[str, object]:
    from swarm.model import store

    digest = store.ensure_manifest(directory, store_root()).digest
    size_bytes = store.size_bytes(directory)
    return {"model": name, "manifest": digest, "directory": str(directory), "size_bytes": size_bytes}


def _print_stored(name: str, directory: Path, as_json: bool) -> None:
    if as_json:
        print_json(_stored(name, directory))
    else:
        print_result(str(directory))


def _describe(config: "ModelConfig") -> dict[str, object]:
    from swarm.model.dtypes import parse_dtype
    from swarm.model.weights import head_size_bytes, span_size_bytes

    dtypes = {name: parse_dtype(name) for name in _DTYPES}
    return {
        "family": config.model_type,
        "blocks": config.num_blocks,
        "hidden": config.hidden_size,
        "heads": config.num_heads,
        "kv_heads": config.num_kv_heads,
        "vocabulary": config.vocab_size,
        "context": config.context_length,
        "dtype": config.dtype,
        "block_bytes": {
            **{name: span_size_bytes(config, Span(0, 1), dtype) for name, dtype in dtypes.items()},
            **{
                quantization: span_size_bytes(config, Span(0, 1), dtypes["bf16"], quantization)
                for quantization in ("int8", "int4")
            },
        },
        "head_bytes": {name: head_size_bytes(config, dtype) for name, dtype in dtypes.items()},
    }


def _print_facts(facts: dict[str, object]) -> None:
    for name, value in facts.items():
        label = name.replace("_bytes", "").replace("_", " ")
        match value:
            case dict():
                text = ", ".join(f"{key} {format_size(size)}" for key, size in value.items())
            case int() if name.endswith("_bytes"):
                text = format_size(value)
            case _:
                text = str(value)
        print_result(f"{label:10}  {text}")


@command.command("quality")
@_model_argument
@click.option(
    "--quantization", type=click.Choice(["int8", "int4"]), required=True, help="How the weights are kept."
)
@click.option("--dtype", type=click.Choice(("bf16", "fp16")), default="bf16", help="Compute in it.")
@click.option(
    "--text",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    help="Foretell this text.  [default: a small one of our own]",
)
@_json_option
def quality(model: str, quantization: "Quantization", dtype: str, text: Path | None, as_json: bool) -> None:
    """Measure what quantising a model costs.

    Perplexity and divergence (Kullback-Leibler) on a text, beside the same model in 16 bits. Needs memory for
    all of the model in 16 bits.
    """
    from dataclasses import asdict

    from swarm.bench.quality import measure_quality, own_text
    from swarm.model import store
    from swarm.model.dtypes import parse_dtype

    directory = store.resolve(model, store_root())
    with progress(unit_is_bytes=False) as on_progress:
        found = measure_quality(
            directory,
            store_root(),
            own_text() if text is None else _read_text(text),
            quantization,
            parse_dtype(dtype),
            on_progress,
        )
    if as_json:
        print_json(
            {
                "model": model,
                "quantization": quantization,
                "dtype": dtype,
                **asdict(found),
                "ratio": found.ratio,
            }
        )
        return
    print_result(
        f"perplexity   {found.perplexity:.3f} in {quantization}, {found.perplexity_16_bit:.3f} in {dtype}: "
        f"ratio {found.ratio:.4f}"
    )
    print_result(f"divergence   {found.divergence_nats:.4f} nats a token, over {found.tokens} tokens")
    print_result(f"same choice  {found.same_first_choice:.1%} of tokens")
    print_result(
        f"weights      {format_size(found.weights_bytes)} and {format_size(found.weights_bytes_16_bit)}"
    )


def _read_text(path: Path) -> str:
    """Raises `UsageError` for what is no text."""
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{path} cannot be read as text: {error}", "Name a text file in UTF-8.") from error
