"""The one way that bytes of strangers become typed values.

Pure. msgspec reads into the declared types and checks their ranges while it does; nothing is built that
the type does not name. What it can raise for any input is caught here.
"""

from typing import Annotated, TypeVar

import msgspec

from swarm.errors import MalformedMessage

T = TypeVar("T")

# Ranges of numbers that strangers send. NaN and infinities are outside of each.
Count = Annotated[int, msgspec.Meta(ge=0, le=2**53)]
Moment = Annotated[float, msgspec.Meta(ge=0, le=2**40)]  # Unix seconds
Seconds = Annotated[float, msgspec.Meta(ge=0, le=1e6)]
Milliseconds = Annotated[float, msgspec.Meta(ge=0, le=1e9)]
Rate = Annotated[float, msgspec.Meta(ge=0, le=1e9)]  # a second
Digest = Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{64}\\Z", max_length=64)]
Word = Annotated[str, msgspec.Meta(pattern="^[A-Za-z0-9_.+-]*\\Z", max_length=32)]  # of a fixed vocabulary


def decode(decoder: "msgspec.msgpack.Decoder[T]", raw: bytes, what: str) -> T:
    """Read bytes into the decoder's type; raises `MalformedMessage`, which begins with "Not `what`"."""
    try:
        return decoder.decode(raw)
    except (msgspec.DecodeError, RecursionError) as error:  # the latter: nested too deeply in a field to skip
        raise MalformedMessage(f"Not {what}: {error}") from error
