"""What a client holds of a model: its small ends, its tokenizer, and its identity."""

import logging
from dataclasses import dataclass, replace
from pathlib import Path

from swarm.model.config import ModelConfig, read_config, read_generation_defaults
from swarm.model.dtypes import parse_dtype
from swarm.model.head import Head
from swarm.model.linear.chooser import MeasuringChooser
from swarm.model.sampling import Sampling
from swarm.model.store import ensure_manifest, resolve
from swarm.model.tokenizer import Tokenizer, load_tokenizer
from swarm.model.weights import load_head
from swarm.security.manifest import Manifest
from swarm.values import ModelDigest

MAX_TOLD = 8  # tokens that a warning names

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ClientModel:
    """The ends of a model: everything but its blocks."""

    name: str
    directory: Path
    manifest: ModelDigest
    whole_manifest: Manifest
    config: ModelConfig
    tokenizer: Tokenizer
    head: Head
    sampling: Sampling  # the model's own defaults


def load_client_model(name: str, root: Path, dtype: str | None = None) -> ClientModel:
    """Load and verify the ends of a model, cached under `root` or in a directory. Raises `ModelError`."""
    directory = resolve(name, root)
    config = read_config(directory)
    manifest = ensure_manifest(directory, root)
    tokenizer = load_tokenizer(directory)
    config = replace(config, stop_token_ids=_stop_ids(config, tokenizer, name))
    return ClientModel(
        name=Path(name).name,
        directory=directory,
        manifest=manifest.digest,
        whole_manifest=manifest,
        config=config,
        tokenizer=tokenizer,
        head=load_head(
            directory,
            config,
            dtype=parse_dtype(dtype or "fp32"),
            chooser=MeasuringChooser(root),
            manifest=manifest,
        ),
        sampling=read_generation_defaults(directory),
    )


def _stop_ids(config: ModelConfig, tokenizer: Tokenizer, name: str) -> tuple[int, ...]:
    """Where a reply ends, by the files and the tokenizer; ids beyond the vocabulary are left out."""
    named = tokenizer.token_to_id(tokenizer.named_tokens.get("eos_token", ""))
    ids = dict.fromkeys((*config.stop_token_ids, *(() if named is None else (named,))))
    absent = [token_id for token_id in ids if token_id >= config.vocab_size]
    if absent:
        told = ", ".join(map(str, absent[:MAX_TOLD]))
        _log.warning(
            "The files of %s end replies with the tokens %s; it has %d tokens, so they are left out",
            name, told, config.vocab_size,
        )  # fmt: skip
    return tuple(token_id for token_id in ids if token_id < config.vocab_size)
