"""A hop on a peer: the client's end of one session stream.

Sends steps, waits for their answers, and knows when to stop waiting: a broken stream, silence for
longer than the lease, or a step far beyond what was measured all end in `HopLost`. Decides nothing
about what happens then; that is `session/chain`.
"""

import asyncio
import contextlib
from collections.abc import Callable
from dataclasses import dataclass

import torch

from swarm.errors import (
    ChannelClosed,
    HopLost,
    LossKind,
    PeerUnreachable,
    ProtocolError,
    SessionRefused,
    SwarmError,
)
from swarm.network.channel import SLOWEST_BYTES_PER_S, Channel
from swarm.network.transport import Network
from swarm.session.hop import ASSUMED_BYTES_PER_S, HopSettings, HopStats
from swarm.session.plan import PlannedHop
from swarm.values import PeerId
from swarm.wire.messages import (
    NO_ROOM,
    SESSION_PROTOCOL,
    WIRE_VERSION,
    AnyMessage,
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
    Role,
    Step,
)
from swarm.wire.tensors import decode_tensor, encode_tensor

SLOWER_FACTOR = 4.0  # a peer may seem silent because its link is so much slower than was thought
LATE_FACTOR = 3.0  # over the expected time of a step: then another is started beside it
LATE_FLOOR_S = 2.0
DEADLINE_FACTOR = 5.0  # over the expected time of a step, beats or no beats
DEADLINE_FLOOR_S, LONGEST_DEADLINE_S = 20.0, 600.0
DEEPEST_QUEUE = 100  # that is believed
DEEPEST_WAITED_FOR = 10  # before another is started beside it: a queue is what the peer says
LEASE_RTTS, LONGEST_LEASE_S = 4, 3.0  # a far peer's beats may come late by some round trips
LARGEST_STATE = 1e12  # of a hidden value: from larger ones an honest hop would compute what is no number
KEEP_ALIVE_S = 15.0  # several times within what a peer tolerates


@dataclass(slots=True)
class _StepOut:
    """The step that is out."""

    id: int
    reply_tokens: int
    answer: asyncio.Future[tuple[Output, bytes]]
    tokens: int
    due_from: float  # when its bytes and those of the answer have had their time


class RemoteHop:
    """An open session on one peer; see `Hop` for what each part means."""

    def __init__(
        self,
        planned: PlannedHop,
        channel: Channel,
        settings: HopSettings,
        opened: Opened,
        bytes_per_s: float,
    ) -> None:
        self.bytes_per_s = bytes_per_s
        self.planned = planned
        self.position = opened.position
        self.rewinds = opened.rewinds
        self.lease_s = min(opened.lease_s, settings.lease_s)
        self.leaving_in_s: float | None = None
        self.stats = HopStats()
        self.rtt_s = 0.0
        self.decode_s = 0.0  # of late, for one token there and back
        self.on_lost: Callable[[HopLost], None] = lambda error: None
        self._channel = channel
        self._settings = settings
        self._waiting: _StepOut | None = None
        self._lost: HopLost | None = None
        self._heard_at = self._sent_at = _now()
        self._step_id = settings.epoch << 32  # a later take never repeats an id of an earlier one
        self._stale_position = False
        self._s_per_token = planned.expected_ms / 1e3
        self._queue_depth = 0
        self._listening = asyncio.create_task(self._listen())

    @property
    def lost(self) -> HopLost | None:
        """Why the hop is gone, if it is known to be."""
        return self._lost

    @property
    def is_late(self) -> bool:
        """Whether the answer to a step is clearly overdue, by what was measured."""
        if self._waiting is None:
            return False
        expected_s = self._expected_s(self._waiting.tokens, DEEPEST_WAITED_FOR)
        allowed_s = max(LATE_FLOOR_S, LATE_FACTOR * expected_s)
        return _now() > self._waiting.due_from + allowed_s

    def give_up(self, reason: str) -> None:
        """Wait for this hop no longer: it counts as lost."""
        self._lose("late", reason)

    async def step(self, hidden: torch.Tensor, reply_tokens: int) -> torch.Tensor:
        """Push rows [tokens, hidden] at the hop's position; gives the last `reply_tokens` of the result.

        Raises `HopLost`. A cancelled step leaves the hop usable: its rows are taken back first.
        """
        if self._stale_position:
            await self._send(Rewind(position=self.position))
            self.rewinds += 1
            self._stale_position = False
        self._step_id += 1
        step = Step(id=self._step_id, position=self.position, tokens=len(hidden), reply_tokens=reply_tokens)
        body = encode_tensor(hidden, self._settings.codec)
        started_at = _now()
        reply_bytes = len(body) * reply_tokens // len(hidden)
        carried_s = (len(body) + reply_bytes) / self.bytes_per_s  # no beat can come meanwhile
        answer = asyncio.get_running_loop().create_future()
        self._waiting = _StepOut(step.id, reply_tokens, answer, len(hidden), started_at + carried_s)
        try:
            await self._send(step, body)
            output, reply = await self._answer(answer, started_at, len(hidden), carried_s)
        except asyncio.CancelledError:
            self._stale_position = True
            raise
        finally:
            self._waiting = None
        result = self._decode(reply, output)
        self.position += len(hidden)
        self._note(output, len(hidden), len(body), len(reply), _now() - started_at)
        return result

    def rewind(self, position: int) -> None:
        """Forget everything from `position` on. A loss shows at the next step."""
        if position < self.position:
            self.position = position
            self._stale_position = True

    async def keep_alive(self) -> None:
        """Say something, if nothing was said for a while, so that the peer does not take us for gone."""
        if _now() - self._sent_at > KEEP_ALIVE_S:
            with contextlib.suppress(HopLost):
                await self._send(Ping(id=0))

    async def promote(self) -> None:
        """Make a spare the active hop. A loss shows at the next step."""
        with contextlib.suppress(HopLost):
            await self._send(Promote())

    async def close(self, wait_s: float = 0.0) -> None:
        """End the session on the peer, as far as the peer can still be told."""
        with contextlib.suppress(HopLost):
            await self._send(Close())
            await asyncio.wait({self._listening}, timeout=wait_s)  # the peer then ends the stream
        await self.drop()

    async def drop(self) -> None:
        """End the stream only; the peer keeps the session for a while."""
        self._channel.close()
        self._listening.cancel()
        await asyncio.gather(self._listening, return_exceptions=True)

    def _note(self, output: Output, tokens: int, sent: int, received: int, elapsed_s: float) -> None:
        stats = self.stats
        stats.steps += 1
        stats.tokens += tokens
        stats.compute_ms += output.compute_ms
        network_s = max(1e-3, elapsed_s - (output.compute_ms + output.queue_ms) / 1e3)
        stats.network_ms += network_s * 1e3
        self.bytes_per_s = max(self.bytes_per_s, max(sent, received) / network_s)
        stats.sent_bytes += sent
        stats.received_bytes += received
        self._s_per_token += 0.2 * (elapsed_s / tokens - self._s_per_token)
        if tokens == 1:
            self.decode_s += 0.2 * (elapsed_s - self.decode_s) if self.decode_s else elapsed_s

    def _decode(self, reply: bytes, output: Output) -> torch.Tensor:
        try:
            rows = decode_tensor(reply, output.tokens, self._settings.hidden_size, self._settings.codec)
        except ProtocolError as error:
            raise self._lose("nonsense", str(error)) from error
        if not (rows.abs() <= LARGEST_STATE).all():  # a NaN is not, either
            raise self._lose("nonsense", "it answered what no model computes")
        return rows

    async def _send(self, message: Message, body: bytes = b"") -> None:
        if self._lost is not None:
            raise self._lost
        self._sent_at = _now()
        try:
            async with asyncio.timeout(self.lease_s + len(body) / self.bytes_per_s):
                await self._channel.send(message, body)
        except TimeoutError:
            self._assume_slower_link()
            raise self._lose("stalled", "the link is stalled", _now() - self._sent_at) from None
        except ChannelClosed:
            raise self._lose("broken", "the stream broke") from None

    async def _answer(
        self, answer: asyncio.Future[tuple[Output, bytes]], started_at: float, tokens: int, carried_s: float
    ) -> tuple[Output, bytes]:
        """Wait for the answer as long as the peer beats and the deadline stands.

        The bytes of the step and of its answer may take `carried_s` on their way besides.
        """
        may_be_silent_s = self.lease_s + carried_s
        self._heard_at = max(self._heard_at, started_at)
        while True:
            now = _now()
            deadline_s = DEADLINE_FACTOR * self._expected_s(tokens)
            deadline_s = min(LONGEST_DEADLINE_S, max(DEADLINE_FLOOR_S, deadline_s))
            silence_ends_at = self._heard_at + may_be_silent_s
            if now >= silence_ends_at:
                self._assume_slower_link()
                silent_s = now - self._heard_at
                raise self._lose("silent", f"silent for {silent_s:.1f} s", silent_s)
            if now >= started_at + deadline_s:
                raise self._lose("late", f"no answer within {deadline_s:.0f} s")
            wake_at = min(silence_ends_at, started_at + deadline_s)
            await asyncio.wait({answer}, timeout=wake_at - now)
            if answer.done():
                return answer.result()
            if _now() - wake_at > self.lease_s / 2:  # it was we who slept: listen again before judging
                self._heard_at = started_at = _now()
                if self._waiting is not None:
                    self._waiting.due_from = _now()

    def _expected_s(self, tokens: int, deepest: int = DEEPEST_QUEUE) -> float:
        """How long a step takes there, as far as is known now, and as far as its queue is believed."""
        return self._s_per_token * tokens * (1 + min(deepest, self._queue_depth))

    def _assume_slower_link(self) -> None:
        """The bytes may only have been on their way: let the next try give them more time."""
        self.bytes_per_s = max(SLOWEST_BYTES_PER_S, self.bytes_per_s / SLOWER_FACTOR)

    async def _listen(self) -> None:
        try:
            while True:
                message, body = await self._channel.receive(self._settings.largest_body_bytes)
                self._heard_at = _now()
                if isinstance(message, Output):
                    self._deliver(message, body)
                elif isinstance(message, Pong):
                    self._queue_depth = max(0, min(DEEPEST_QUEUE, message.queue_depth))
                elif isinstance(message, Leaving):
                    self.leaving_in_s = message.seconds
                elif isinstance(message, Fault):
                    kind: LossKind = "full" if message.code == NO_ROOM else "refused"
                    self._lose(kind, f"it refused ({message.code}): {message.text}")
                    return
                else:
                    self._lose("nonsense", f"it sent {type(message).__name__}, which is not for a client")
                    return
        except ChannelClosed:
            self._lose("broken", "the stream broke")
        except ProtocolError as error:
            self._lose("nonsense", str(error))

    def _deliver(self, output: Output, body: bytes) -> None:
        waiting = self._waiting
        if waiting is None or output.id != waiting.id or waiting.answer.done():
            self._channel.count_chatter()  # the answer to a cancelled step, or to none
            return
        if output.tokens != waiting.reply_tokens:
            self._lose("nonsense", f"it answered {output.tokens} rows instead of {waiting.reply_tokens}")
            return
        waiting.answer.set_result((output, body))

    def _lose(self, kind: LossKind, reason: str, silent_s: float | None = None) -> HopLost:
        """Mark the hop as lost, once, and wake whoever waits for it."""
        if self._lost is None:
            self._lost = HopLost(self.planned.peer, kind, reason, silent_s)
            self.on_lost(self._lost)
        if self._waiting is not None and not self._waiting.answer.done():
            self._waiting.answer.set_exception(self._lost)
            self._waiting.answer.exception()  # seen, even if the waiter has given up already
        return self._lost


async def open_hop(
    network: Network,
    planned: PlannedHop,
    settings: HopSettings,
    role: Role = "active",
    bytes_per_s: float = ASSUMED_BYTES_PER_S,
    may_wait: bool = False,
) -> RemoteHop:
    """Open a session on a peer over a link of about that rate.

    Once a stream is there the peer has the lease's time to answer, and all of the time for opening when it
    `may_wait` until what runs of an earlier take has ended.
    Raises `NetworkError`, `ProtocolError` or `SessionRefused`.
    """
    channel = await network.open_channel(planned.peer, SESSION_PROTOCOL, settings.open_timeout_s)
    session = settings.key.id_at(planned.peer, planned.span.start)  # a peer may serve two hops
    request = Open(
        wire_version=WIRE_VERSION,
        session=session,
        epoch=settings.epoch,
        owner=settings.key.owner,
        proof=settings.key.claim(session, settings.epoch, planned.peer, network.peer_id),
        manifest=settings.manifest,
        start=planned.span.start,
        end=planned.span.end,
        dtype=planned.numerics.dtype,
        quantization=planned.numerics.quantization,
        kernels=planned.kernels,
        codec=settings.codec,
        max_tokens=settings.max_tokens,
        lease_s=settings.lease_s,
        role=role,
        trace=settings.trace,
    )
    last_word = None if may_wait else Close()  # what an earlier take left there is worth keeping
    started_at = _now()
    answers_within_s = settings.open_timeout_s if may_wait else min(settings.open_timeout_s, settings.lease_s)
    try:
        async with asyncio.timeout(answers_within_s):
            await channel.send(request)
            answer, _ = await channel.receive(max_body_bytes=0)
        hop = RemoteHop(planned, channel, settings, _granted(planned.peer, answer), bytes_per_s)
    except TimeoutError:
        channel.close(last_word)
        await network.hang_up(planned.peer, answers_within_s)
        raise PeerUnreachable(f"Peer {planned.peer} did not answer within {answers_within_s:.1f} s") from None
    except asyncio.CancelledError:
        channel.close(last_word)
        raise
    except SwarmError:
        channel.close()
        raise
    hop.rtt_s = _now() - started_at
    hop.lease_s = max(hop.lease_s, min(LONGEST_LEASE_S, hop.lease_s + LEASE_RTTS * hop.rtt_s))
    return hop


def _granted(peer: PeerId, answer: AnyMessage) -> Opened:
    """What a peer grants. Raises `SessionRefused`, or `ProtocolError` when that makes no sense."""
    if isinstance(answer, Fault):
        raise SessionRefused(answer.code, answer.text, answer.field, answer.expected_position)
    if not isinstance(answer, Opened):
        raise ProtocolError(f"Peer {peer} answered Open with {type(answer).__name__}")
    return answer


def _now() -> float:
    return asyncio.get_running_loop().time()
