"""Frames: the eight bytes in front, and the limits that hold before anything is read."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swarm.errors import FrameTooLarge, MalformedMessage
from swarm.wire.frames import MAX_BODY_BYTES, MAX_HEADER_BYTES, FrameSize, decode_prefix, encode_prefix


def test_prefix_is_two_little_endian_lengths() -> None:
    assert encode_prefix(0x0102, 0x030405) == bytes.fromhex("0201000005040300")


@given(st.integers(1, MAX_HEADER_BYTES), st.integers(0, MAX_BODY_BYTES))
def test_lengths_come_back(header_bytes: int, body_bytes: int) -> None:
    assert decode_prefix(encode_prefix(header_bytes, body_bytes)) == FrameSize(header_bytes, body_bytes)


@pytest.mark.parametrize(("header_bytes", "body_bytes"), [(MAX_HEADER_BYTES + 1, 0), (1, MAX_BODY_BYTES + 1)])
def test_frame_over_a_limit_is_neither_sent_nor_read(header_bytes: int, body_bytes: int) -> None:
    with pytest.raises(FrameTooLarge):
        encode_prefix(header_bytes, body_bytes)
    prefix = header_bytes.to_bytes(4, "little") + body_bytes.to_bytes(4, "little")
    with pytest.raises(FrameTooLarge, match="over the limit"):
        decode_prefix(prefix)


def test_frame_without_a_header_is_refused() -> None:
    with pytest.raises(MalformedMessage):
        decode_prefix(bytes(8))


@pytest.mark.parametrize("length", [0, 7, 9])
def test_prefix_of_another_length_is_refused(length: int) -> None:
    with pytest.raises(MalformedMessage):
        decode_prefix(b"\x01" * length)
