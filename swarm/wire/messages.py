"""The messages of the session protocol, as typed values, and their bytes.

Pure. A message travels as the header of a frame (msgpack of a tagged struct); `Step` and `Output`
also carry a body, the raw tensor. Both ends' duties are in docs/protocol.md.
"""

from typing import Annotated, Literal

import msgspec

from swarm.wire.decoding import Count, Milliseconds, Seconds, Word, decode

WIRE_VERSION = 1
SESSION_PROTOCOL = "/swarm/session/1"
MAX_STEP_TOKENS = 512  # longer runs are sent as several steps
NO_ROOM = "capacity"  # the code of a Fault for want of memory, or of sessions
FORMATS = ("fp32", "bf16", "fp16")  # of numbers: what hidden states travel in, and blocks compute in

Role = Literal["active", "spare"]
Number = Annotated[int, msgspec.Meta(ge=-(2**53), le=2**53)]  # only compared
Tokens = Annotated[int, msgspec.Meta(ge=0, le=2**31)]  # a position, or how many
MAX_TEXT_CHARS = 1000
Text = Annotated[str, msgspec.Meta(max_length=MAX_TEXT_CHARS)]


class Message(msgspec.Struct, frozen=True, tag_field="type", kw_only=True):
    """Base of all messages."""


class Open(Message, tag="open", frozen=True, kw_only=True):
    """Client to peer, first on a stream: begin, or take up again, a session on a span."""

    wire_version: Count
    session: Annotated[str, msgspec.Meta(min_length=1, max_length=64)]  # its name on this peer alone
    epoch: Count  # counts the client's takes on this session; an older one is fenced off
    owner: Annotated[str, msgspec.Meta(max_length=64)]  # the conversation's key, written as a peer id is
    proof: Annotated[bytes, msgspec.Meta(max_length=64)]  # that who opened this stream may take it up here
    manifest: Annotated[str, msgspec.Meta(max_length=64)]
    start: Tokens
    end: Tokens
    dtype: Word
    quantization: Word
    kernels: Word = ""  # fingerprint of those that it is to compute with; empty for any
    codec: Word  # of the hidden states in both directions
    max_tokens: Annotated[int, msgspec.Meta(ge=1, le=2**31)]  # KV tokens asked for
    lease_s: Annotated[float, msgspec.Meta(gt=0, le=1e6)]  # silence the client tolerates while a step is out
    role: Role = "active"
    trace: Annotated[str, msgspec.Meta(max_length=200)] = ""


class Opened(Message, tag="opened", frozen=True, kw_only=True):
    """Peer to client: the session stands, with this many tokens already in its cache."""

    position: Tokens
    max_tokens: Tokens
    lease_s: Annotated[float, msgspec.Meta(gt=0, le=1e6)]  # the peer beats four times within it
    rewinds: Count = 0  # of the session so far: as many as its client knows of, if nobody else has used it


class Step(Message, tag="step", frozen=True, kw_only=True):
    """Sender to peer: push `tokens` rows through the span. Body: [tokens, hidden].

    Only the last `reply_tokens` rows of the result are sent back: a replay needs none of them.
    """

    id: Number  # grows with every step of a session
    position: Tokens
    tokens: Annotated[int, msgspec.Meta(ge=1, le=MAX_STEP_TOKENS)]
    reply_tokens: Annotated[int, msgspec.Meta(ge=0, le=MAX_STEP_TOKENS)]


class Output(Message, tag="output", frozen=True, kw_only=True):
    """Peer to sender: the step's result, its last `tokens` rows. Body: [tokens, hidden]."""

    id: Number
    position: Tokens
    tokens: Annotated[int, msgspec.Meta(ge=0, le=MAX_STEP_TOKENS)]
    compute_ms: Milliseconds
    queue_ms: Milliseconds


class Rewind(Message, tag="rewind", frozen=True, kw_only=True):
    """Client to peer: forget everything from `position` on. Not answered."""

    position: Tokens


class Promote(Message, tag="promote", frozen=True, kw_only=True):
    """Client to peer: a spare session is active from now on. Not answered."""


class Ping(Message, tag="ping", frozen=True, kw_only=True):
    """Asks for a `Pong` with the same `id`."""

    id: Number


class Pong(Message, tag="pong", frozen=True, kw_only=True):
    """Answers a `Ping`; with id -1, a beat sent unasked while a step is out."""

    id: Number
    queue_depth: Count


class Leaving(Message, tag="leaving", frozen=True, kw_only=True):
    """Peer to client: I go in so many seconds; move the session."""

    seconds: Seconds


class Fault(Message, tag="fault", frozen=True, kw_only=True):
    """Peer to client: the session, or a step, is refused. Ends the stream; the session stays for a while."""

    code: Word
    text: Text
    retryable: bool
    field: Word = ""
    expected_position: Tokens | None = None


class Close(Message, tag="close", frozen=True, kw_only=True):
    """Client to peer: done; free everything."""


AnyMessage = Open | Opened | Step | Output | Rewind | Promote | Ping | Pong | Leaving | Fault | Close

_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(AnyMessage)


def encode_message(message: Message) -> bytes:
    """The header bytes of a message."""
    return _encoder.encode(message)


def decode_message(header: bytes) -> AnyMessage:
    """Read header bytes; raises `MalformedMessage` on anything that is not a known message."""
    return decode(_decoder, header, f"a message of wire version {WIRE_VERSION}")
