"""A channel: messages and tensor bodies over one byte stream, in order, both ways.

Knows frames and nothing of what the messages mean. Every way a stream can end (reset, end of file,
a closed writer) is the one error `ChannelClosed`.
"""

import asyncio
from typing import NamedTuple, Protocol

from swarm.errors import ChannelClosed, FrameTooLarge
from swarm.values import PeerId
from swarm.wire.frames import PREFIX_BYTES, decode_prefix, encode_prefix
from swarm.wire.messages import AnyMessage, Message, decode_message, encode_message

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

    async def send(self, message: Message, body: bytes | memoryview = b"") -> None:
        """Send one frame, waiting while the other end is slow. Raises `ChannelClosed`."""
        await self.send_frame(encode_message(message), body)

    async def send_frame(self, header: bytes, body: bytes | memoryview = b"") -> None:
        """Send one frame of another protocol than that of sessions. Raises `ChannelClosed`."""
        prefix = encode_prefix(len(header), len(body))
        if self._closed:
            raise ChannelClosed(f"The channel to peer {self.peer} is closed")
        try:
            async with self._sending:
                self._writer.write(b"".join((prefix, header, body)))
                await self._writer.drain()
        except _STREAM_ERRORS as error:
            raise ChannelClosed(f"Peer {self.peer} closed the stream") from error

    async def receive(self) -> Envelope:
        """The next frame. Raises `ChannelClosed`, or a `ProtocolError` for what is not a frame."""
        try:
            size = decode_prefix(await self._reader.readexactly(PREFIX_BYTES))
            self.heard_at = asyncio.get_running_loop().time()
            header = await self._reader.readexactly(size.header_bytes)
            body = await self._reader.readexactly(size.body_bytes) if size.body_bytes else b""
        except _STREAM_ERRORS as error:
            raise ChannelClosed(f"Peer {self.peer} closed the stream") from error
        self.heard_at = asyncio.get_running_loop().time()
        return Envelope(decode_message(header), body)

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

    def close(self) -> None:
        """End the stream; what was sent is still delivered. Safe to call twice."""
        if not self._closed:
            self._closed = True
            self._writer.close()
