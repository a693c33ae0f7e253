"""What the Hugging Face hub says: the commit of a revision, its files, and each file's tag and size.

Endpoint, token and timeouts are those of the library huggingface-hub, which is imported for them. Every
error becomes one of `swarm/errors.py`.
"""

import re
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, TypeVar
from urllib.parse import quote, urljoin, urlsplit
from urllib.request import getproxies, proxy_bypass

import aiohttp

from swarm.errors import DownloadFailed
from swarm.model.transfer import (
    GO_ON,
    TROUBLE,
    Partial,
    Patience,
    Refused,
    RemoteFile,
    ServerBusy,
    Sleep,
    Transfer,
    raise_for_status,
    told_etag,
)
from swarm.security.foreign import parse_json

Result = TypeVar("Result")

CONNECTIONS = 8
_MAX_LISTING_BYTES = 2**25
_MAX_REDIRECTS = 5
_COMMIT = re.compile(r"[0-9a-f]{40}")
_TAG = re.compile(r"[0-9A-Za-z][0-9A-Za-z._-]{0,127}")  # it becomes the name of a file
_PLAIN = {"Accept-Encoding": "identity"}  # a compressed file has another size
_LISTING_FIX = "Check HF_ENDPOINT: that is no Hugging Face hub, or one that is broken."


class Unreachable(Exception):
    """The hub does not answer, or is not to be asked."""


@dataclass(frozen=True, slots=True)
class Commit:
    """One state of a repository."""

    sha: str
    files: tuple[str, ...]


class HubApi:
    """Asks the hub about one repository."""

    def __init__(self, session: aiohttp.ClientSession, endpoint: str, repository: str, sleep: Sleep) -> None:
        self._session = session
        self._endpoint = endpoint
        self._repository = repository
        self._sleep = sleep
        self._was_reached = False

    async def commit(self, revision: str) -> Commit:
        """The commit that a branch or tag stands at. Raises `Unreachable` and `DownloadFailed`."""
        url = f"{self._endpoint}/api/models/{self._repository}"
        fields = await self._json(f"{url}/revision/{quote(revision, safe='')}")
        sha = fields.get("sha") if isinstance(fields, dict) else None
        if not isinstance(sha, str) or not _COMMIT.fullmatch(sha):
            raise DownloadFailed(f"{url} does not say at which commit {revision} stands", _LISTING_FIX)
        listing, key = fields.get("siblings"), "rfilename"
        if not isinstance(listing, list):  # some mirrors leave it out
            listing, key = await self._json(f"{url}/tree/{sha}?recursive=true"), "path"
        names = [each.get(key) for each in listing if isinstance(each, dict)]
        return Commit(sha, tuple(name for name in names if isinstance(name, str)))

    async def file(self, sha: str, name: str) -> RemoteFile:
        """Tag and size of a file, before a byte of it is sent."""
        url = f"{self._endpoint}/{self._repository}/resolve/{sha}/{quote(name)}"
        etag, size_bytes = await self._patiently(lambda: self._head(url))
        if etag is None or not _TAG.fullmatch(etag) or size_bytes is None:
            raise DownloadFailed(f"{url} is sent without a tag or a size", _LISTING_FIX)
        return RemoteFile(name, url, etag, size_bytes)

    async def fetch(self, file: RemoteFile, partial: Partial, on_bytes: Callable[[int], None]) -> None:
        """Bring a file here, into its open partial file. Raises as `Transfer.run` does, but no `Refused`."""
        try:
            await Transfer(self._session, file, partial, on_bytes, Patience(self._sleep)).run()
        except Refused as refused:
            raise self._explain(refused) from refused

    async def _patiently(self, ask: Callable[[], Awaitable[Result]]) -> Result:
        patience = Patience(self._sleep)
        while True:
            try:
                answer = await ask()
            except Refused as refused:
                raise self._explain(refused) from refused
            except ServerBusy as busy:
                failure = DownloadFailed(f"The Hugging Face hub is in trouble: {busy}", "Try again later.")
                await patience.wait(failure, busy.asked_s)
            except TROUBLE as error:
                unreachable = Unreachable(str(error) or type(error).__name__)
                if not self._was_reached and isinstance(error, aiohttp.ClientConnectorError):
                    raise unreachable from error
                await patience.wait(unreachable)
            else:
                self._was_reached = True
                return answer

    async def _json(self, url: str) -> Any:  # noqa: ANN401 - any JSON
        try:
            return parse_json(await self._patiently(lambda: self._read(url)))
        except ValueError as error:
            raise DownloadFailed(f"{url} does not answer with JSON: {error}", _LISTING_FIX) from error

    async def _read(self, url: str) -> bytes:
        async with self._session.get(url) as answer:
            raise_for_status(answer)
            content = bytearray()
            async for chunk in answer.content.iter_any():
                content += chunk
                if len(content) > _MAX_LISTING_BYTES:
                    raise DownloadFailed(f"{url} answers with more than a listing", _LISTING_FIX)
            return bytes(content)

    async def _head(self, url: str) -> tuple[str | None, int | None]:
        """The hub's own tag and size of a file, which it also knows of one that it sends us elsewhere for."""
        for _ in range(_MAX_REDIRECTS):
            async with self._session.head(url, headers=_PLAIN, allow_redirects=False) as answer:
                raise_for_status(answer)
                etag, linked = told_etag(answer), answer.headers.get("X-Linked-Size", "")
                if linked.isdecimal():
                    return etag, int(linked)
                if answer.status < 300:
                    return etag, answer.content_length
                target = urljoin(url, answer.headers.get("Location", ""))
                if urlsplit(target).netloc != urlsplit(url).netloc:
                    break
                url = target
        async with self._session.get(url, headers=_PLAIN) as answer:  # its body is not read
            raise_for_status(answer)
            return etag, answer.content_length

    def _explain(self, refused: Refused) -> DownloadFailed:
        what = f"{self._repository} could not be downloaded from the Hugging Face hub"
        match refused.reason, refused.status:
            case ("GatedRepo", _):
                return DownloadFailed(
                    f"{what}: it asks for consent first", "Give it on its page, then set HF_TOKEN."
                )
            case ("RevisionNotFound", _):
                return DownloadFailed(
                    f"{what}: there is no such revision", "Name a branch, a tag or a whole commit."
                )
            case ("RepoNotFound", _) | (_, 401):
                return DownloadFailed(
                    f"{what}: there is no such repository, or it is private", "Check the name or HF_TOKEN."
                )
        return DownloadFailed(f"{what}: {refused}", GO_ON)


def _proxy_for(endpoint: str) -> str | None:
    """What HTTPS_PROXY and its like say; aiohttp reads them only together with ~/.netrc, no token of ours."""
    parts = urlsplit(endpoint)
    proxies = getproxies()
    is_direct = proxy_bypass(parts.hostname or "")
    return None if is_direct else proxies.get(parts.scheme) or proxies.get("all")


@asynccontextmanager
async def open_hub(repository: str, sleep: Sleep) -> AsyncIterator[HubApi]:
    """The hub, as the library's settings have it. Raises `Unreachable` when it is not to be asked."""
    from huggingface_hub import constants
    from huggingface_hub.utils import build_hf_headers  # type: ignore[attr-defined]

    if constants.HF_HUB_OFFLINE:
        raise Unreachable("HF_HUB_OFFLINE is set")
    timeout = aiohttp.ClientTimeout(
        total=None,
        sock_connect=constants.HF_HUB_ETAG_TIMEOUT,
        sock_read=constants.HF_HUB_DOWNLOAD_TIMEOUT,
    )
    async with aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=CONNECTIONS),
        headers=build_hf_headers(library_name="swarm"),
        timeout=timeout,
        proxy=_proxy_for(constants.ENDPOINT),
    ) as session:
        yield HubApi(session, constants.ENDPOINT, repository, sleep)
