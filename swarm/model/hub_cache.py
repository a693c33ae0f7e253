"""The hub's own cache of one repository, which other programs share: blobs by tag, linked by commit.

Layout and locks are those of the library huggingface-hub, so that each finds what the other brought:
https://huggingface.co/docs/huggingface_hub/guides/manage-cache. A file is linked when it is whole.
"""

import os
import re
import shutil
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

from swarm.errors import ConfigurationError
from swarm.model.files import held, try_locked
from swarm.model.transfer import RemoteFile
from swarm.values import format_size

_PARTIAL = ".incomplete"
_UNIQUE = re.compile(r"\.[0-9a-f]{8}$")  # what newer libraries add to the name of a partial file


class HubCache:
    """Where the files of one repository are."""

    def __init__(self, root: Path, repository: str) -> None:
        name = f"models--{repository.replace('/', '--')}"
        self.folder = root / name
        self._locks = root / ".locks" / name

    def snapshot(self, sha: str) -> Path:
        """The directory with links to the files of a commit."""
        return self.folder / "snapshots" / sha

    def last_snapshot(self, revision: str) -> Path | None:
        """The files of the commit at which a revision was last seen to stand."""
        try:
            sha = (self.folder / "refs" / revision).read_text(encoding="utf-8").strip()
        except OSError:
            sha = revision
        snapshot = self.snapshot(sha)
        return snapshot if snapshot.is_dir() else None

    def remember(self, revision: str, sha: str) -> None:
        """Note at which commit a revision stands."""
        if revision != sha:
            ref = self.folder / "refs" / revision
            ref.parent.mkdir(parents=True, exist_ok=True)
            unfinished = ref.with_name(f"{ref.name}.{os.getpid()}")
            unfinished.write_text(sha, encoding="utf-8")
            unfinished.replace(ref)

    def has(self, file: RemoteFile) -> bool:
        """Whether a file is here, whole."""
        blob = self._blob(file.etag)
        return blob.is_file() and blob.stat().st_size == file.size_bytes

    def missing_bytes(self, file: RemoteFile) -> int:
        """How much of a file is to be fetched."""
        if self.has(file):
            return 0
        partial = self.partial(file)
        here_bytes = partial.stat().st_size if partial.is_file() else 0
        return max(0, file.size_bytes - here_bytes)

    def partial(self, file: RemoteFile) -> Path:
        """Where a file is while it is not whole."""
        return self._blob(f"{file.etag}{_PARTIAL}")

    def check_space(self, needed_bytes: int) -> None:
        """Raise `ConfigurationError` unless so much can be written."""
        self.folder.mkdir(parents=True, exist_ok=True)
        free_bytes = shutil.disk_usage(self.folder).free
        if needed_bytes > free_bytes:
            raise ConfigurationError(
                f"{format_size(needed_bytes)} are to be downloaded into {self.folder}, "
                f"where {format_size(free_bytes)} are free",
                "Free disk space, or name a directory on another disk with HF_HOME.",
            )

    def complete(self, file: RemoteFile) -> None:
        """Make a partial file that is whole one of the blobs."""
        self.partial(file).replace(self._blob(file.etag))

    def link(self, sha: str, file: RemoteFile) -> None:
        """Show a whole file in its commit."""
        link = self.snapshot(sha) / file.name
        blob = self._blob(file.etag)
        if link.exists() and link.samefile(blob):
            return
        link.parent.mkdir(parents=True, exist_ok=True)
        unfinished = link.with_name(f"{link.name}.{os.getpid()}")
        unfinished.unlink(missing_ok=True)
        unfinished.symlink_to(os.path.relpath(blob, link.parent))
        unfinished.replace(link)

    @asynccontextmanager
    async def hold(self, file: RemoteFile, on_wait: Callable[[], None]) -> AsyncIterator[None]:
        """Be the only process that fetches a file."""
        self._blob(file.etag).parent.mkdir(parents=True, exist_ok=True)
        async with held(self._lock(file.etag), on_wait):
            yield

    def sweep(self, *, is_all_here: bool) -> None:
        """Remove partial files that nobody writes to and nobody can go on with; when all is here, any."""
        for leftover in (self.folder / "blobs").glob(f"*{_PARTIAL}"):
            name = leftover.name.removesuffix(_PARTIAL)
            etag = _UNIQUE.sub("", name)
            with try_locked(self._lock(etag)) as is_held:
                if is_held and (is_all_here or etag != name):
                    leftover.unlink(missing_ok=True)

    def _blob(self, name: str) -> Path:
        return self.folder / "blobs" / name

    def _lock(self, etag: str) -> Path:
        return self._locks / f"{etag}.lock"
