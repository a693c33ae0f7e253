"""Parts of a model: which files hold a span of blocks or the ends, and bringing here those that are not.

Only models of the hub can be in parts; of any other, all files are here or it is broken. A part can be used
only with the whole manifest, which names every tensor and is the model's identity: no part can tell it.
"""

from collections.abc import Iterable
from pathlib import Path

from swarm.errors import BrokenModel
from swarm.model.checkpoint import INDEX_FILE, SINGLE_FILE, Checkpoint, shard_files
from swarm.model.config import ModelConfig
from swarm.model.files import StageProgress
from swarm.model.hub import fetch_weights, origin
from swarm.model.weights import EMBEDDING, FINAL_NORM, FINAL_NORM_BIAS, LM_HEAD, block_tensor_names
from swarm.security.manifest import Manifest
from swarm.values import Span


def missing_of_span(directory: Path, config: ModelConfig, span: Span) -> list[str]:
    """The files with blocks of a span that are not here."""
    return _missing(directory, block_tensor_names(config, span))


def missing_of_ends(directory: Path, manifest: Manifest) -> list[str]:
    """The files with embedding, final norm or lm_head that are not here."""
    names = [EMBEDDING, *(name for name in (FINAL_NORM, FINAL_NORM_BIAS) if name in manifest.tensors)]
    if LM_HEAD in manifest.tensors or not _has_index_with(
        directory, EMBEDDING
    ):  # tied, and stored as lm_head
        names.append(LM_HEAD)
    return _missing(directory, names)


def is_whole(directory: Path) -> bool:
    """Whether all files of weights are here."""
    try:
        files = set((shard_files(directory) or {SINGLE_FILE: SINGLE_FILE}).values())
    except BrokenModel:
        return False
    return all((directory / name).exists() for name in files)


def tensors_here(directory: Path, manifest: Manifest) -> list[str]:
    """Those tensors of a model whose files are here."""
    return [name for name in manifest.tensors if not _missing(directory, [name])]


def can_be_fetched(directory: Path) -> bool:
    """Whether files that are missing can be fetched."""
    return origin(directory) is not None


async def fetch(directory: Path, files: list[str], on_progress: StageProgress) -> None:
    """Bring missing files here, if that is possible; else loading them says that they are missing.

    Raises `DownloadFailed`, and `ConfigurationError` when there is no room for them. An index may name any
    file, so what is not called safetensors is left where it is.
    """
    weights = [name for name in files if name.endswith(".safetensors")]
    if weights and can_be_fetched(directory):
        await fetch_weights(directory, weights, on_progress)


def _missing(directory: Path, names: Iterable[str]) -> list[str]:
    """The files of these tensors that are not here; a tensor that no file has is for the loader to tell."""
    if not (directory / INDEX_FILE).exists():
        files = {SINGLE_FILE}
    else:
        checkpoint = Checkpoint(directory)
        files = {file for name in names if (file := checkpoint.file_of(name)) is not None}
    return sorted(name for name in files if not (directory / name).exists())


def _has_index_with(directory: Path, name: str) -> bool:
    return not (directory / INDEX_FILE).exists() or Checkpoint(directory).has(name)
