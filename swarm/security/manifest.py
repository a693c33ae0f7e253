"""The manifest of a model: SHA-256 of its config, tokenizer and every tensor. Its digest *is* the model.

A pure value, and its JSON. Does not know how tensors are stored or read, so the digest is the same
however a checkpoint is cut into files.
"""

import hashlib
import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from swarm.errors import BrokenModel, UsageError
from swarm.security.foreign import parse_json, read_bounded
from swarm.values import ModelDigest

MANIFEST_FILE = "swarm-manifest.json"
FORMAT = 1
MAX_MANIFEST_BYTES = 2**25  # 10,000 blocks of 14 tensors, each with its name and digest, take 18 MB
_DOMAIN = b"swarm manifest 1\n"
_DIGEST = re.compile(r"[0-9a-f]{64}")
_REBUILD = "Delete it and build it again with `swarm model manifest`."


class Difference(NamedTuple):
    """One part on which two manifests disagree; None where a manifest lacks it."""

    part: str
    first: str | None
    second: str | None


@dataclass(frozen=True, slots=True)
class Manifest:
    """Digests (64 hex digits) of everything that makes a model what it is."""

    config: str
    tokenizer: Mapping[str, str]  # by part: tokenizer.json, chat_template, special_tokens
    tensors: Mapping[str, str]  # by tensor name; a digest covers dtype, shape and bytes

    @property
    def digest(self) -> ModelDigest:
        """The model's identity."""
        return ModelDigest(hashlib.sha256(_DOMAIN + self._canonical()).hexdigest())

    def to_json(self) -> str:
        """The manifest as text, for people too."""
        return json.dumps({"digest": self.digest, **self._fields()}, indent=1, sort_keys=True) + "\n"

    def _canonical(self) -> bytes:
        return json.dumps(self._fields(), sort_keys=True, separators=(",", ":"), ensure_ascii=True).encode()

    def _fields(self) -> dict[str, object]:
        return {
            "format": FORMAT,
            "config": self.config,
            "tokenizer": dict(self.tokenizer),
            "tensors": dict(self.tensors),
        }


def read_manifest(path: Path) -> Manifest:
    """Read a manifest that a person names. Raises `UsageError` and `BrokenModel`."""
    try:
        text = read_bounded(path, MAX_MANIFEST_BYTES).decode()
    except (OSError, ValueError) as error:
        raise UsageError(
            f"The manifest {path} cannot be read: {error}",
            "Name a file that `swarm model manifest MODEL --json` printed.",
        ) from error
    return parse_manifest(text, str(path))


def parse_manifest(text: str, source: str = MANIFEST_FILE) -> Manifest:
    """Read a manifest from JSON. Raises `BrokenModel`, naming `source`, for anything else."""
    try:
        data = parse_json(text)
    except ValueError as error:
        raise BrokenModel(f"{source} is not JSON: {error}", _REBUILD) from error
    if not isinstance(data, dict) or data.get("format") != FORMAT:
        raise BrokenModel(f"{source} is not a manifest of format {FORMAT}", _REBUILD)
    manifest = Manifest(
        config=_digests({"config": data.get("config")}, source)["config"],
        tokenizer=_digests(data.get("tokenizer"), source),
        tensors=_digests(data.get("tensors"), source),
    )
    if data.get("digest") != manifest.digest:
        raise BrokenModel(f"The digest in {source} is not that of its content", _REBUILD)
    return manifest


def _digests(value: object, source: str) -> dict[str, str]:
    if not isinstance(value, dict) or not all(
        isinstance(digest, str) and _DIGEST.fullmatch(digest) for digest in value.values()
    ):
        raise BrokenModel(f"{source} holds something that is not a SHA-256 digest", _REBUILD)
    return value


def differences(first: Manifest, second: Manifest) -> list[Difference]:
    """Where two manifests disagree, in the order config, tokenizer, tensors."""
    one, other = _parts(first), _parts(second)
    return [
        Difference(part, one.get(part), other.get(part))
        for part in dict.fromkeys((*one, *other))
        if one.get(part) != other.get(part)
    ]


def _parts(manifest: Manifest) -> dict[str, str]:
    return {"config": manifest.config, **manifest.tokenizer, **manifest.tensors}


def load_manifest(directory: Path) -> Manifest | None:
    """The manifest kept in a model directory, or None. Raises `BrokenModel` for a damaged one."""
    path = directory / MANIFEST_FILE
    try:
        return parse_manifest(read_bounded(path, MAX_MANIFEST_BYTES).decode(), str(path))
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise BrokenModel(f"{path} cannot be read: {error}", _REBUILD) from error


def save_manifest(directory: Path, manifest: Manifest) -> None:
    """Keep a manifest in a model directory; it appears whole or not at all. Raises `OSError`."""
    unfinished = directory / f"{MANIFEST_FILE}.{os.getpid()}"
    try:
        unfinished.write_text(manifest.to_json(), encoding="utf-8")
        unfinished.replace(directory / MANIFEST_FILE)
    finally:
        unfinished.unlink(missing_ok=True)
