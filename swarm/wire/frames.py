"""Frames: ``u32 header length | u32 body length | header | body``, little-endian.

Pure. The prefix is checked against the limits before a single byte of the frame is read, so a
stranger cannot make a peer allocate what it will refuse. How large a body may be follows from the
model; whoever reads says it.
"""

import struct
from typing import NamedTuple

from swarm.errors import FrameTooLarge, MalformedMessage

MAX_HEADER_BYTES = 8 * 1024
MAX_BODY_BYTES = 64 * 1024 * 1024
PREFIX_BYTES = 8

_PREFIX = struct.Struct("<II")


class FrameSize(NamedTuple):
    """Lengths of a frame's two parts, in bytes."""

    header_bytes: int
    body_bytes: int


def encode_prefix(header_bytes: int, body_bytes: int) -> bytes:
    """The eight bytes in front of a frame; refuses what the other end would refuse."""
    _check(header_bytes, body_bytes, MAX_BODY_BYTES)
    return _PREFIX.pack(header_bytes, body_bytes)


def decode_prefix(prefix: bytes, max_body_bytes: int = MAX_BODY_BYTES) -> FrameSize:
    """Read the eight bytes in front of a frame; raises `FrameTooLarge` or `MalformedMessage`."""
    if len(prefix) != PREFIX_BYTES:
        raise MalformedMessage(f"A frame starts with {PREFIX_BYTES} bytes, got {len(prefix)}")
    header_bytes, body_bytes = _PREFIX.unpack(prefix)
    _check(header_bytes, body_bytes, max_body_bytes)
    if header_bytes == 0:
        raise MalformedMessage("A frame without a header")
    return FrameSize(header_bytes, body_bytes)


def _check(header_bytes: int, body_bytes: int, max_body_bytes: int) -> None:
    if header_bytes > MAX_HEADER_BYTES:
        raise FrameTooLarge(f"A frame header of {header_bytes} bytes is over the limit of {MAX_HEADER_BYTES}")
    if body_bytes > max_body_bytes:
        raise FrameTooLarge(f"A frame body of {body_bytes} bytes is over the limit of {max_body_bytes}")
