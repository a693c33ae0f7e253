"""Records: what peers announce in the directory, as typed values and signed bytes.

Pure: the clock is an argument. A record is msgpack of its fields in a signed envelope; the signer's
key *is* the peer id inside, so nobody can speak for another. `Snapshot` is all valid records of one
model at one instant, and what the router, placement and the status page reason about.
"""

import math
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Literal

import msgspec

from swarm.errors import InvalidRecord
from swarm.values import ModelDigest, PeerId, Span, spans_of

MAX_LIFE_S = 90.0  # no record may live longer
MAX_CLOCK_SKEW_S = 3.0
MAX_NAME_CHARS = 64

State = Literal["joining", "online", "draining"]
Reachable = Literal["direct", "relayed", "no"]


class Record(msgspec.Struct, frozen=True, tag_field="type", kw_only=True):
    """What every record has: who says it, since when, how long it holds, and which is newer."""

    peer: str
    model: str
    issued_at: float  # Unix seconds
    expires_at: float
    sequence: int


class PeerRecord(Record, tag="peer", frozen=True, kw_only=True):
    """What one peer hosts and how it is doing. Holds no address."""

    start: int
    end: int
    state: State
    dtype: str
    quantization: str
    decode_tokens_per_s: float  # one session, one token a step, through the whole span
    prefill_tokens_per_s: float
    free_tokens: int  # KV tokens that new sessions may still take
    queue_depth: int
    sessions_resumed: int = 0  # since it started: taken up here after a loss or a leave
    rtt_ms: dict[str, float] = {}  # to a few other peers
    reachable: Reachable = "direct"  # whether others can dial it, and how
    on_battery: bool = False
    started_at: float = 0.0
    wire_version: int
    software: str
    public_name: str = ""

    @property
    def span(self) -> Span:
        return Span(self.start, self.end)

    @property
    def relayed(self) -> bool:
        """Reached through a relay, not directly."""
        return self.reachable == "relayed"

    @property
    def peer_id(self) -> PeerId:
        return PeerId(self.peer)


class ModelRecord(Record, tag="model", frozen=True, kw_only=True):
    """A model that is hosted in this swarm; sponsored by a few of its peers."""

    name: str
    num_blocks: int
    hidden_size: int
    model_type: str


AnyRecord = PeerRecord | ModelRecord


class SignedRecord(msgspec.Struct, frozen=True, array_like=True):
    """The envelope: the record's bytes and the signer's Ed25519 signature over them."""

    payload: bytes
    signature: bytes


_DIGEST = re.compile("[0-9a-f]{64}")
_SIGNING_DOMAIN = b"swarm record 1\x00"
_encoder = msgspec.msgpack.Encoder()
_record_decoder = msgspec.msgpack.Decoder(AnyRecord)
_envelope_decoder = msgspec.msgpack.Decoder(SignedRecord)

Sign = Callable[[bytes], bytes]
Verify = Callable[[PeerId, bytes, bytes], bool]  # (signer, message, signature)


def seal(record: Record, sign: Sign) -> bytes:
    """The signed bytes of a record."""
    payload = _encoder.encode(record)
    return _encoder.encode(SignedRecord(payload, sign(_SIGNING_DOMAIN + payload)))


def unseal(sealed: bytes, verify: Verify, now: float, grace_s: float = 0.0) -> AnyRecord:
    """Read signed bytes; raises `InvalidRecord` unless signed by its peer, alive and sensible.

    `grace_s` is how much more than usual the clocks may differ; for nodes that keep others' records.
    """
    try:
        envelope = _envelope_decoder.decode(sealed)
        record = _record_decoder.decode(envelope.payload)
    except msgspec.DecodeError as error:
        raise InvalidRecord(f"Not a record: {error}") from error
    if not verify(PeerId(record.peer), _SIGNING_DOMAIN + envelope.payload, envelope.signature):
        raise InvalidRecord(f"The record of peer {record.peer[:64]} is not signed by it")
    _check_life(record, now, grace_s)
    _check_fields(record)
    return record


def _check_life(record: Record, now: float, grace_s: float) -> None:
    # Written as "not <=" so that NaN is refused.
    if not now < record.expires_at + grace_s:
        raise InvalidRecord("The record has expired")
    if not record.issued_at <= now + MAX_CLOCK_SKEW_S + grace_s:
        raise InvalidRecord("The record is issued in the future; is that machine's clock right?")
    if not record.expires_at - record.issued_at <= MAX_LIFE_S:
        raise InvalidRecord(f"The record claims a life of more than {MAX_LIFE_S:.0f} s")


def _check_fields(record: AnyRecord) -> None:
    if not _DIGEST.fullmatch(record.model):
        raise InvalidRecord("The model digest is not 64 hex digits")
    if isinstance(record, PeerRecord):
        if not 0 <= record.start < record.end <= 10_000:
            raise InvalidRecord(f"{record.start}:{record.end} is not a span of blocks")
        if len(record.public_name) > MAX_NAME_CHARS or len(record.rtt_ms) > 16:
            raise InvalidRecord("A field of the record is too long")
        numbers = (record.decode_tokens_per_s, record.prefill_tokens_per_s, *record.rtt_ms.values())
        if not all(0 <= number < math.inf for number in numbers):
            raise InvalidRecord("A measured number of the record is out of range")
    elif not (0 < record.num_blocks <= 10_000 and 0 < len(record.name) <= 200):
        raise InvalidRecord("A field of the model record is out of range")


@dataclass(frozen=True, slots=True)
class Snapshot:
    """All valid records of one model at one instant."""

    model: ModelDigest
    num_blocks: int
    peers: tuple[PeerRecord, ...]
    taken_at: float

    def online(self) -> tuple[PeerRecord, ...]:
        """Peers that take sessions and that others can dial."""
        return tuple(record for record in self.peers if record.state == "online" and record.reachable != "no")

    def coverage(self) -> list[int]:
        """How many online peers host each block."""
        counts = [0] * self.num_blocks
        for record in self.online():
            for block in range(record.start, min(record.end, self.num_blocks)):
                counts[block] += 1
        return counts

    def holes(self) -> list[Span]:
        """The blocks that no online peer hosts."""
        return spans_of(block for block, count in enumerate(self.coverage()) if count == 0)

    def without(self, peers: Iterable[PeerId]) -> "Snapshot":
        """The same instant without some peers."""
        gone = set(peers)
        kept = tuple(record for record in self.peers if record.peer not in gone)
        return Snapshot(self.model, self.num_blocks, kept, self.taken_at)
