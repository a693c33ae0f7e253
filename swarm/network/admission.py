"""Which record may stand where in the directory, and which not.

Pure: the clock is an argument. Every node of a swarm applies these rules to what it is asked to
keep and to what it is told, in memory as over libp2p, so a record that is not signed by its peer,
or stands under a key that is not its own, is kept by nobody and believed by nobody.
"""

from collections import OrderedDict
from collections.abc import Iterable

from swarm.errors import InvalidRecord
from swarm.security.identity import verify
from swarm.values import ModelDigest, Span
from swarm.wire.records import AnyRecord, ModelRecord, check_life, unseal

BLOCKS_PER_BUCKET = 32
MODELS_KEY = "models"
_REMEMBERED = 16_384  # records whose signatures need not be checked again; some 20 MB


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
    """What a record replaces an earlier one of under the same key: its peer's, and for a sponsored model
    also the model's."""
    return f"{record.model}/{record.peer}" if isinstance(record, ModelRecord) else record.peer


def newest(records: Iterable[AnyRecord]) -> tuple[AnyRecord, ...]:
    """Of what stands under one key, as several nodes tell it, each peer's last word."""
    chosen: dict[str, AnyRecord] = {}
    for record in records:
        known = chosen.get(subkey_of(record))
        if known is None or known.sequence < record.sequence:
            chosen[subkey_of(record)] = record
    return tuple(chosen.values())


class RecordCheck:
    """Opens sealed records. A signature that was found right once is not checked again."""

    def __init__(self) -> None:
        self._opened: OrderedDict[bytes, AnyRecord] = OrderedDict()

    def admit(self, key: str, sealed: bytes, now: float, grace_s: float = 0.0) -> AnyRecord:
        """The record of sealed bytes under a key.

        Raises `StaleRecord` for one that does not hold now (`grace_s` forgives clocks that differ by so
        much more), and `InvalidRecord` for one that may never stand there.
        """
        record = self._opened.get(sealed)
        if record is None:
            record = unseal(sealed, verify)
            self._opened[sealed] = record
            if len(self._opened) > _REMEMBERED:
                self._opened.popitem(last=False)
        if key not in keys_of(record):
            raise InvalidRecord("The record stands under a key that is not its own")
        check_life(record, now, grace_s)
        return record
