"""A peer: the loaded blocks of one span, served on a network until it leaves.

Puts together what serves sessions (handler, sessions, executor) and what speaks for it in the
directory (announcer). Works on any `Network`; the program around it is `peer/program`.
"""

import asyncio
import contextlib
import logging
from collections.abc import Callable

import psutil

from swarm.lifetime import persist
from swarm.model.compute import Compute
from swarm.model.dtypes import dtype_name
from swarm.model.span import SpanModel
from swarm.network.transport import Network
from swarm.peer.announcer import Announcer, Load
from swarm.peer.executor import Executor
from swarm.peer.handler import Hosting, SessionHandler
from swarm.peer.metrics import PeerMetrics
from swarm.peer.sessions import SessionLimits, SessionTable
from swarm.peer.sleep import SleepWatch
from swarm.peer.throughput import ThreadControl, Throughput
from swarm.wire.messages import SESSION_PROTOCOL

EXPIRE_EVERY_S = 5.0
LEAVE_CHECK_S = 0.02

_logger = logging.getLogger(__name__)


class Peer:
    """Serves one span. `serve` once, `pause` and `resume` around a sleep, then `leave` or `stop`."""

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
        self.threads = ThreadControl(model, compute, throughput)
        self.executor = Executor(model, compute, instruments.note_step, self.threads)
        self.sessions = SessionTable(model, limits)
        announcer.computes_with(model.kernels)
        profile = announcer.profile
        hosting = Hosting(
            peer=profile.peer,
            manifest=profile.manifest,
            span=model.span,
            dtype=dtype_name(model.dtype),
            quantization=model.quantization,
            kernels=model.kernels,
            hidden_size=model.config.hidden_size,
        )
        self.handler = SessionHandler(hosting, self.sessions, self.executor)
        self._sleep_watch = SleepWatch(clock)
        self._tasks: tuple[asyncio.Task[None], ...] = ()
        instruments.watch(
            {
                ("sessions", "Sessions held, with or without a stream."): lambda: len(self.sessions),
                ("session_streams", "Sessions with an open stream."): lambda: self.handler.open_streams,
                ("queue_depth", "Steps waiting or running."): lambda: self.executor.queue_depth,
                ("kv_cache_bytes", "Memory held by the sessions' caches."): lambda: self.sessions.used_bytes,
                ("kv_tokens_free", "Tokens that sessions may still take."): lambda: self.sessions.free_tokens,
                ("in_flight_bytes", "Bodies of steps on their way."): lambda: self.handler.in_flight_bytes,
            }
        )

    @property
    def tasks(self) -> tuple[asyncio.Task[None], ...]:
        """What runs while the peer serves; none of them ends before `stop` unless it fails."""
        return self._tasks

    async def serve(self, network: Network) -> None:
        """Take sessions from now on, and say so in the directory."""
        work = (
            persist("executor", self.executor.run),
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
        self.handler.drop_streams()

    async def resume(self) -> None:
        """Take sessions again after a `pause`, and say so in the directory."""
        self._sleep_watch.forget()  # all streams were cut before that sleep; those of now are new
        self.handler.stay()
        await self.announcer.move_to("online")

    async def stop(self) -> None:
        """End everything at once."""
        self.handler.drop_streams()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _drain(self, within_s: float) -> None:
        """Tell clients and directory at once, and return when the last client has gone or the time is up."""
        self.handler.leave(within_s)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(within_s):
                await self.announcer.move_to("draining")
                while self.handler.active_streams:  # noqa: ASYNC110 - they end in many places
                    await asyncio.sleep(LEAVE_CHECK_S)

    def _load(self) -> Load:
        return Load(
            decode_tokens_per_s=self.threads.throughput.decode_tokens_per_s,
            prefill_tokens_per_s=self.threads.throughput.prefill_tokens_per_s,
            free_tokens=self.sessions.free_tokens,
            queue_depth=self.executor.queue_depth,
            sessions_resumed=self.sessions.resumed_total,
            on_battery=_is_on_battery(),
        )

    async def _wake(self, slept_s: float) -> None:
        """Clients have moved on meanwhile: let go of their streams, and say that we are here again."""
        _logger.warning(
            "This machine slept for %.0f s; sessions are let go, and the peer announces itself again", slept_s
        )
        self.handler.drop_streams()
        await self.announcer.announce()

    async def _expire(self) -> None:
        while True:
            await asyncio.sleep(EXPIRE_EVERY_S)
            self.handler.expire()


def _is_on_battery() -> bool:
    try:
        battery = psutil.sensors_battery()
    except (OSError, AttributeError):  # not told here: no /sys/class/power_supply, as in a container
        return False
    return battery is not None and not battery.power_plugged
