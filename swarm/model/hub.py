"""Models of the Hugging Face hub: `ORG/NAME` or `ORG/NAME@REVISION`.

The files stay in the hub's own cache, which other programs share and `HF_HOME`, `HF_TOKEN` and
`HF_HUB_OFFLINE` govern; a model's directory holds links to those of one commit. Safetensors only:
pickles and code are not even downloaded. The library's own download begins anew each time, and cannot be
interrupted while it waits; so only its settings and its layout on disk are used.
"""

import asyncio
import os
import re
from collections.abc import Callable, Coroutine, Iterable, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any, TypeVar

from swarm.errors import BrokenModel, DownloadFailed, UnsupportedModel
from swarm.model.checkpoint import SINGLE_FILE, shard_files
from swarm.model.fields import REPULL
from swarm.model.files import StageProgress, writing_to
from swarm.model.tokenizer_source import OLDER_FILES
from swarm.security.manifest import MANIFEST_FILE

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
    "added_tokens.json",
    *OLDER_FILES,
    "chat_template.jinja",
    MANIFEST_FILE,  # where somebody who has all of the model put it
    "modules.json",
    "*_Pooling/config.json",
    "additional_chat_templates/*.jinja",
)
_SNAPSHOT = re.compile(r"(/.+)/models--(.+?)--(.+)/snapshots/([0-9a-f]{40})/config\.json")
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


@dataclass(frozen=True, slots=True)
class Origin:
    """Where the files of a model's directory are: the hub's cache, and one commit of a repository there."""

    cache: Path
    repository: str
    sha: str


def origin(directory: Path) -> Origin | None:
    """Which commit of the hub a model's directory is of, by where its links point; None if it is of none."""
    try:
        match = _SNAPSHOT.fullmatch(str((directory / "config.json").readlink()))
    except OSError:
        return None
    return Origin(Path(match[1]), f"{match[2]}/{match[3]}", match[4]) if match else None


def fetch_from_hub(model: HubModel, directory: Path, on_progress: StageProgress) -> None:
    """Download what is needed of `model` and link it into `directory`. Not to be called within a loop.

    What has arrived is kept when this is interrupted, and gone on with the next time. Raises
    `DownloadFailed` when the hub refuses or cannot be reached, `ConfigurationError` when the disk has no
    room, `UnsupportedModel` when the model has no safetensors or no tokenizer.json.
    """
    snapshot = asyncio.run(_fetch_commit(model, (_OTHERS, _WEIGHTS), _has_weights, on_progress))
    _need(_has_weights(snapshot), model, "safetensors with all of its weights")
    _link(model, snapshot, directory, (*_OTHERS, *_WEIGHTS))


async def fetch_without_weights(model: HubModel, directory: Path, on_progress: StageProgress) -> None:
    """As `fetch_from_hub`, but only the small files; `fetch_weights` brings more."""
    snapshot = await _fetch_commit(model, (_OTHERS,), lambda snapshot: True, on_progress)
    _link(model, snapshot, directory, _OTHERS)


async def fetch_weights(directory: Path, names: Sequence[str], on_progress: StageProgress) -> None:
    """Bring more files of weights into a model's directory that is of the hub, and of the same commit.

    Raises as `fetch_from_hub`, and `BrokenModel` when the directory is not of the hub.
    """
    from swarm.model.hub_api import Unreachable, open_hub
    from swarm.model.hub_cache import HubCache

    at = origin(directory)
    if at is None:
        raise BrokenModel(f"{directory} has no {', '.join(names[:3])}, and is not of the hub", REPULL)
    cache = HubCache(at.cache, at.repository)
    snapshot = cache.snapshot(at.sha)
    absent = [name for name in names if not (snapshot / name).exists()]
    try:
        if absent:
            async with open_hub(at.repository, asyncio.sleep) as hub:
                with writing_to(cache.folder, "HF_HOME"):
                    await _Fetch(hub, cache, at.sha, on_progress).bring(absent)
                    cache.sweep(is_all_here=False)
    except Unreachable as error:
        raise _unreachable(at.repository, error) from error
    with writing_to(directory):
        for name in names:
            _link_file(snapshot / name, directory / name)


def _link(model: HubModel, snapshot: Path, directory: Path, patterns: Sequence[str]) -> None:
    _need((snapshot / "config.json").exists(), model, "config.json")
    tokenizers = ("tokenizer.json", *OLDER_FILES)
    _need(any((snapshot / name).exists() for name in tokenizers), model, "tokenizer.json")
    here = [path.relative_to(snapshot).as_posix() for path in snapshot.rglob("*") if path.is_file()]
    for name in _matching(here, patterns):
        _link_file(snapshot / name, directory / name)


def _link_file(file: Path, link: Path) -> None:
    link.parent.mkdir(parents=True, exist_ok=True)
    unfinished = link.with_name(f"{link.name}.{os.getpid()}")
    unfinished.symlink_to(file.absolute())
    unfinished.replace(link)


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


async def _fetch_commit(
    model: HubModel,
    groups: Sequence[Sequence[str]],
    is_enough: Callable[[Path], bool],
    on_progress: StageProgress,
) -> Path:
    """The directory with a model's files, group by group, from the hub or, when that cannot be asked, from
    before, if `is_enough` says so."""
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
                for patterns in groups:  # weights last: where those are whole, the other files are too
                    await fetch.bring(_matching(commit.files, patterns))
                cache.remember(model.branch, commit.sha)
                cache.sweep(is_all_here=_WEIGHTS in groups)
        return cache.snapshot(commit.sha)
    except Unreachable as error:
        snapshot = cache.last_snapshot(model.branch)
        if snapshot is None or not is_enough(snapshot):
            raise _unreachable(str(model), error) from error
        return snapshot


def _unreachable(name: str, error: Exception) -> DownloadFailed:
    return DownloadFailed(
        f"{name} could not be downloaded from the Hugging Face hub: it cannot be reached ({error}), "
        "and what is needed is not in its local cache",
        "Check the network connection (and HF_HUB_OFFLINE), then run the command again; "
        "it goes on with what has arrived.",
    )


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
    _same: dict[str, asyncio.Lock] = field(default_factory=dict)  # by tag

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

        # two files of the same content are one here, and no other process
        same = self._same.setdefault(file.etag, asyncio.Lock())
        async with same, self.cache.hold(file, on_wait):
            if self.cache.has(file):
                return
            partial = Partial(self.cache.partial(file), file.size_bytes)
            if file.sha256 is None and not file.name.endswith(".safetensors"):
                partial.path.unlink(missing_ok=True)  # it is small, and nothing would tell a damaged one
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
