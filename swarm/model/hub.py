"""Models of the Hugging Face hub: `ORG/NAME` or `ORG/NAME@REVISION`.

The files stay in the hub's own cache, which other programs share and `HF_HOME`, `HF_TOKEN` and
`HF_HUB_OFFLINE` govern; a model's directory holds links to those of one commit. Safetensors only:
pickles and code are not even downloaded. The library's own download begins anew each time, and cannot be
interrupted while it waits; so only its settings and its layout on disk are used.
"""

import asyncio
import re
from collections.abc import Coroutine, Iterable, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any, TypeVar

from swarm.errors import BrokenModel, DownloadFailed, UnsupportedModel
from swarm.model.checkpoint import SINGLE_FILE, shard_files
from swarm.model.files import StageProgress, writing_to

if TYPE_CHECKING:
    from swarm.model.hub_api import HubApi
    from swarm.model.hub_cache import HubCache
    from swarm.model.transfer import RemoteFile

Result = TypeVar("Result")

FILES_AT_ONCE = 4
MAX_CHANGES = 3  # of a file while it is fetched

_WEIGHTS = (SINGLE_FILE, "model-*-of-*.safetensors")
_OTHERS = (
    "config.json",
    "generation_config.json",
    "model.safetensors.index.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "chat_template.jinja",
    "additional_chat_templates/*.jinja",
)
_NAME = re.compile(r"([A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*)(?:@([A-Za-z0-9][\w.-]*))?")


@dataclass(frozen=True, slots=True)
class HubModel:
    """A repository of the hub, and a branch, tag or commit of it."""

    repository: str  # ORG/NAME
    revision: str | None  # None is the main branch

    @property
    def branch(self) -> str:
        """The revision by the name that the hub has for it."""
        return self.revision or "main"

    def __str__(self) -> str:
        return self.repository if self.revision is None else f"{self.repository}@{self.revision}"


def parse_hub_name(name: str) -> HubModel | None:
    """Read `ORG/NAME[@REVISION]`; None when `name` is not of that form."""
    match = _NAME.fullmatch(name)
    return HubModel(match[1], match[2]) if match else None


def fetch_from_hub(model: HubModel, directory: Path, on_progress: StageProgress) -> None:
    """Download what is needed of `model` and link it into `directory`. Not to be called within a loop.

    What has arrived is kept when this is interrupted, and gone on with the next time. Raises
    `DownloadFailed` when the hub refuses or cannot be reached, `ConfigurationError` when the disk has no
    room, `UnsupportedModel` when the model has no safetensors or no tokenizer.json.
    """
    snapshot = asyncio.run(_fetch_all(model, on_progress))
    for needed in ("config.json", "tokenizer.json"):
        _need((snapshot / needed).exists(), model, needed)
    _need(_has_weights(snapshot), model, "safetensors with all of its weights")
    for file in (path for path in snapshot.rglob("*") if path.is_file()):
        link = directory / file.relative_to(snapshot)
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(file.absolute())


def _has_weights(snapshot: Path) -> bool:
    if (snapshot / SINGLE_FILE).exists():
        return True
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


async def _fetch_all(model: HubModel, on_progress: StageProgress) -> Path:
    """The directory with all files of a model, from the hub or, when that cannot be asked, from before."""
    from huggingface_hub import constants

    from swarm.model.hub_api import Unreachable, open_hub
    from swarm.model.hub_cache import HubCache

    cache = HubCache(Path(constants.HF_HUB_CACHE), model.repository)
    on_progress("downloading", 0, 0)
    try:
        async with open_hub(model.repository, asyncio.sleep) as hub:
            commit = await hub.commit(model.branch)
            fetch = _Fetch(hub, cache, commit.sha, on_progress)
            with writing_to(cache.folder, "HF_HOME"):
                # weights last: where those are whole, the other files are too
                await fetch.bring(_matching(commit.files, _OTHERS))
                await fetch.bring(_matching(commit.files, _WEIGHTS))
                cache.remember(model.branch, commit.sha)
                cache.sweep()
        return cache.snapshot(commit.sha)
    except Unreachable as error:
        snapshot = cache.last_snapshot(model.branch)
        if snapshot is None or not _has_weights(snapshot):
            raise DownloadFailed(
                f"{model} could not be downloaded from the Hugging Face hub: it cannot be reached ({error}), "
                "and the model is not whole in its local cache",
                "Check the network connection (and HF_HUB_OFFLINE), then run the command again; "
                "it goes on with what has arrived.",
            ) from error
        return snapshot


def _matching(names: Iterable[str], patterns: Sequence[str]) -> list[str]:
    """The files that are of use, and lie in the repository wherever they say they do."""
    return [
        name
        for name in names
        if any(fnmatchcase(name, pattern) for pattern in patterns)
        and not PurePosixPath(name).is_absolute()
        and ".." not in PurePosixPath(name).parts
    ]


@dataclass(slots=True)
class _Fetch:
    """Brings files of one commit into the cache, a few at once, and tells how far it is with all of them."""

    hub: "HubApi"
    cache: "HubCache"
    sha: str
    on_progress: StageProgress
    _here_bytes: dict[str, int] = field(default_factory=dict)  # by file
    _size_bytes: dict[str, int] = field(default_factory=dict)

    async def bring(self, names: Sequence[str]) -> None:
        """Fetch what is missing of these files, if there is room for it."""
        files = await _all_of([self.hub.file(self.sha, name) for name in names])
        # two names of the same content are one file in the cache
        missing = {file.etag: self.cache.missing_bytes(file) for file in files}
        self.cache.check_space(sum(missing.values()))
        self._size_bytes |= {file.name: file.size_bytes for file in files}
        turns = asyncio.Semaphore(FILES_AT_ONCE)
        await _all_of([self._bring(file, turns) for file in files])

    async def _bring(self, file: "RemoteFile", turns: asyncio.Semaphore) -> None:
        from swarm.model.transfer import Changed

        async with turns:
            for _ in range(MAX_CHANGES):
                try:
                    await self._bring_one(file)
                except Changed as change:
                    changed = change
                    file = await self.hub.file(self.sha, file.name)
                    self._size_bytes[file.name] = file.size_bytes
                else:
                    self.cache.link(self.sha, file)
                    self._tell(file, file.size_bytes)
                    return
            raise DownloadFailed(
                f"{changed}, again and again",
                "Try again later; the server, or a proxy on the way, is broken.",
            )

    async def _bring_one(self, file: "RemoteFile") -> None:
        from swarm.model.transfer import Partial

        def on_wait() -> None:
            self.on_progress("waiting for another process that fetches it", 0, 0)

        async with self.cache.hold(file, on_wait, asyncio.sleep):
            if self.cache.has(file):
                return
            partial = Partial(self.cache.partial(file), file.size_bytes)
            try:
                await partial.open()
                await self.hub.fetch(file, partial, lambda here: self._tell(file, here))
            finally:
                partial.close()
            self.cache.complete(file)

    def _tell(self, file: "RemoteFile", here_bytes: int) -> None:
        self._here_bytes[file.name] = here_bytes
        self.on_progress("downloading", sum(self._here_bytes.values()), sum(self._size_bytes.values()))


async def _all_of(works: Sequence[Coroutine[Any, Any, Result]]) -> list[Result]:
    """The results of works that go on at once; the first error ends them all and is raised as it is."""
    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(work) for work in works]
    except BaseExceptionGroup as errors:
        raise errors.exceptions[0] from errors
    return [task.result() for task in tasks]
