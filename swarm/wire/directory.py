"""What nodes of the directory ask each other, as typed values, and their bytes.

Pure. Requests and answers are msgpack arrays whose first element names the kind. Everything has a bound
that is checked before, or while, the bytes are read: nothing here nests, and nothing is read twice. Who
speaks is known from the connection and is nowhere in a message.
"""

from typing import Annotated

import msgspec

from swarm.errors import MalformedMessage
from swarm.wire.decoding import Moment, decode
from swarm.wire.records import MAX_SEALED_BYTES

DIRECTORY_PROTOCOL = "/swarm/directory/1"
ID_BYTES = 20  # of a place in the key space: SHA-1, as in Kademlia
MAX_NODES_TOLD = 20  # Kademlia's k
MAX_REQUEST_BYTES = 4096
MAX_ANSWER_BYTES = 2**20 + 64 * 1024  # the most that is told of one key, and 20 names

Target = Annotated[bytes, msgspec.Meta(min_length=ID_BYTES, max_length=ID_BYTES)]
Key = Annotated[str, msgspec.Meta(min_length=1, max_length=128)]
NodeName = Annotated[str, msgspec.Meta(min_length=1, max_length=64)]
Sealed = Annotated[bytes, msgspec.Meta(max_length=MAX_SEALED_BYTES)]


class DirectoryRequest(msgspec.Struct, frozen=True, array_like=True):
    """Base of all requests. `serves`: the asker answers requests itself, so it may be told to others."""

    serves: bool


class Hello(DirectoryRequest, tag="hello", frozen=True, array_like=True):
    """Are you there, and what time is it? Answered by `Welcome`."""


class FindNodes(DirectoryRequest, tag="nodes", frozen=True, array_like=True):
    """Which nodes do you know nearest to this place? Answered by `Found` without records."""

    target: Target


class FindRecords(DirectoryRequest, tag="records", frozen=True, array_like=True):
    """What do you keep under this key, and who might know more? Answered by `Found`."""

    key: Key


class Store(DirectoryRequest, tag="store", frozen=True, array_like=True):
    """Keep this sealed record of mine under this key. Answered by `Stored`."""

    key: Key
    sealed: Sealed


class Welcome(msgspec.Struct, tag="welcome", frozen=True, array_like=True):
    """I am."""

    time: Moment  # of the answering node's clock, Unix seconds


class Found(msgspec.Struct, tag="found", frozen=True, array_like=True):
    """What I know."""

    nodes: Annotated[tuple[NodeName, ...], msgspec.Meta(max_length=MAX_NODES_TOLD)]  # peer ids
    records: tuple[Sealed, ...]


class Stored(msgspec.Struct, tag="stored", frozen=True, array_like=True):
    """Whether I keep the record."""

    kept: bool


class Busy(msgspec.Struct, tag="busy", frozen=True, array_like=True):
    """I am asked for too much, by you or by all; ask again in a while."""


AnyRequest = Hello | FindNodes | FindRecords | Store
AnyAnswer = Welcome | Found | Stored | Busy

_encoder = msgspec.msgpack.Encoder()
_request_decoder = msgspec.msgpack.Decoder(AnyRequest)
_answer_decoder = msgspec.msgpack.Decoder(AnyAnswer)


def encode(message: AnyRequest | AnyAnswer) -> bytes:
    """The bytes of a request or an answer."""
    return _encoder.encode(message)


def decode_request(raw: bytes) -> AnyRequest:
    """Read a request; raises `MalformedMessage` for anything else."""
    _check_size(raw, MAX_REQUEST_BYTES)
    return decode(_request_decoder, raw, "a request to the directory")


def decode_answer(raw: bytes) -> AnyAnswer:
    """Read an answer; raises `MalformedMessage` for anything else."""
    _check_size(raw, MAX_ANSWER_BYTES)
    return decode(_answer_decoder, raw, "an answer of the directory")


def _check_size(raw: bytes, limit_bytes: int) -> None:
    if len(raw) > limit_bytes:
        raise MalformedMessage(f"A message of {len(raw)} bytes is over the limit of {limit_bytes}")
