"""A channel: messages and tensor bodies over one byte stream, in order, both ways.

Knows frames and nothing of what the messages mean. Every way a stream can end (reset, end of file,
a closed writer, an other end that takes in nothing or sends a body for ever) is the one error
`ChannelClosed`: no send and no close waits for a stranger without an end.
"""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from typing import NamedTuple, Protocol

from swarm.errors import ChannelClosed, FrameTooLarge, ProtocolError
from swarm.network.budgets import Allowance, Budgets
from swarm.values import PeerId
from swarm.wire.frames import MAX_BODY_BYTES, PREFIX_BYTES, decode_prefix, encode_prefix
from swarm.wire.messages import AnyMessage, Message, Output, Step, decode_message, encode_message

SLOWEST_BYTES_PER_S = 12_500.0  # a link below this counts as stalled
PATIENCE_S = 20.0  # besides, for what is sent or a body that is coming
CLOSE_WITHIN_S = 5.0
CHATTER = Allowance(burst=2000, per_s=200)  # messages beside the work: beats of an hour's sleep come at once
YIELD_EVERY = 16  # frames

Reserve = Callable[[int], Awaitable[None]]  # asks for room for a body of so many bytes

_STREAM_ERRORS = (
    OSError,
    asyncio.IncompleteReadError,
    RuntimeError,
)  # uvloop raises RuntimeError when closed


class Reader(Protocol):
    """The reading half of a byte stream, as asyncio.StreamReader has it."""

    async def readexactly(self, n: int) -> bytes: ...


class Writer(Protocol):
    """The writing half of a byte stream, as asyncio.StreamWriter has it."""

    def write(self, data: bytes) -> None: ...
    async def drain(self) -> None: ...
    def close(self) -> None: ...
    def abort(self) -> None:
        """End at once. What was not taken in by the other end is lost; nothing if all was."""


class Envelope(NamedTuple):
    """A message and the body that came with it."""

    message: AnyMessage
    body: bytes


class Channel:
    """One stream to `peer`. Several tasks may send; one may receive.

    `came_from` is the multiaddress that an incoming one came from, as far as the network knows it.
    """

    def __init__(self, peer: PeerId, reader: Reader, writer: Writer, came_from: str = "") -> None:
        self.peer = peer
        self.came_from = came_from
        self.heard_at = 0.0  # by the loop's clock: when the other end last said something
        self._reader = reader
        self._writer = writer
        self._closed = False
        self._sending = asyncio.Lock()
        self._chatter = Budgets(CHATTER)
        self._received = 0

    async def send(self, message: Message, body: bytes | memoryview = b"") -> None:
        """Send one frame, waiting while the other end is slow. Raises `ChannelClosed`."""
        await self.send_frame(encode_message(message), body)

    async def send_frame(self, header: bytes, body: bytes | memoryview = b"") -> None:
        """Send one frame of another protocol than that of sessions. Raises `ChannelClosed`."""
        prefix = encode_prefix(len(header), len(body))
        if self._closed:
            raise ChannelClosed(f"The channel to peer {self.peer} is closed")
        try:
            async with self._sending, asyncio.timeout(_within_s(len(body))):
                self._writer.write(b"".join((prefix, header, body)))
                await self._writer.drain()
        except TimeoutError:
            self.abort()
            raise ChannelClosed(f"Peer {self.peer} takes nothing in") from None
        except _STREAM_ERRORS as error:
            raise ChannelClosed(f"Peer {self.peer} closed the stream") from error

    async def receive(self, max_body_bytes: int = MAX_BODY_BYTES, reserve: Reserve | None = None) -> Envelope:
        """The next frame. Raises `ChannelClosed`, or a `ProtocolError` for what is not a frame.

        `reserve` is awaited before a body is read; what it raises ends the reading.
        """
        try:
            size = decode_prefix(await self._reader.readexactly(PREFIX_BYTES), max_body_bytes)
            self.heard_at = asyncio.get_running_loop().time()
            if size.body_bytes and reserve is not None:
                await reserve(size.body_bytes)
            async with asyncio.timeout(_within_s(size.body_bytes)):
                header = await self._reader.readexactly(size.header_bytes)
                body = await self._reader.readexactly(size.body_bytes) if size.body_bytes else b""
        except TimeoutError:
            raise ChannelClosed(f"Peer {self.peer} does not come to the end of a frame") from None
        except _STREAM_ERRORS as error:
            raise ChannelClosed(f"Peer {self.peer} closed the stream") from error
        self.heard_at = asyncio.get_running_loop().time()
        self._received += 1
        if self._received % YIELD_EVERY == 0:  # what has arrived already is read without waiting
            await asyncio.sleep(0)
        message = decode_message(header)
        if not isinstance(message, Step | Output):
            self.count_chatter()
        return Envelope(message, body)

    def count_chatter(self) -> None:
        """Count a message that is no part of the work. Raises `ProtocolError` when there are too many."""
        if not self._chatter.take(self.peer, 1, asyncio.get_running_loop().time()):
            raise ProtocolError(f"Peer {self.peer} says too much that nobody asked for")

    async def receive_frame(self, most_bytes: int) -> bytes:
        """The header of the next frame, of another protocol whose frames have no body and a limit.

        Raises `ChannelClosed`, or a `ProtocolError` for what is no such frame.
        """
        try:
            size = decode_prefix(await self._reader.readexactly(PREFIX_BYTES))
            if size.header_bytes > most_bytes or size.body_bytes:
                raise FrameTooLarge(f"A frame of more than {most_bytes} bytes, or with a body")
            return await self._reader.readexactly(size.header_bytes)
        except _STREAM_ERRORS as error:
            raise ChannelClosed(f"Peer {self.peer} closed the stream") from error

    def close(self, last: Message | None = None) -> None:
        """End the stream, with a last word; what was sent is still delivered, if it is taken in soon.

        Safe to call twice.
        """
        if not self._closed:
            self._closed = True
            if last is not None:
                header = encode_message(last)
                with contextlib.suppress(*_STREAM_ERRORS):
                    self._writer.write(encode_prefix(len(header), 0) + header)
            self._writer.close()
            asyncio.get_running_loop().call_later(CLOSE_WITHIN_S, self._writer.abort)

    def abort(self) -> None:
        """End the stream at once, whatever was not delivered yet."""
        self._closed = True
        self._writer.abort()


def _within_s(size_bytes: int) -> float:
    return PATIENCE_S + size_bytes / SLOWEST_BYTES_PER_S
