"""Records: what peers announce in the directory, as typed values and signed bytes.

Pure: the clock is an argument. A record is msgpack of its fields in a signed envelope; the signer's
key *is* the peer id inside, so nobody can speak for another. Every number has a range and every text a
length, checked where it is decoded. `Snapshot` is all valid records of one model at one instant, and
what the router, placement and the status page reason about.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Annotated, Literal

import msgspec

from swarm.errors import InvalidRecord, MalformedMessage, StaleRecord
from swarm.values import ModelDigest, PeerId, Span, spans_of
from swarm.wire.decoding import Count, Digest, Moment, Rate, Word, decode
from swarm.wire.messages import WIRE_VERSION

MAX_LIFE_S = 90.0  # no record may live longer
MAX_CLOCK_SKEW_S = 3.0
MAX_NAME_CHARS = 64
MAX_BLOCKS = 1024  # of one model; the largest that were ever published have 130
MAX_SEALED_BYTES = 1536

State = Literal["joining", "online", "draining"]
Block = Annotated[int, msgspec.Meta(ge=0, le=MAX_BLOCKS)]
PeerName = Annotated[str, msgspec.Meta(min_length=1, max_length=64)]  # its signature is checked against it
Reachable = Literal["direct", "relayed", "no"]


class Record(msgspec.Struct, frozen=True, tag_field="type", kw_only=True):
    """What every record has: who says it, since when, how long it holds, and which is newer."""

    peer: PeerName
    model: Digest
    issued_at: Moment
    expires_at: Moment
    sequence: Count


class PeerRecord(Record, tag="peer", frozen=True, kw_only=True):
    """What one peer hosts and how it is doing. Holds no address."""

    start: Block
    end: Block
    state: State
    dtype: Word
    quantization: Word
    kernels: Word = ""  # fingerprint: peers that show the same one give the same bits
    decode_tokens_per_s: Rate  # one session, one token a step, through the whole span
    prefill_tokens_per_s: Rate
    free_tokens: Count  # KV tokens that new sessions may still take
    queue_depth: Count
    sessions_resumed: Count = 0  # since it started: taken up here after a loss or a leave
    reachable: Reachable = "direct"  # whether others can dial it, and how
    on_battery: bool = False
    started_at: Moment = 0.0
    wire_version: Count
    software: Word
    public_name: Annotated[str, msgspec.Meta(max_length=MAX_NAME_CHARS)] = ""

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

    @property
    def speaks_ours(self) -> bool:
        """Whether its messages are understood here."""
        return self.wire_version == WIRE_VERSION

    @property
    def is_usable(self) -> bool:
        """Whether it takes sessions, and others can dial and understand it."""
        return self.state == "online" and self.reachable != "no" and self.speaks_ours


class ModelRecord(Record, tag="model", frozen=True, kw_only=True):
    """A model that is hosted in this swarm; sponsored by a few of its peers."""

    name: Annotated[str, msgspec.Meta(min_length=1, max_length=200)]
    num_blocks: Annotated[int, msgspec.Meta(ge=1, le=MAX_BLOCKS)]
    hidden_size: Annotated[int, msgspec.Meta(ge=1, le=2**20)]
    model_type: Word


AnyRecord = PeerRecord | ModelRecord


class SignedRecord(msgspec.Struct, frozen=True, array_like=True):
    """The envelope: the record's bytes and the signer's Ed25519 signature over them."""

    payload: bytes
    signature: bytes


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


def unseal(sealed: bytes, verify: Verify) -> AnyRecord:
    """Read signed bytes; raises `InvalidRecord` unless signed by its peer and sensible.

    Whether the record still holds is another question: see `check_life`.
    """
    if len(sealed) > MAX_SEALED_BYTES:
        raise InvalidRecord(f"A record of {len(sealed)} bytes is over the limit of {MAX_SEALED_BYTES}")
    try:
        envelope = decode(_envelope_decoder, sealed, "a signed record")
        record = decode(_record_decoder, envelope.payload, "a record")
    except MalformedMessage as error:
        raise InvalidRecord(str(error)) from error
    if not verify(PeerId(record.peer), _SIGNING_DOMAIN + envelope.payload, envelope.signature):
        raise InvalidRecord(f"The record of peer {record.peer} is not signed by it")
    if isinstance(record, PeerRecord) and not record.start < record.end:
        raise InvalidRecord(f"{record.start}:{record.end} is not a span of blocks")
    if not record.expires_at - record.issued_at <= MAX_LIFE_S:
        raise InvalidRecord(f"The record claims a life of more than {MAX_LIFE_S:.0f} s")
    return record


def check_life(record: Record, now: float, grace_s: float = 0.0) -> None:
    """Raises `StaleRecord` unless the record holds at `now`.

    `grace_s` is how much more than usual the clocks may differ.
    """
    if now >= record.expires_at + grace_s:
        raise StaleRecord("The record has expired")
    if record.issued_at > now + MAX_CLOCK_SKEW_S + grace_s:
        raise StaleRecord("The record is issued in the future; is that machine's clock right?")


@dataclass(frozen=True, slots=True)
class LookUp:
    """What is found under a key of the directory.

    `hearsay` are the peers that neither they themselves nor a node that was joined through has told of.
    """

    records: tuple[AnyRecord, ...]
    hearsay: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Snapshot:
    """All valid records of one model at one instant; see `LookUp` for `hearsay`."""

    model: ModelDigest
    num_blocks: int
    peers: tuple[PeerRecord, ...]
    taken_at: float
    hearsay: frozenset[str] = frozenset()

    def online(self) -> tuple[PeerRecord, ...]:
        """Peers that take sessions, that others can dial, and whose messages are understood here."""
        return tuple(record for record in self.peers if record.is_usable)

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
        return replace(self, peers=kept)
