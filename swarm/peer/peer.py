"""A peer: the loaded blocks of one span, served on a network until it moves to another span or leaves.

Puts together what serves sessions (handler, sessions, executor) and what speaks for it in the
directory (announcer). Works on any `Network`; the program around it is `peer/program`.
"""

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import psutil

from swarm.errors import ChannelClosed
from swarm.lifetime import persist
from swarm.model.compute import Compute
from swarm.model.dtypes import dtype_name
from swarm.model.span import SpanModel
from swarm.network.channel import Channel
from swarm.network.transport import Network
from swarm.peer.announcer import Announcer, Load
from swarm.peer.executor import Executor
from swarm.peer.handler import Hosting, SessionHandler
from swarm.peer.metrics import PeerMetrics
from swarm.peer.sessions import SessionLimits, SessionTable
from swarm.peer.sleep import SleepWatch
from swarm.peer.throughput import ThreadControl, Throughput
from swarm.wire.messages import SESSION_PROTOCOL, Fault

EXPIRE_EVERY_S = 5.0
LEAVE_CHECK_S = 0.02

_logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _HostedSpan:
    """What serves the loaded span."""

    model: SpanModel
    threads: ThreadControl
    executor: Executor
    sessions: SessionTable
    handler: SessionHandler


class Peer:
    """Serves one span. `serve` once, `pause` and `resume` around a sleep, `move`, then `leave` or `stop`."""

    def __init__(
        self,
        model: SpanModel,
        announcer: Announcer,
        limits: SessionLimits,
        throughput: Throughput,
        compute: Compute,
        instruments: PeerMetrics,
        clock: Callable[[], float],
    ) -> None:
        """`clock`: seconds that go on while the machine sleeps, as peer/sleep.boot_clock."""
        self.announcer = announcer
        self._limits = limits
        self._compute = compute
        self._instruments = instruments
        self._service: _HostedSpan | None = self._host(model, throughput)
        self._resumed_before = 0  # on the spans it hosted before
        self._rehosted = asyncio.Event()
        self._sleep_watch = SleepWatch(clock)
        self._tasks: tuple[asyncio.Task[None], ...] = ()
        instruments.watch(
            {
                ("sessions", "Sessions held, with or without a stream."): self._read(
                    lambda s: len(s.sessions)
                ),
                ("session_streams", "Sessions with an open stream."): self._read(
                    lambda s: s.handler.open_streams
                ),
                ("queue_depth", "Steps waiting or running."): self._read(lambda s: s.executor.queue_depth),
                ("kv_cache_bytes", "Memory held by the sessions' caches."): self._read(
                    lambda s: s.sessions.used_bytes
                ),
                ("kv_tokens_free", "Tokens that sessions may still take."): self._read(
                    lambda s: s.sessions.free_tokens
                ),
                ("in_flight_bytes", "Bodies of steps on their way."): self._read(
                    lambda s: s.handler.in_flight_bytes
                ),
            }
        )

    @property
    def handler(self) -> SessionHandler:
        """Of the span that is served."""
        return self._served.handler

    @property
    def sessions(self) -> SessionTable:
        """Of the span that is served."""
        return self._served.sessions

    @property
    def executor(self) -> Executor:
        """Of the span that is served."""
        return self._served.executor

    @property
    def threads(self) -> ThreadControl:
        """Which compute the span that is served."""
        return self._served.threads

    @property
    def throughput(self) -> Throughput:
        """Through the span that is served."""
        return self.threads.throughput

    @property
    def tasks(self) -> tuple[asyncio.Task[None], ...]:
        """What runs while the peer serves; none of them ends before `stop` unless it fails."""
        return self._tasks

    async def serve(self, network: Network) -> None:
        """Take sessions from now on, and say so in the directory."""
        work = (
            persist("executor", self._execute),
            persist("expiry of sessions", self._expire),
            persist("watch for sleep", lambda: self._sleep_watch.run(self._wake)),
        )
        self._tasks = tuple(asyncio.create_task(each) for each in work)
        await network.serve(SESSION_PROTOCOL, self.handler)
        self.announcer.load = self._load
        await self.announcer.move_to("online")

    async def leave(self, within_s: float) -> None:
        """Tell everybody, let the sessions move for so long at most, withdraw the record, and stop."""
        await self._drain(within_s)
        await self.announcer.withdraw()
        await self.stop()

    async def pause(self, within_s: float) -> None:
        """Before a sleep: tell everybody, and let the sessions move for so long at most.

        What has not moved by then is cut rather than left to fall silent: its client looks elsewhere at
        once, and may take the session up here again after `resume`.
        """
        _logger.info("This machine goes to sleep; sessions have %.1f s to move to other peers", within_s)
        await self._drain(within_s)
        if self._service is not None:
            self._service.handler.drop_streams()

    async def resume(self) -> None:
        """Take sessions again after a `pause`, and say so in the directory."""
        self._sleep_watch.forget()  # all streams were cut before that sleep; those of now are new
        if self._service is not None and self._service.model.span == self.announcer.profile.span:
            self._service.handler.stay()
            await self.announcer.move_to("online")  # else it is about to move, and says so then

    async def move(
        self, network: Network, load: Callable[[], Awaitable[tuple[SpanModel, Throughput]]], within_s: float
    ) -> None:
        """Host other blocks, which the announcer names already: let the sessions move for so long at most,
        let go of the old blocks, and only then load the new ones, because both may not fit."""
        await self._let_sessions_move(within_s)
        await network.serve(SESSION_PROTOCOL, turn_away)
        self._resumed_before += self.sessions.resumed_total
        self.handler.drop_streams()
        self._service = None
        self._rehosted.set()
        self._service = self._host(*await load())
        self._rehosted.set()
        await network.serve(SESSION_PROTOCOL, self.handler)
        await self.announcer.move_to("online")

    async def stop(self) -> None:
        """End everything at once."""
        if self._service is not None:
            self._service.handler.drop_streams()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    @property
    def _served(self) -> _HostedSpan:
        if self._service is None:
            raise RuntimeError("the peer is between two spans")
        return self._service

    def _host(self, model: SpanModel, throughput: Throughput) -> _HostedSpan:
        self.announcer.computes_with(model.kernels)
        profile = self.announcer.profile
        hosting = Hosting(
            peer=profile.peer,
            manifest=profile.manifest,
            span=model.span,
            dtype=dtype_name(model.dtype),
            quantization=model.quantization,
            kernels=model.kernels,
            hidden_size=model.config.hidden_size,
        )
        threads = ThreadControl(model, self._compute, throughput)
        executor = Executor(model, self._compute, self._instruments.note_step, threads)
        sessions = SessionTable(model, self._limits)
        return _HostedSpan(model, threads, executor, sessions, SessionHandler(hosting, sessions, executor))

    def _read(self, value: Callable[[_HostedSpan], float]) -> Callable[[], float]:
        """For a gauge: nothing is held or waits between two spans."""
        return lambda: value(self._service) if self._service is not None else 0.0

    async def _execute(self) -> None:
        """Compute for whichever span is served."""
        while True:
            self._rehosted.clear()
            rehosted = asyncio.create_task(self._rehosted.wait())
            running = [asyncio.create_task(self._service.executor.run())] if self._service else []
            try:
                done, _ = await asyncio.wait([rehosted, *running], return_when=asyncio.FIRST_COMPLETED)
                for task in done:
                    task.result()
            finally:
                for task in (rehosted, *running):
                    task.cancel()
                await asyncio.gather(rehosted, *running, return_exceptions=True)

    async def _drain(self, within_s: float) -> None:
        """Tell clients and directory at once, and return when the last client has gone or the time is up."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(within_s):
                await asyncio.gather(self._let_sessions_move(within_s), self.announcer.move_to("draining"))

    async def _let_sessions_move(self, within_s: float) -> None:
        """Tell clients at once, and return when the last has gone or the time is up."""
        if self._service is None:
            return
        handler = self._service.handler
        handler.leave(within_s)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(within_s):
                while handler.active_streams:  # noqa: ASYNC110 - they end in many places
                    await asyncio.sleep(LEAVE_CHECK_S)

    def _load(self) -> Load:
        if self._service is None:
            return Load(sessions_resumed=self._resumed_before, on_battery=_is_on_battery())
        return Load(
            decode_tokens_per_s=self.throughput.decode_tokens_per_s,
            prefill_tokens_per_s=self.throughput.prefill_tokens_per_s,
            free_tokens=self.sessions.free_tokens,
            queue_depth=self.executor.queue_depth,
            sessions_resumed=self._resumed_before + self.sessions.resumed_total,
            on_battery=_is_on_battery(),
        )

    async def _wake(self, slept_s: float) -> None:
        """Clients have moved on meanwhile: let go of their streams, and say that we are here again."""
        _logger.warning(
            "This machine slept for %.0f s; sessions are let go, and the peer announces itself again", slept_s
        )
        if self._service is not None:
            self._service.handler.drop_streams()
        await self.announcer.announce()

    async def _expire(self) -> None:
        while True:
            await asyncio.sleep(EXPIRE_EVERY_S)
            if self._service is not None:
                self._service.handler.expire()


async def turn_away(channel: Channel) -> None:
    """Answer a stream while the peer is between two spans: its client looks elsewhere at once."""
    text = "This peer is about to host other blocks."
    with contextlib.suppress(ChannelClosed):
        await channel.send(Fault(code="draining", text=text, retryable=True))
    channel.close()


def _is_on_battery() -> bool:
    try:
        battery = psutil.sensors_battery()
    except (OSError, AttributeError):  # not told here: no /sys/class/power_supply, as in a container
        return False
    return battery is not None and not battery.power_plugged
