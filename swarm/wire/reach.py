"""The messages of the reach protocol: can you dial me, where is that peer, I am back. As values and bytes.

Pure. Each stream carries one question and one answer, each the header of a frame without a body. A node
dials back only to the very address that it sees the question come from, so what is asked names ports,
never addresses: nobody can have a third party scanned.
"""

from typing import Annotated, TypeVar

import msgspec

from swarm.errors import MalformedMessage
from swarm.wire.decoding import decode

REACH_PROTOCOL = "/swarm/reach/1"
MAX_REACH_BYTES = 4096
MAX_PORTS = 4
MAX_ADDRESSES = 16

_Port = Annotated[int, msgspec.Meta(ge=1, le=65535)]
_Text = Annotated[str, msgspec.Meta(max_length=300)]


class ReachMessage(msgspec.Struct, frozen=True, tag_field="type", kw_only=True):
    """Base of all messages."""


class DialBack(ReachMessage, tag="dial_back", frozen=True, kw_only=True):
    """Dial the host that this comes from at these TCP ports: does this peer answer there?"""

    ports: Annotated[tuple[_Port, ...], msgspec.Meta(max_length=MAX_PORTS)]


class DialedBack(ReachMessage, tag="dialed_back", frozen=True, kw_only=True):
    """What came of it, and whether this node relays for others."""

    host: _Text  # where the question came from; empty when that was no address to dial, as through a relay
    reached: Annotated[tuple[_Port, ...], msgspec.Meta(max_length=MAX_PORTS)] = ()
    relays: bool = False


class Locate(ReachMessage, tag="locate", frozen=True, kw_only=True):
    """Is this peer you, or connected to you and alive, and where does it listen?"""

    peer: _Text


class Located(ReachMessage, tag="located", frozen=True, kw_only=True):
    """It answers here and listens there; no address at all when it does not answer here."""

    addresses: Annotated[tuple[_Text, ...], msgspec.Meta(max_length=MAX_ADDRESSES)] = ()  # multiaddresses


class Returned(ReachMessage, tag="returned", frozen=True, kw_only=True):
    """I was cut off: whatever connection you have to me but this one is dead."""


class Noted(ReachMessage, tag="noted", frozen=True, kw_only=True):
    """There was no other. (If there was, all are closed instead, this one too, to be dialled anew.)"""


Question = DialBack | Locate | Returned
_Read = TypeVar("_Read")
_encoder = msgspec.msgpack.Encoder()
_question_decoder = msgspec.msgpack.Decoder(Question)
_dialed_back_decoder = msgspec.msgpack.Decoder(DialedBack)
_located_decoder = msgspec.msgpack.Decoder(Located)


def encode_reach(message: ReachMessage) -> bytes:
    """The bytes of a message."""
    return _encoder.encode(message)


def decode_question(data: bytes) -> Question:
    """Read what is asked. Raises `MalformedMessage`."""
    return _decode(_question_decoder, data)


def decode_dialed_back(data: bytes) -> DialedBack:
    """Read the answer to a `DialBack`. Raises `MalformedMessage`."""
    return _decode(_dialed_back_decoder, data)


def decode_located(data: bytes) -> Located:
    """Read the answer to a `Locate`. Raises `MalformedMessage`."""
    return _decode(_located_decoder, data)


def _decode(decoder: "msgspec.msgpack.Decoder[_Read]", data: bytes) -> _Read:
    if len(data) > MAX_REACH_BYTES:
        raise MalformedMessage(f"A message of the reach protocol has at most {MAX_REACH_BYTES} bytes")
    return decode(decoder, data, f"a message of {REACH_PROTOCOL}")
