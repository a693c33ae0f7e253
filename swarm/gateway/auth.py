"""API keys: a TOML file with their hashes and limits.

A key is 32 random bytes, so a plain SHA-256 hides it; only the hash is kept. The file is read again
when it changes, so a key can be given or taken back while the gateway runs. Nobody but its owner may
read or write it. A file that is broken while the gateway runs lets nobody in, and only the log says why.

    [[key]]
    name = "alice"
    sha256 = "..."
    requests_per_minute = 60    # no limit without it
    concurrent = 4
"""

import hashlib
import logging
import os
import secrets
import stat
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from swarm.errors import ConfigurationError
from swarm.gateway.refusal import Refusal

PREFIX = "sk-swarm-"
Stamp = tuple[int, ...] | None  # differs when the file does; None without a file

_log = logging.getLogger(__name__)


class ApiKey(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Who may ask, and how much. Without a file there is one key for all, without limits."""

    name: str
    sha256: str = ""
    requests_per_minute: float | None = None
    concurrent: int | None = None


class _File(msgspec.Struct, forbid_unknown_fields=True):
    key: list[ApiKey] = []


ANYONE = ApiKey(name="")


@dataclass(slots=True)
class KeyFile:
    """The keys of a file; without a file everyone may ask."""

    path: Path | None = None
    _keys: dict[str, ApiKey] | None = field(default_factory=dict)  # None: the file is broken
    _stamp: Stamp = None

    def __post_init__(self) -> None:
        if self.path is not None:
            self._stamp = _stamp(self.path)
            self._keys = read_keys(self.path)

    def key_of(self, authorization: str | None) -> ApiKey:
        """The key in an `Authorization` header. Raises a `Refusal`: 401, or 503 when the file is broken."""
        if self.path is None:
            return ANYONE
        self._read_if_changed(self.path)
        if self._keys is None:
            raise Refusal(
                503, "This gateway cannot check keys now", "Tell its operator.", reason="keys_unavailable"
            )
        scheme, _, secret = (authorization or "").partition(" ")
        key = self._keys.get(_hash(secret.strip())) if scheme.lower() == "bearer" else None
        if key is None:
            what = "The API key is not one of this gateway's" if authorization else "There is no API key"
            raise Refusal(401, what, "Send the header Authorization: Bearer KEY.", reason="invalid_api_key")
        return key

    def _read_if_changed(self, path: Path) -> None:
        stamp = _stamp(path)
        if stamp == self._stamp:
            return
        self._stamp = stamp
        try:
            self._keys = read_keys(path)
        except ConfigurationError as error:
            self._keys = None
            _log.error("Nobody is let in until the file of keys is put right: %s", error)


def read_keys(path: Path) -> dict[str, ApiKey]:
    """The keys of a file by hash. Raises `ConfigurationError` saying where it is wrong."""
    try:
        with path.open("rb") as file:
            mode = os.fstat(file.fileno()).st_mode
            raw = file.read()
        if mode & (stat.S_IRWXG | stat.S_IRWXO):
            raise ConfigurationError(
                f"{path} can be read or changed by other users", f"Run: chmod 600 {path}"
            )
        keys = msgspec.toml.decode(raw, type=_File).key
    except OSError as error:
        raise ConfigurationError(
            f"{path} cannot be read: {error.strerror}", "Make a key with --new-key FILE NAME."
        ) from error
    except (msgspec.DecodeError, ValueError) as error:
        raise ConfigurationError(
            f"{path} is not a file of keys: {error}", "Correct it at that place."
        ) from error
    for key in keys:
        if len(key.sha256) != 64 or not key.name:
            raise ConfigurationError(f"{path}: a key needs a name and a sha256 of 64 hex digits")
    return {key.sha256.lower(): key for key in keys}


def add_key(path: Path, name: str) -> str:
    """Make a key, add its hash to the file (made if need be, readable by its owner), and give it."""
    known = read_keys(path) if path.exists() else {}
    if any(key.name == name for key in known.values()):
        raise ConfigurationError(f"{path} has a key named {name!r} already", "Choose another name.")
    secret = PREFIX + secrets.token_urlsafe(32)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch(mode=0o600)
    with path.open("a", encoding="utf-8") as file:
        file.write(f'[[key]]\nname = {msgspec.json.encode(name).decode()}\nsha256 = "{_hash(secret)}"\n\n')
    return secret


def _hash(secret: str) -> str:
    return hashlib.sha256(secret.encode(errors="surrogateescape")).hexdigest()


def _stamp(path: Path) -> Stamp:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_ctime_ns, found.st_ino, found.st_size
