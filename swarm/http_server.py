"""An HTTP server that one stranger cannot fill: it bounds connections, and how long one may say nothing.

Half of the files that this process may open are for connections; the rest are its own. Also who is asked
for: a page of a stranger whose name resolves to this machine must not read what only this machine may.
"""

import asyncio
import logging
import re
from collections.abc import Awaitable, Callable, Collection
from dataclasses import dataclass
from typing import cast

from aiohttp import web
from aiohttp.http import HttpProcessingError

from swarm.connections import ConnectionTable
from swarm.errors import PortInUse
from swarm.open_files import limit

MAX_CONNECTIONS = 2048  # of some tens of kilobytes each
BACKLOG = 1024
SWEEP_EVERY_S = 1.0

LOOPBACK = frozenset({"127.0.0.1", "::1", "localhost"})
_HOST = re.compile(r"(\[[0-9a-f:.]+\]|[^:\[\]]+)(:\d{1,5})?", re.IGNORECASE)
_LOCAL_NAMES = frozenset({"127.0.0.1", "[::1]", "localhost"})

Handler = Callable[[web.BaseRequest], Awaitable[web.StreamResponse]]


@dataclass(frozen=True, slots=True)
class Listen:
    """Where a server listens, and how it ends."""

    host: str
    port: int
    what: str  # for the sentence when the port is in use
    option: str = "--listen"
    shutdown_s: float = 2.0  # for handlers
    cancels_handlers: bool = False  # when their reader has gone


class HttpServer:
    """Serves an application. Belongs to one event loop."""

    def __init__(self, app: web.Application, listen: Listen) -> None:
        self._listen = listen
        self._connections = Connections(most_connections())
        self._listening: asyncio.AbstractServer | None = None
        self._sweeping: asyncio.Task[None] | None = None
        self._runner = web.AppRunner(
            app,
            access_log=None,
            logger=_requests_log(),
            handler_cancellation=listen.cancels_handlers,
            shutdown_timeout=listen.shutdown_s,
        )

    @property
    def connections(self) -> int:
        """How many are open."""
        return len(self._connections.table)

    async def start(self) -> str:
        """Listen; gives the address, ``http://127.0.0.1:8000``. Raises `PortInUse`."""
        listen = self._listen
        await self._runner.setup()
        assert self._runner.server is not None  # noqa: S101 - it has just been set up
        self._runner.server.request_handler = self._connections.watched(self._runner.server.request_handler)
        try:
            self._listening = await asyncio.get_running_loop().create_server(
                self._protocol, listen.host, listen.port, backlog=BACKLOG
            )
        except OSError as error:
            await self._runner.cleanup()
            raise PortInUse(
                f"{listen.what} cannot listen on {listen.host}:{listen.port}: {error.strerror}",
                f"Choose another port with {listen.option}, or 0 for a free one.",
            ) from error
        self._sweeping = asyncio.create_task(self._connections.sweep(), name="sweep connections")
        host, port = self._listening.sockets[0].getsockname()[:2]
        return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"

    async def close(self) -> None:
        """Stop listening, and end what is left of the connections."""
        if self._sweeping is not None:
            self._sweeping.cancel()
        if self._listening is not None:
            self._listening.close()
        await self._runner.cleanup()

    def _protocol(self) -> asyncio.Protocol:
        assert self._runner.server is not None  # noqa: S101 - it is set up before it listens
        return _Guarded(self._runner.server(), self._connections)


class Connections:
    """All connections of a server, by their transports."""

    def __init__(self, limit: int) -> None:
        self.table: ConnectionTable[asyncio.Transport] = ConnectionTable(limit)
        self._paused: set[asyncio.Transport] = set()

    def open(self, transport: asyncio.Transport) -> bool:
        """Take one in, and end another for it where there are too many. False when it is turned away."""
        address = transport.get_extra_info("peername") or ("",)
        given_up = self.table.arrive(transport, str(address[0]), _now())
        if given_up is not None:
            given_up.abort()
        return given_up is not transport

    def closed(self, transport: asyncio.Transport) -> None:
        """It is gone."""
        self.table.leave(transport)
        self._paused.discard(transport)

    def pause(self, transport: asyncio.Transport) -> None:
        """Much of what was written waits for its reader."""
        self._paused.add(transport)

    def resume(self, transport: asyncio.Transport) -> None:
        """Most of it has been taken."""
        self._paused.discard(transport)
        self.table.taken(transport)

    async def sweep(self) -> None:
        """End those that have said or taken nothing for too long, for ever."""
        while True:
            await asyncio.sleep(SWEEP_EVERY_S)
            now = _now()
            overdue = self.table.overdue(now)
            for transport in {*overdue, *self._paused}:
                unread_bytes = transport.get_write_buffer_size()
                if self.table.stalled(transport, unread_bytes, now) if unread_bytes else transport in overdue:
                    transport.abort()

    def watched(self, handler: Handler) -> Handler:
        """The handler of all requests, which knows a connection busy from a whole head to the answer."""

        async def handle(request: web.BaseRequest) -> web.StreamResponse:
            transport = request.transport
            if transport is None:
                raise ConnectionResetError("It has gone before it was answered")
            self.table.busy(transport)
            try:
                # the library repeats what is expected in its answer, and fails at bytes that are no text
                if request.headers.get("Expect", "100-continue").lower() != "100-continue":
                    return web.Response(status=417, text="Expect 100-continue, or nothing.\n")
                return await handler(request)
            finally:
                self.table.idle(transport, _now())

        return handle


class _Guarded(asyncio.Protocol):
    """A connection of aiohttp's, known to `Connections` from its first moment to its last."""

    def __init__(self, inner: asyncio.Protocol, connections: Connections) -> None:
        self._inner = inner
        self._connections = connections
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        transport = cast("asyncio.Transport", transport)  # a socket's
        if not self._connections.open(transport):
            transport.abort()
            return
        self._transport = transport
        self._inner.connection_made(transport)

    def data_received(self, data: bytes) -> None:
        if self._transport is not None:
            self._inner.data_received(data)

    def eof_received(self) -> bool | None:
        return self._inner.eof_received() if self._transport is not None else None

    def pause_writing(self) -> None:
        if self._transport is not None:
            self._connections.pause(self._transport)
            self._inner.pause_writing()

    def resume_writing(self) -> None:
        if self._transport is not None:
            self._connections.resume(self._transport)
            self._inner.resume_writing()

    def connection_lost(self, error: Exception | None) -> None:
        if self._transport is not None:
            self._connections.closed(self._transport)
            self._inner.connection_lost(error)


def most_connections() -> int:
    """Half of the files that may be open; the rest is for what the program itself asks."""
    return max(2, min(MAX_CONNECTIONS, limit() // 2))


@dataclass(frozen=True, slots=True)
class Hosts:
    """The names under which a server answers; None for any."""

    names: frozenset[str] | None = None

    def allow(self, host: str) -> bool:
        """Whether a `Host` header has one of the names. Others may be a stranger's that lead here."""
        match = _HOST.fullmatch(host)
        return self.names is None or (match is not None and match[1].lower() in self.names)


def hosts_of(listen: str, names: Collection[str]) -> Hosts:
    """Those of this machine and those in `names`; any where others are listened to and none is named."""
    if listen not in LOOPBACK and not names:
        return Hosts()
    return Hosts(_LOCAL_NAMES | {name.lower() for name in names})


def _requests_log() -> logging.Logger:
    """The library's log without what is wrong with requests: that is their senders' business."""
    log = logging.getLogger(f"{__name__}.requests")
    log.addFilter(_is_ours)
    return log


def _is_ours(record: logging.LogRecord) -> bool:
    theirs = (HttpProcessingError, web.RequestPayloadError)
    return not (record.exc_info and isinstance(record.exc_info[1], theirs))


def _now() -> float:
    return asyncio.get_running_loop().time()
