"""Models of the Hugging Face hub: `ORG/NAME` or `ORG/NAME@REVISION`.

The files stay in the hub's own cache, which other programs share and `HF_HOME`, `HF_TOKEN` and
`HF_HUB_OFFLINE` govern; a model's directory holds links to those of one commit. Safetensors only:
pickles and code are not even downloaded. huggingface-hub is imported when a model is fetched.
"""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from swarm.errors import BrokenModel, DownloadFailed, SwarmError, UnsupportedModel
from swarm.model.checkpoint import shard_files
from swarm.model.files import StageProgress

if TYPE_CHECKING:
    from huggingface_hub.utils.tqdm import tqdm

_FILES = [
    "config.json",
    "generation_config.json",
    "model.safetensors",
    "model-*-of-*.safetensors",
    "model.safetensors.index.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "chat_template.jinja",
    "modules.json",
    "*_Pooling/config.json",
    "additional_chat_templates/*.jinja",
]
_NAME = re.compile(r"([A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*)(?:@([A-Za-z0-9][\w.-]*))?")


@dataclass(frozen=True, slots=True)
class HubModel:
    """A repository of the hub, and a branch, tag or commit of it."""

    repository: str  # ORG/NAME
    revision: str | None  # None is the main branch


def parse_hub_name(name: str) -> HubModel | None:
    """Read `ORG/NAME[@REVISION]`; None when `name` is not of that form."""
    match = _NAME.fullmatch(name)
    return HubModel(match[1], match[2]) if match else None


def fetch_from_hub(model: HubModel, directory: Path, on_progress: StageProgress) -> None:
    """Download what is needed of `model` and link it into `directory`.

    Raises `DownloadFailed` when the hub refuses or cannot be reached, `UnsupportedModel` when the
    model has no safetensors or no tokenizer.json.
    """
    snapshot = _download(model, on_progress)
    for needed in ("config.json", "tokenizer.json"):
        _need((snapshot / needed).exists(), model, needed)
    weights = snapshot / "model.safetensors"
    _need(weights.exists() or _shards_are_whole(snapshot), model, "safetensors with all of its weights")
    for file in (path for path in snapshot.rglob("*") if path.is_file()):
        link = directory / file.relative_to(snapshot)
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(file.absolute())


def _shards_are_whole(snapshot: Path) -> bool:
    try:
        shards = shard_files(snapshot)
    except BrokenModel:
        return False
    return shards is not None and all((snapshot / shard).exists() for shard in shards.values())


def _need(found: bool, model: HubModel, what: str) -> None:
    if not found:
        raise UnsupportedModel(
            f"{model.repository} has no {what}",
            "Choose a repository in the format of transformers with safetensors.",
        )


def _download(model: HubModel, on_progress: StageProgress) -> Path:
    import huggingface_hub

    on_progress("downloading", 0, 0)
    try:
        path = huggingface_hub.snapshot_download(
            model.repository,
            revision=model.revision,
            allow_patterns=_FILES,
            tqdm_class=_progress_bar(on_progress),
        )
    # The library's HTTP client, and so what it raises, differs by version; all of it is a failed download.
    except Exception as error:
        raise _explain(model, error) from error
    return Path(path)


def _explain(model: HubModel, error: Exception) -> SwarmError:
    from huggingface_hub import errors

    name = model.repository if model.revision is None else f"{model.repository}@{model.revision}"
    what = f"{name} could not be downloaded from the Hugging Face hub"
    match error:
        case errors.GatedRepoError():
            return DownloadFailed(
                f"{what}: it asks for consent first", "Give it on its page, then set HF_TOKEN."
            )
        case errors.RepositoryNotFoundError():
            return DownloadFailed(
                f"{what}: there is no such repository, or it is private", "Check the name or HF_TOKEN."
            )
        case errors.RevisionNotFoundError():
            return DownloadFailed(
                f"{what}: there is no such revision", "Name a branch, a tag or a whole commit."
            )
        case errors.LocalEntryNotFoundError():
            return DownloadFailed(
                f"{what}: it cannot be reached, and the model is not in its local cache",
                "Check the network connection (and HF_HUB_OFFLINE), then run the command again.",
            )
    return DownloadFailed(f"{what}: {error}", "Run the command again; what has arrived is kept.")


def _progress_bar(on_progress: StageProgress) -> "type[tqdm]":
    """A stand-in for the library's progress bars that tells `on_progress` the bytes instead."""
    from huggingface_hub.utils.tqdm import tqdm

    class Reporter(tqdm):
        def __init__(self, *args: object, **options: object) -> None:
            self._counts_bytes = options.get("unit") == "B"
            super().__init__(*args, **(options | {"disable": True}))  # type: ignore[no-untyped-call]

        def update(self, n: float | None = 1) -> bool | None:
            self.n += n or 0
            if self._counts_bytes:
                on_progress("downloading", int(self.n), max(int(self.n), int(self.total or 0)))
            return None

    return Reporter
