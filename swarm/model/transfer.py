"""One file over HTTP, from where it was: by ranges, into a partial file that is kept until it is whole.

A line that is cut, a server that is busy or asks to wait are borne with growing patience. What arrives is
believed when its size, and its SHA-256 where that is known, are those that were told beforehand. Knows
nothing of the hub.
"""

import asyncio
import hashlib
import logging
import re
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import aiohttp

from swarm.errors import DownloadFailed

Sleep = Callable[[float], Awaitable[None]]

FIRST_WAIT_S = 0.5  # doubling with each failure in a row
MAX_WAIT_S = 60.0  # of what a server may ask for, too
MAX_FAILURES = 7  # in a row, without a byte that was not here before: half a minute
MAX_RESTARTS = 2  # of one file, from its first byte
RETRIED = frozenset({408, 425, 429, 500, 502, 503, 504})
GO_ON = "Run the command again: it goes on with what has arrived."

_CHUNK_BYTES = 2**20
_SHA256 = re.compile(r"[0-9a-f]{64}")
_CONTENT_RANGE = re.compile(r"bytes (\d+)-\d+/(\d+|\*)")
TROUBLE = (aiohttp.ClientError, TimeoutError, ConnectionError)  # of the line; what the disk raises is not

_log = logging.getLogger(__name__)


class Refused(Exception):
    """The server's answer is an error that waiting does not help against."""

    def __init__(self, status: int, reason: str) -> None:
        self.status = status
        self.reason = reason
        super().__init__(f"the server answers {status} {reason}".strip())


class ServerBusy(Exception):
    """The server's answer is an error that may be over in a moment."""

    def __init__(self, refused: Refused, asked_s: float) -> None:
        self.refused = refused
        self.asked_s = asked_s  # how long the server wants us to wait
        super().__init__(str(refused))


class Changed(Exception):
    """The server has another file under this address than the one whose size and tag it told."""


@dataclass(frozen=True, slots=True)
class RemoteFile:
    """A file that can be fetched, and what it must be when it has arrived."""

    name: str  # for people
    url: str
    etag: str
    size_bytes: int

    @property
    def sha256(self) -> str | None:
        """What its bytes must hash to, where its tag says so."""
        return self.etag if _SHA256.fullmatch(self.etag) else None


class Patience:
    """Waits longer after each failure in a row, and raises it when there were too many."""

    def __init__(self, sleep: Sleep = asyncio.sleep) -> None:
        self._sleep = sleep
        self._failures = 0

    def reset(self) -> None:
        """Something went well."""
        self._failures = 0

    async def wait(self, failure: Exception, asked_s: float = 0.0) -> None:
        """Wait, at least as long as was asked for; raise `failure` instead after too many."""
        self._failures += 1
        if self._failures >= MAX_FAILURES:
            raise failure
        wait_s = min(MAX_WAIT_S, max(asked_s, FIRST_WAIT_S * 2 ** (self._failures - 1)))
        _log.info("%s; trying again in %.1f s", failure, wait_s)
        await self._sleep(wait_s)


class Partial:
    """The bytes of a file that are here, hashed as they come. To be used by one process at a time."""

    def __init__(self, path: Path, size_bytes: int) -> None:
        self.path = path
        self.size_bytes = size_bytes  # when it is whole
        self.here_bytes = 0
        self.is_pieced = False  # of bytes from more than one answer
        self._digest = hashlib.sha256()
        self._file: BinaryIO | None = None

    async def open(self) -> None:
        """Take up what an earlier process left."""
        self._file = self.path.open("ab+")
        self._file.seek(0)
        while chunk := self._file.read(_CHUNK_BYTES):
            self._count(chunk)
            await asyncio.sleep(0)  # a large file takes seconds: let others, and Ctrl-C, have their turn
        self.is_pieced = self.here_bytes > 0
        if self.here_bytes > self.size_bytes:
            self.restart()

    def close(self) -> None:
        """What has arrived stays."""
        if self._file is not None:
            self._file.close()

    def restart(self) -> None:
        """Forget what is here."""
        self._open_file.truncate(0)
        self.here_bytes, self.is_pieced, self._digest = 0, False, hashlib.sha256()

    def write(self, chunk: bytes) -> None:
        """Append what arrived. Raises `OSError` when the disk is full."""
        self._open_file.write(chunk)
        self._open_file.flush()  # so that a full disk is told here, and a killed process loses nothing
        self._count(chunk)

    def sha256(self) -> str:
        """Of what is here."""
        return self._digest.hexdigest()

    @property
    def _open_file(self) -> BinaryIO:
        if self._file is None:
            raise ValueError(f"{self.path} is not open")
        return self._file

    def _count(self, chunk: bytes) -> None:
        self._digest.update(chunk)
        self.here_bytes += len(chunk)


class Transfer:
    """Brings one file here."""

    def __init__(
        self,
        session: aiohttp.ClientSession,
        file: RemoteFile,
        partial: Partial,
        on_bytes: Callable[[int], None],
        patience: Patience,
    ) -> None:
        """`on_bytes` is told how many bytes are here, again and again."""
        self._session = session
        self._file = file
        self._partial = partial
        self._on_bytes = on_bytes
        self._patience = patience
        self._restarts = 0
        self._most_bytes = 0  # that were ever here

    async def run(self) -> None:
        """Fetch what is missing and check the whole. The partial file is open.

        Raises `DownloadFailed`, `Refused`, `Changed`, and `OSError` when the disk does not take it.
        """
        self._note_progress()
        while True:
            await self._fetch_the_rest()
            expected = self._file.sha256
            if expected is None or self._partial.sha256() == expected:
                return
            was_pieced = self._partial.is_pieced
            self._partial.restart()
            if not was_pieced:
                raise DownloadFailed(
                    f"{self._file.name} arrived with another SHA-256 than {expected} and was thrown away",
                    "Run the command again; if it stays so, the server has another file than it says.",
                )
            self._count_restart("its pieces do not make the file whose SHA-256 was told")

    async def _fetch_the_rest(self) -> None:
        while self._partial.here_bytes < self._file.size_bytes:
            cause: Exception | None = None
            asked_s = 0.0
            try:
                await self._ask()
            except ServerBusy as busy:
                cause, asked_s = busy.refused, busy.asked_s
            except TROUBLE as error:
                cause = error
            if self._partial.here_bytes < self._file.size_bytes:
                await self._patience.wait(self._cut(cause), asked_s)

    async def _ask(self) -> None:
        """Ask once for what is missing, and take what comes."""
        start = self._partial.here_bytes
        headers = {"Accept-Encoding": "identity"} | ({"Range": f"bytes={start}-"} if start else {})
        async with self._session.get(self._file.url, headers=headers) as answer:
            if answer.status == 416:
                return self._restart("the server has no such range of it")
            raise_for_status(answer)
            if (told := told_etag(answer)) is not None and told != self._file.etag:
                raise Changed(f"{self._file.name} is another file than it was a moment ago")
            begin, total_bytes = _extent(answer)
            if total_bytes is not None and total_bytes != self._file.size_bytes:
                raise self._lies(f"{total_bytes:,}")
            if begin is None or begin not in (0, start):
                return self._restart("the server sends another part of it than it was asked for")
            if begin != start:  # it knows no ranges
                self._partial.restart()
            self._partial.is_pieced |= begin > 0
            async for chunk in answer.content.iter_chunked(_CHUNK_BYTES):
                self._take(chunk)
        return None

    def _take(self, chunk: bytes) -> None:
        if self._partial.here_bytes + len(chunk) > self._file.size_bytes:
            self._partial.restart()
            raise self._lies("more")
        self._partial.write(chunk)
        self._note_progress()

    def _lies(self, sends: str) -> Changed:
        return Changed(
            f"{self._file.name} has {self._file.size_bytes:,} bytes as the server said, and it sends {sends}"
        )

    def _restart(self, why: str) -> None:
        self._partial.restart()
        self._count_restart(why)

    def _count_restart(self, why: str) -> None:
        self._restarts += 1
        if self._restarts > MAX_RESTARTS:
            raise DownloadFailed(f"{self._file.name} could not be downloaded: {why}", "Try again later.")
        _log.info("%s: %s; it begins anew", self._file.name, why)

    def _cut(self, cause: Exception | None) -> DownloadFailed:
        how = (str(cause) or type(cause).__name__) if cause is not None else "the line was cut"
        return DownloadFailed(
            f"{self._file.name} did not get beyond {self._partial.here_bytes:,} of "
            f"{self._file.size_bytes:,} bytes: {how}",
            GO_ON,
        )

    def _note_progress(self) -> None:
        here = self._partial.here_bytes
        if here > self._most_bytes:
            self._most_bytes = here
            self._patience.reset()
        self._on_bytes(here)


def raise_for_status(answer: aiohttp.ClientResponse) -> None:
    """Raise `ServerBusy` or `Refused` for an answer that is an error."""
    if answer.status < 400:
        return
    refused = Refused(answer.status, answer.headers.get("X-Error-Code") or answer.reason or "")
    if answer.status in RETRIED:
        asked = answer.headers.get("Retry-After", "")
        raise ServerBusy(refused, float(asked) if asked.isdecimal() else 0.0)
    raise refused


def told_etag(answer: aiohttp.ClientResponse) -> str | None:
    """The hub's tag of a file; None where only a server that it sends us to has said one."""
    chain = (*answer.history, answer)
    linked = next((each.headers["X-Linked-Etag"] for each in chain if "X-Linked-Etag" in each.headers), None)
    is_elsewhere = answer.url.origin() != chain[0].url.origin()
    etag = linked or (None if is_elsewhere else answer.headers.get("ETag"))
    return etag.removeprefix("W/").strip('"') if etag else None


def _extent(answer: aiohttp.ClientResponse) -> tuple[int | None, int | None]:
    """At which byte of the file the body begins, and how many the file has; None: that is not said."""
    if answer.status != 206:
        return 0, None if "Content-Encoding" in answer.headers else answer.content_length
    match = _CONTENT_RANGE.fullmatch(answer.headers.get("Content-Range", ""))
    if match is None:
        return None, None
    return int(match[1]), None if match[2] == "*" else int(match[2])
