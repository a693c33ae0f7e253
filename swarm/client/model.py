"""What a client holds of a model: its small ends, its tokenizer, and its identity."""

from dataclasses import dataclass
from pathlib import Path

from swarm.model.config import ModelConfig, read_config, read_generation_defaults
from swarm.model.dtypes import parse_dtype
from swarm.model.head import Head
from swarm.model.sampling import Sampling
from swarm.model.store import ensure_manifest, resolve
from swarm.model.tokenizer import Tokenizer, load_tokenizer
from swarm.model.weights import load_head
from swarm.security.manifest import Manifest
from swarm.values import ModelDigest


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
    return ClientModel(
        name=Path(name).name,
        directory=directory,
        manifest=manifest.digest,
        whole_manifest=manifest,
        config=config,
        tokenizer=load_tokenizer(directory),
        head=load_head(directory, config, dtype=parse_dtype(dtype or "fp32"), manifest=manifest),
        sampling=read_generation_defaults(directory),
    )
