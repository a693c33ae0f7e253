"""A connection to a D-Bus message bus, on the running event loop, that can receive file descriptors.

Jeepney makes and reads the messages; of its own connections the one for asyncio cannot receive
descriptors. One task at a time. D-Bus specification: https://dbus.freedesktop.org/doc/dbus-specification.html
"""

import asyncio
import contextlib
import socket
from collections import deque
from collections.abc import AsyncIterator
from itertools import count
from typing import Any

from jeepney import FileDescriptor, HeaderFields, MatchRule, Message, MessageType, Parser, message_bus
from jeepney.auth import BEGIN, Authenticator
from jeepney.bus import get_bus
from jeepney.fds import fds_buf_size
from jeepney.wrappers import unwrap_msg


@contextlib.asynccontextmanager
async def open_bus(address: str) -> AsyncIterator["MessageBus"]:
    """A connection to the bus at a D-Bus address, or at SYSTEM. Raises `OSError`."""
    with socket.socket(socket.AF_UNIX) as sock:
        sock.setblocking(False)
        try:
            await asyncio.get_running_loop().sock_connect(sock, get_bus(address))
            await _authenticate(sock)
        except (
            ValueError,
            RuntimeError,
        ) as error:  # jeepney's, for an address or an answer not to its liking
            raise ConnectionError(f"The bus cannot be used ({error})") from error
        bus = MessageBus(sock)
        await bus.call(message_bus.Hello())
        yield bus


class MessageBus:
    """Calls, and the signals listened to."""

    def __init__(self, sock: socket.socket) -> None:
        """`sock`: authenticated, non-blocking; it stays the caller's to close."""
        self._sock = sock
        self._parser = Parser()
        self._serials = count(1)
        self._signals: deque[Message] = deque()

    async def listen(self, rule: MatchRule) -> None:
        """Receive the signals that match from now on. Raises as `call`."""
        await self.call(message_bus.AddMatch(rule))

    async def next_signal(self) -> Message:
        """The next signal, in their order. Raises `OSError` when the bus is gone."""
        while not self._signals:
            await self._receive()
        return self._signals.popleft()

    async def call(self, message: Message) -> tuple[Any, ...]:
        """The answer to a call. Raises `DBusErrorResponse`, and `OSError` when the bus is gone."""
        serial = next(self._serials)
        await asyncio.get_running_loop().sock_sendall(self._sock, message.serialise(serial))
        while True:
            received = await self._receive()
            if received.header.fields.get(HeaderFields.reply_serial) == serial:
                answer: tuple[Any, ...] = unwrap_msg(received)
                return answer

    async def _receive(self) -> Message:
        while (message := self._parser.get_next_message()) is None:
            try:
                data, passed, _, _ = self._sock.recvmsg(self._parser.bytes_desired(), fds_buf_size())
            except BlockingIOError:
                await _readable(self._sock)
                continue
            self._parser.add_data(_unless_ended(data), FileDescriptor.from_ancdata(passed))
        if message.header.message_type is MessageType.signal:
            self._signals.append(message)
        return message


async def _authenticate(sock: socket.socket) -> None:
    loop = asyncio.get_running_loop()
    conversation = Authenticator(enable_fds=True)
    for line in conversation:
        await loop.sock_sendall(sock, line)
        conversation.feed(_unless_ended(await loop.sock_recv(sock, 1024)))
    await loop.sock_sendall(sock, BEGIN)


def _unless_ended(data: bytes) -> bytes:
    if not data:
        raise ConnectionResetError("The bus closed the connection")
    return data


async def _readable(sock: socket.socket) -> None:
    """Return when there is something to read, if only the end."""
    loop = asyncio.get_running_loop()
    ready = asyncio.Event()
    loop.add_reader(sock, ready.set)
    try:
        await ready.wait()
    finally:
        loop.remove_reader(sock)
