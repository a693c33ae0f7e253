"""The messages of the session protocol, as typed values, and their bytes.

Pure. A message travels as the header of a frame (msgpack of a tagged struct); `Step` and `Output`
also carry a body, the raw tensor. Both ends' duties are in docs/protocol.md.
"""

from typing import Literal

import msgspec

from swarm.wire.decoding import decode

WIRE_VERSION = 1
SESSION_PROTOCOL = "/swarm/session/1"
MAX_STEP_TOKENS = 512  # longer runs are sent as several steps

Role = Literal["active", "spare"]


class Message(msgspec.Struct, frozen=True, tag_field="type", kw_only=True):
    """Base of all messages."""


class Open(Message, tag="open", frozen=True, kw_only=True):
    """Client to peer, first on a stream: begin, or take up again, a session on a span."""

    wire_version: int
    session: str
    epoch: int  # counts the client's takes on this session; an older one is fenced off
    manifest: str
    start: int
    end: int
    dtype: str
    quantization: str
    codec: str  # of the hidden states in both directions
    max_tokens: int  # KV tokens asked for
    lease_s: float  # silence that the client tolerates while a step is out
    role: Role = "active"
    trace: str = ""


class Opened(Message, tag="opened", frozen=True, kw_only=True):
    """Peer to client: the session stands, with this many tokens already in its cache."""

    position: int
    max_tokens: int
    lease_s: float  # the peer beats four times within it while a step is out
    rewinds: int = 0  # of the session so far: as many as its client knows of, if nobody else has used it


class Step(Message, tag="step", frozen=True, kw_only=True):
    """Sender to peer: push `tokens` rows through the span. Body: [tokens, hidden].

    Only the last `reply_tokens` rows of the result are sent back: a replay needs none of them.
    """

    id: int  # grows with every step of a session
    position: int
    tokens: int
    reply_tokens: int


class Output(Message, tag="output", frozen=True, kw_only=True):
    """Peer to sender: the step's result, its last `tokens` rows. Body: [tokens, hidden]."""

    id: int
    position: int
    tokens: int
    compute_ms: float
    queue_ms: float


class Rewind(Message, tag="rewind", frozen=True, kw_only=True):
    """Client to peer: forget everything from `position` on. Not answered."""

    position: int


class Promote(Message, tag="promote", frozen=True, kw_only=True):
    """Client to peer: a spare session is active from now on. Not answered."""


class Ping(Message, tag="ping", frozen=True, kw_only=True):
    """Asks for a `Pong` with the same `id`."""

    id: int


class Pong(Message, tag="pong", frozen=True, kw_only=True):
    """Answers a `Ping`; with id -1, a beat sent unasked while a step is out."""

    id: int
    queue_depth: int


class Leaving(Message, tag="leaving", frozen=True, kw_only=True):
    """Peer to client: I go in so many seconds; move the session."""

    seconds: float


class Fault(Message, tag="fault", frozen=True, kw_only=True):
    """Peer to client: the session, or a step, is refused. Ends the stream; the session stays for a while."""

    code: str
    text: str
    retryable: bool
    field: str = ""
    expected_position: int | None = None


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
