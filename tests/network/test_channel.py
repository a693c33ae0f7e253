"""The channel against a stream that sends anything, or ends anywhere."""

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swarm.errors import ChannelClosed, FrameTooLarge, ProtocolError
from swarm.network.channel import Channel, Envelope
from swarm.values import PeerId
from swarm.wire.frames import MAX_BODY_BYTES, PREFIX_BYTES, encode_prefix
from swarm.wire.messages import Ping, encode_message


class Stream:
    """Both halves of a byte stream, on a buffer; counts what was read."""

    def __init__(self, incoming: bytes = b"") -> None:
        self.incoming = incoming
        self.read_bytes = 0
        self.written = b""
        self.closed = 0

    async def readexactly(self, n: int) -> bytes:
        chunk = self.incoming[self.read_bytes : self.read_bytes + n]
        self.read_bytes += len(chunk)
        if len(chunk) < n:
            raise asyncio.IncompleteReadError(chunk, n)
        return chunk

    def write(self, data: bytes) -> None:
        if self.closed:
            raise RuntimeError("the transport is closed")
        self.written += data

    async def drain(self) -> None:
        if self.closed:
            raise ConnectionResetError

    def close(self) -> None:
        self.closed += 1


def channel_on(stream: Stream) -> Channel:
    return Channel(PeerId("peer"), stream, stream)


def framed(header: bytes, body: bytes = b"") -> bytes:
    return encode_prefix(len(header), len(body)) + header + body


async def test_frames_are_received_one_by_one() -> None:
    channel = channel_on(
        Stream(framed(encode_message(Ping(id=1)), b"body") + framed(encode_message(Ping(id=2))))
    )
    assert await channel.receive() == Envelope(Ping(id=1), b"body")
    assert await channel.receive() == Envelope(Ping(id=2), b"")
    with pytest.raises(ChannelClosed):
        await channel.receive()


async def test_sent_frame_is_prefix_header_and_body() -> None:
    stream = Stream()
    await channel_on(stream).send(Ping(id=1), b"body")
    assert stream.written == framed(encode_message(Ping(id=1)), b"body")


@given(st.binary(max_size=300))
def test_random_bytes_end_in_a_protocol_error_or_the_end(raw: bytes) -> None:
    with pytest.raises((ProtocolError, ChannelClosed)):
        asyncio.run(_receive_for_ever(channel_on(Stream(raw))))


@given(st.integers(0, 20))
def test_stream_that_ends_inside_a_frame_is_closed(cut: int) -> None:
    frame = framed(encode_message(Ping(id=1)), b"body")
    with pytest.raises(ChannelClosed):
        asyncio.run(channel_on(Stream(frame[: min(cut, len(frame) - 1)])).receive())


async def test_frame_over_the_limit_is_refused_unread() -> None:
    prefix = (10).to_bytes(4, "little") + (MAX_BODY_BYTES + 1).to_bytes(4, "little")
    stream = Stream(prefix + bytes(1000))
    with pytest.raises(FrameTooLarge):
        await channel_on(stream).receive()
    assert stream.read_bytes == PREFIX_BYTES


async def test_frame_over_the_limit_is_not_sent() -> None:
    stream = Stream()
    with pytest.raises(FrameTooLarge):
        await channel_on(stream).send(Ping(id=1), memoryview(bytes(MAX_BODY_BYTES + 1)))
    assert stream.written == b""


async def test_sending_into_a_broken_stream_says_that_it_is_closed() -> None:
    stream = Stream()
    channel = channel_on(stream)
    stream.close()
    with pytest.raises(ChannelClosed):
        await channel.send(Ping(id=1))


async def test_closing_twice_closes_once() -> None:
    stream = Stream()
    channel = channel_on(stream)
    channel.close()
    channel.close()
    assert stream.closed == 1
    with pytest.raises(ChannelClosed):
        await channel.send(Ping(id=1))


async def _receive_for_ever(channel: Channel) -> None:
    while True:
        await channel.receive()
