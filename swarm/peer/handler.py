"""The peer's end of the session protocol: one call per stream, from Open to the stream's end.

Checks every message before it costs anything, answers each step once, beats while a step is out,
and turns every refusal into one `Fault`. Holds no session state of its own; that is in
`peer/sessions`, and the work is done by `peer/executor`.
"""

import asyncio
import contextlib
from collections.abc import Awaitable, Sequence
from dataclasses import dataclass, field
from functools import partial

import torch

from swarm.errors import ChannelClosed, ProtocolError, SessionRefused
from swarm.network.channel import Channel, Envelope
from swarm.peer.executor import Executor
from swarm.peer.inbox import Inbox, InFlight, Room
from swarm.peer.sessions import PeerSession, SessionTable
from swarm.security.session_key import OwnerProof
from swarm.values import ModelDigest, PeerId, Span
from swarm.wire.messages import (
    MAX_STEP_TOKENS,
    MAX_TEXT_CHARS,
    WIRE_VERSION,
    Close,
    Fault,
    Leaving,
    Message,
    Open,
    Opened,
    Output,
    Ping,
    Pong,
    Promote,
    Rewind,
    Step,
)
from swarm.wire.tensors import CODECS, decode_tensor, encode_tensor

OPEN_TIMEOUT_S = 10.0
SILENCE_S = 60.0  # a client says something at least every 15 s, or its link is dead
MIN_LEASE_S, MAX_LEASE_S = 0.2, 30.0
BEATS_PER_LEASE = 4
MAX_QUEUED_MESSAGES = 4  # of one session; a client that sends more without reading is cut off
IN_FLIGHT_PART = 8  # of what is lent to sessions, for what is on its way
LAST_WORD_S = 5.0  # a client that takes nothing in is cut without having heard why


@dataclass(frozen=True, slots=True)
class Hosting:
    """What this peer hosts; every Open is compared with it field by field."""

    peer: PeerId
    manifest: ModelDigest
    span: Span
    dtype: str
    quantization: str
    kernels: str
    hidden_size: int

    def largest_body_bytes(self, codec: str) -> int:
        """What the longest step takes."""
        return MAX_STEP_TOKENS * self.hidden_size * CODECS[codec].itemsize


@dataclass(frozen=True, slots=True, eq=False)
class _Stream:
    """A session's stream as the handler sees it."""

    channel: Channel
    session: PeerSession
    epoch: int
    codec: str
    lease_s: float
    room: Room
    inbox: Inbox
    fenced: asyncio.Event = field(default_factory=asyncio.Event)  # a later take, or the session given up


class SessionHandler:
    """Serves session streams. Call it with each new `Channel`."""

    def __init__(self, hosting: Hosting, sessions: SessionTable, executor: Executor) -> None:
        self._hosting = hosting
        self._sessions = sessions
        self._executor = executor
        self._in_flight = InFlight(sessions.lent_bytes // IN_FLIGHT_PART, hosting.largest_body_bytes("fp32"))
        self._streams: set[_Stream] = set()
        self._leaves_at: float | None = None  # by the loop's clock; None while it stays
        self._telling: set[asyncio.Task[None]] = set()

    @property
    def open_streams(self) -> int:
        """Streams with a session on them now."""
        return len(self._streams)

    @property
    def in_flight_bytes(self) -> int:
        """What the bodies take that are on their way through this peer."""
        return self._in_flight.held_bytes

    @property
    def active_streams(self) -> int:
        """Those whose client waits for this peer; a spare's does not."""
        return sum(not stream.session.spare for stream in self._streams)

    async def __call__(self, channel: Channel) -> None:
        """Serve one stream to its end. Never raises for what the other end does."""
        try:
            await self._serve(channel)
        except SessionRefused as refusal:
            await _send_last(channel, _fault(refusal))
        except ProtocolError as error:
            text = str(error)[:MAX_TEXT_CHARS]
            await _send_last(channel, Fault(code=error.code, text=text, retryable=False))
        except ChannelClosed:
            pass
        finally:
            channel.close()

    def leave(self, seconds: float) -> None:
        """Take no new sessions, and tell everybody with one to move within so many seconds.

        Waits for nobody: a client that takes nothing in is not to keep the others from being told.
        """
        self._leaves_at = _now() + seconds
        for stream in self._streams:
            self._tell_leave(stream, self._leaves_at)

    def stay(self) -> None:
        """Take new sessions after all."""
        self._leaves_at = None

    def drop_streams(self) -> None:
        """Cut every stream; the sessions stay for their clients to take up again."""
        for stream in list(self._streams):
            stream.channel.close()

    def expire(self) -> None:
        """Close the sessions that nobody uses any more."""
        for session in self._sessions.expired(_now()):
            for stream in [each for each in self._streams if each.session is session]:
                stream.channel.close()  # its client went without a sound
            self._sessions.close(session)

    async def _serve(self, channel: Channel) -> None:
        stream = await self._open(channel)
        self._streams.add(stream)
        if self._leaves_at is not None:  # since it was let in
            self._tell_leave(stream, self._leaves_at)
        try:
            await self._converse(stream)
        finally:
            self._streams.discard(stream)
            stream.room.close()
            if stream.session.epoch == stream.epoch:
                await self._executor.drain(stream.session)
                self._sessions.detach(stream.session, stream.epoch, _now())

    async def _open(self, channel: Channel) -> _Stream:
        request, _ = await _within(OPEN_TIMEOUT_S, channel, channel.receive(max_body_bytes=0))
        if not isinstance(request, Open):
            raise SessionRefused("protocol", "A stream begins with Open.", "type")
        self._check(request, channel.peer)
        session = self._sessions.open(request, channel.peer, _now())
        self._fence()
        lease_s = min(max(request.lease_s, MIN_LEASE_S), MAX_LEASE_S)
        try:
            await self._executor.drain(session)
            session.require_epoch(request.epoch)  # still: the drain may have taken long
            self._sessions.settle(session)
            opened = Opened(
                position=session.position,
                max_tokens=session.max_tokens,
                lease_s=lease_s,
                rewinds=session.rewinds,
            )
            await channel.send(opened)
        except BaseException:  # nobody is there for the session, as after the end of any other stream
            self._sessions.detach(session, request.epoch, _now())
            raise
        room = Room(self._in_flight, channel.peer)
        inbox = Inbox(MAX_QUEUED_MESSAGES, room.release)
        return _Stream(channel, session, request.epoch, request.codec, lease_s, room, inbox)

    def _end_all(self, given_up: Sequence[PeerSession]) -> None:
        """Tell the clients of sessions that were given up, so that they move at once."""
        for stream in self._streams:
            if stream.session in given_up:
                stream.fenced.set()

    def _fence(self) -> None:
        """End the streams on whose session there is a later take now."""
        for stream in self._streams:
            if stream.session.epoch != stream.epoch:
                stream.fenced.set()

    def _check(self, request: Open, client: PeerId) -> None:
        hosting = self._hosting
        if request.wire_version != WIRE_VERSION:
            _refuse("wire_version", request.wire_version, WIRE_VERSION)
        if request.manifest != hosting.manifest:
            _refuse("manifest", request.manifest, hosting.manifest)
        if request.dtype != hosting.dtype:
            _refuse("dtype", request.dtype, hosting.dtype)
        if request.quantization != hosting.quantization:
            _refuse("quantization", request.quantization, hosting.quantization)
        if request.kernels not in ("", hosting.kernels):
            _refuse("kernels", request.kernels, hosting.kernels)
        if not hosting.span.start <= request.start < request.end <= hosting.span.end:
            _refuse("span", f"{request.start}:{request.end}", str(hosting.span))
        if request.codec not in CODECS:
            _refuse("codec", request.codec, ", ".join(CODECS))
        proof = OwnerProof(PeerId(request.owner), request.session, request.epoch, request.proof)
        if not proof.holds(hosting.peer, client):
            raise SessionRefused("owner", "Open is not signed by the conversation's key.", "proof")
        if self._leaves_at is not None:
            raise SessionRefused("draining", "This peer is leaving and takes no new sessions.")

    async def _converse(self, stream: _Stream) -> None:
        """Read messages in one task and work on them in another, until stream, session or take ends."""
        parts = (self._read(stream), self._work(stream), stream.fenced.wait())
        tasks = [asyncio.create_task(part) for part in parts]
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            stream.session.require_epoch(stream.epoch)
            for task in done:
                task.result()
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _read(self, stream: _Stream) -> None:
        largest_bytes = self._hosting.largest_body_bytes(stream.codec)
        while True:
            coming = stream.channel.receive(largest_bytes, partial(self._make_room, stream))
            envelope = await _within(SILENCE_S, stream.channel, coming)
            stream.session.require_epoch(stream.epoch)
            if not isinstance(envelope.message, Step):
                stream.room.release(len(envelope.body))
            message = envelope.message
            if isinstance(message, Ping):
                await stream.channel.send(Pong(id=message.id, queue_depth=self._executor.queue_depth))
            elif isinstance(message, Promote):  # in its turn, it would wait behind the spare's last step
                self._sessions.promote(stream.session)
                self._executor.promote(stream.session)
            elif isinstance(message, Close):
                self._sessions.close(stream.session)
                return
            else:
                stream.inbox.put(envelope)
                if isinstance(message, Rewind):
                    self._executor.give_up(stream.session, message.position)

    async def _make_room(self, stream: _Stream, body_bytes: int) -> None:
        """Wait for room for a body, and beat meanwhile: its client would take the peer for silent."""
        reserving = asyncio.create_task(stream.room.reserve(body_bytes))
        try:
            while not reserving.done():
                await asyncio.wait({reserving}, timeout=stream.lease_s / BEATS_PER_LEASE)
                if not reserving.done():
                    await self._beat(stream)
        finally:
            reserving.cancel()
        await reserving

    async def _beat(self, stream: _Stream) -> None:
        await stream.channel.send(Pong(id=-1, queue_depth=self._executor.queue_depth))

    async def _work(self, stream: _Stream) -> None:
        while True:
            message, body, rewinds = await stream.inbox.get()
            stream.session.require_epoch(stream.epoch)  # a later take may have begun while it waited
            if isinstance(message, Step):
                await self._step(stream, message, body)
                stream.room.release(len(body))
            elif isinstance(message, Rewind):
                self._sessions.rewind(stream.session, message.position, rewinds)
            else:
                raise SessionRefused("protocol", f"{type(message).__name__} is not for a peer.", "type")

    async def _step(self, stream: _Stream, step: Step, body: bytes) -> None:
        session = stream.session
        session.last_used = _now()
        if step.position != session.position:
            raise SessionRefused(
                "position",
                f"The step is at position {step.position}, the session at {session.position}.",
                "position",
                session.position,
            )
        if step.reply_tokens > step.tokens:
            raise SessionRefused("protocol", "A step has no more answers than tokens.", "reply_tokens")
        hidden = decode_tensor(body, step.tokens, self._hosting.hidden_size, stream.codec)
        self._end_all(self._sessions.reserve(session, step.tokens))
        await self._answer(stream, step, hidden)

    async def _answer(self, stream: _Stream, step: Step, hidden: torch.Tensor) -> None:
        running = self._executor.step(stream.session, hidden)
        try:
            while not running.done():
                await asyncio.wait({running}, timeout=stream.lease_s / BEATS_PER_LEASE)
                if not running.done():
                    await self._beat(stream)
            if running.cancelled():
                return  # a Rewind has made it void
        finally:
            running.cancel()
        result = running.result()
        reply = result.hidden[step.tokens - step.reply_tokens :]
        output = Output(
            id=step.id,
            position=step.position + step.tokens - step.reply_tokens,
            tokens=step.reply_tokens,
            compute_ms=result.compute_ms,
            queue_ms=result.queue_ms,
        )
        stream.session.last_used = _now()
        await stream.channel.send(output, encode_tensor(reply, stream.codec))

    def _tell_leave(self, stream: _Stream, leaves_at: float) -> None:
        telling = asyncio.create_task(_send_leaving(stream.channel, leaves_at))
        self._telling.add(telling)
        telling.add_done_callback(self._telling.discard)


def _now() -> float:
    return asyncio.get_running_loop().time()


async def _within(seconds: float, channel: Channel, receiving: Awaitable[Envelope]) -> Envelope:
    try:
        async with asyncio.timeout(seconds):
            return await receiving
    except TimeoutError:
        raise ChannelClosed(f"{channel.peer} said nothing for {seconds:.0f} s") from None


def _refuse(field: str, asked: object, hosted: object) -> None:
    raise SessionRefused(field, f"This peer has {field} {hosted}, the client asks for {asked}.", field)


def _fault(refusal: SessionRefused) -> Fault:
    return Fault(
        code=refusal.fault_code,
        text=str(refusal)[:MAX_TEXT_CHARS],
        retryable=refusal.fault_code in ("capacity", "draining", "compute_failed", "position"),
        field=refusal.field,
        expected_position=refusal.expected_position,
    )


async def _send_leaving(channel: Channel, leaves_at: float) -> None:
    """Say how long there is to move, as long as there is a point in it."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout_at(leaves_at):
            await _send(channel, Leaving(seconds=max(0.0, leaves_at - _now())))


async def _send_last(channel: Channel, fault: Fault) -> None:
    """Say why the stream ends, without waiting for ever until it is taken in."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(LAST_WORD_S):
            await _send(channel, fault)


async def _send(channel: Channel, message: Message) -> None:
    """Say it if anybody still listens."""
    with contextlib.suppress(ChannelClosed):
        await channel.send(message)
