"""The channel against a stream that sends anything, or ends anywhere."""

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swarm.errors import ChannelClosed, FrameTooLarge, ProtocolError, SessionRefused
from swarm.network.channel import CLOSE_WITHIN_S, PATIENCE_S, Channel, Envelope
from swarm.testing.clock import run_virtual
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
        self.aborted = False

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

    def abort(self) -> None:
        self.aborted = True


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


def test_an_end_that_takes_nothing_in_is_cut_in_time() -> None:
    class Stuck(Stream):
        async def drain(self) -> None:
            await asyncio.Event().wait()

    async def run() -> tuple[float, bool]:
        stream = Stuck()
        with pytest.raises(ChannelClosed, match="takes nothing in"):
            await channel_on(stream).send(Ping(id=1), bytes(125_000))
        return asyncio.get_running_loop().time(), stream.aborted

    assert run_virtual(run()) == (PATIENCE_S + 10, True)


def test_a_frame_that_does_not_come_to_its_end_is_given_up() -> None:
    class Endless(Stream):
        async def readexactly(self, n: int) -> bytes:
            if self.read_bytes + n > len(self.incoming):
                await asyncio.Event().wait()
            return await super().readexactly(n)

    async def run() -> float:
        stream = Endless((20).to_bytes(4, "little") + (12_500).to_bytes(4, "little"))
        with pytest.raises(ChannelClosed, match="does not come to the end"):
            await channel_on(stream).receive()
        return asyncio.get_running_loop().time()

    assert run_virtual(run()) == PATIENCE_S + 1


def test_what_is_not_taken_in_soon_after_the_close_is_cut_off() -> None:
    async def run() -> list[bool]:
        stream = Stream()
        channel_on(stream).close()
        seen = [stream.aborted]
        await asyncio.sleep(CLOSE_WITHIN_S)
        return [*seen, stream.aborted]

    assert run_virtual(run()) == [False, True]


async def test_a_body_is_read_only_where_there_is_room_for_it() -> None:
    async def refuse(size_bytes: int) -> None:
        raise SessionRefused("capacity", f"no room for {size_bytes}")

    stream = Stream((20).to_bytes(4, "little") + (7).to_bytes(4, "little") + bytes(27))
    with pytest.raises(SessionRefused, match="no room for 7"):
        await channel_on(stream).receive(7, refuse)
    assert stream.read_bytes == 8


async def test_a_body_over_the_reader_s_own_limit_is_refused_unread() -> None:
    stream = Stream((20).to_bytes(4, "little") + (8).to_bytes(4, "little") + bytes(28))
    with pytest.raises(FrameTooLarge):
        await channel_on(stream).receive(max_body_bytes=7)
    assert stream.read_bytes == 8


async def _receive_for_ever(channel: Channel) -> None:
    while True:
        await channel.receive()
