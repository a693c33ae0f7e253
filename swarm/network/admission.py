"""Which record may stand where in the directory, and which not.

Pure: the clock is an argument. Every node of a swarm applies these rules to what it is asked to
keep and to what it is told, in memory as over libp2p, so a record that is not signed by its peer,
or stands under a key or subkey that is not its own, is kept by nobody and believed by nobody.
"""

from dataclasses import dataclass

from swarm.errors import InvalidRecord
from swarm.security.identity import verify
from swarm.values import ModelDigest, Span
from swarm.wire.records import AnyRecord, ModelRecord, unseal

BLOCKS_PER_BUCKET = 32
MODELS_KEY = "models"
MAX_SEALED_BYTES = 4096


@dataclass(frozen=True, slots=True)
class Entry:
    """A sealed record as it stands in the directory."""

    subkey: str
    sealed: bytes
    expires_at: float  # Unix seconds


def bucket_keys(model: ModelDigest, span: Span) -> tuple[str, ...]:
    """The keys of the buckets of 32 blocks that a span touches."""
    first, last = span.start // BLOCKS_PER_BUCKET, (span.end - 1) // BLOCKS_PER_BUCKET
    return tuple(f"peers/{model}/{bucket}" for bucket in range(first, last + 1))


def keys_of(record: AnyRecord) -> tuple[str, ...]:
    """All keys that a record stands under."""
    if isinstance(record, ModelRecord):
        return (MODELS_KEY,)
    return bucket_keys(ModelDigest(record.model), record.span)


def subkey_of(record: AnyRecord) -> str:
    """The subkey of a record: its peer, and for a sponsored model also the model."""
    return f"{record.model}/{record.peer}" if isinstance(record, ModelRecord) else record.peer


def open_entry(entry: Entry, now: float, grace_s: float = 0.0) -> AnyRecord:
    """The record of an entry; raises `InvalidRecord` unless it is valid and expires when the entry does.

    `grace_s` forgives clocks that differ by so much more. The caller still has to compare the key.
    """
    record = _open(entry.subkey, entry.sealed, now, grace_s)
    if entry.expires_at != record.expires_at:
        raise InvalidRecord("The record is to be kept for longer or shorter than it says itself")
    return record


def admit(key: str, entry: Entry, now: float) -> AnyRecord:
    """The record of an entry; raises `InvalidRecord` unless it may be kept under `key`."""
    record = open_entry(entry, now)
    _check_key(key, record)
    return record


def open_at(key: str, subkey: str, sealed: bytes, now: float) -> AnyRecord:
    """A record that was found under a key; raises `InvalidRecord` unless it is valid and may stand there."""
    record = _open(subkey, sealed, now)
    _check_key(key, record)
    return record


def supersedes(newer: AnyRecord, older: AnyRecord) -> bool:
    """Whether a record takes the place of another by the same peer."""
    return newer.sequence > older.sequence and newer.expires_at > older.expires_at


def _open(subkey: str, sealed: bytes, now: float, grace_s: float = 0.0) -> AnyRecord:
    if len(sealed) > MAX_SEALED_BYTES:
        raise InvalidRecord(f"A record of {len(sealed)} bytes is over the limit of {MAX_SEALED_BYTES}")
    record = unseal(sealed, verify, now, grace_s)
    if subkey != subkey_of(record):
        raise InvalidRecord("The record stands under a subkey that is not its own")
    return record


def _check_key(key: str, record: AnyRecord) -> None:
    if key not in keys_of(record):
        raise InvalidRecord("The record stands under a key that is not its own")
