"""A swarm of real processes on this machine: what `swarm demo`, `swarm chaos` and live tests stand on.

Starts `swarm bootstrap` and `swarm peer` as a person would, reads their JSON lines, and ends them by
the process it started. Children leave by themselves when this process dies, whatever way it does.
"""

import asyncio
import contextlib
import json
import os
import signal
import sys
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from types import TracebackType
from typing import Any, Self

from swarm.errors import SwarmError
from swarm.values import Span

START_TIMEOUT_S = 90.0
STOP_TIMEOUT_S = 15.0
_KEPT_ERROR_LINES = 20


class ProcessFailed(SwarmError):
    """A process of a local swarm did not start, or ended before it should."""

    code = "process_failed"


class SwarmProcess:
    """One `swarm` process that prints JSON lines. `wait_for` an event, then signal or `stop` it."""

    def __init__(self, process: asyncio.subprocess.Process, arguments: Sequence[str]) -> None:
        self._process = process
        self._arguments = tuple(arguments)
        self._errors: deque[str] = deque(maxlen=_KEPT_ERROR_LINES)
        self._events: dict[str, dict[str, Any]] = {}
        self._changed = asyncio.Condition()
        self._reading = [
            asyncio.create_task(self._read_events()),
            asyncio.create_task(self._read_errors()),
        ]

    @classmethod
    async def start(cls, *arguments: str, environment: dict[str, str] | None = None) -> Self:
        """Start `swarm ARGUMENTS --json --until-eof`."""
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "swarm",
            *arguments,
            "--json",
            "--until-eof",
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env={**os.environ, **(environment or {})},
            start_new_session=True,  # a Ctrl-C at the terminal is ours to pass on
        )
        return cls(process, arguments)

    @property
    def name(self) -> str:
        """What it is, for people: ``"peer of blocks 0:15"``."""
        kind, *options = self._arguments
        return f"{kind} of blocks {options[options.index('--blocks') + 1]}" if "--blocks" in options else kind

    @property
    def pid(self) -> int:
        """Of the Python process."""
        return self._process.pid

    @property
    def running(self) -> bool:
        """Whether it has not ended yet."""
        return self._process.returncode is None

    async def wait_for(self, event: str, timeout_s: float = START_TIMEOUT_S) -> dict[str, Any]:
        """The line of that event. Raises `ProcessFailed` when the process ends first or takes too long."""
        try:
            async with asyncio.timeout(timeout_s), self._changed:
                await self._changed.wait_for(lambda: event in self._events or not self.running)
        except TimeoutError:
            raise self._failed(f"gave no {event!r} within {timeout_s:.0f} s") from None
        if event not in self._events:
            await asyncio.gather(*self._reading, return_exceptions=True)
            raise self._failed(f"ended with status {self._process.returncode} before {event!r}")
        return self._events[event]

    def send_signal(self, number: signal.Signals) -> None:
        """Signal the Python process: SIGSTOP freezes it, SIGKILL kills it."""
        if self.running:
            self._process.send_signal(number)

    async def end(self) -> int:
        """Wait for the end, however long it takes; gives the exit status, minus the signal that killed it."""
        return await self._process.wait()

    async def wait(self, timeout_s: float = STOP_TIMEOUT_S) -> int:
        """Wait for the end; gives the exit status. Raises `ProcessFailed`."""
        try:
            return await asyncio.wait_for(self._process.wait(), timeout_s)
        except TimeoutError:
            raise self._failed(f"did not end within {timeout_s:.0f} s") from None

    async def stop(self) -> None:
        """End it: properly if it can, by force if not."""
        if self.running:
            self.send_signal(signal.SIGCONT)
            self.send_signal(signal.SIGTERM)
            try:
                await self.wait()
            except ProcessFailed:
                self._process.kill()
                await self._process.wait()
        for task in self._reading:
            task.cancel()
        await asyncio.gather(*self._reading, return_exceptions=True)
        if self._process.stdin is not None:
            self._process.stdin.close()

    def _failed(self, what: str) -> ProcessFailed:
        said = "\n".join(self._errors)
        return ProcessFailed(f"swarm {' '.join(self._arguments)} {what}", f"It said:\n{said}" if said else "")

    async def _read_events(self) -> None:
        assert self._process.stdout is not None  # noqa: S101 - we asked for a pipe
        async for line in self._process.stdout:
            with contextlib.suppress(ValueError):
                entry = json.loads(line)
                self._events[entry.get("event", "")] = entry
            async with self._changed:
                self._changed.notify_all()
        await self._process.wait()
        async with self._changed:
            self._changed.notify_all()

    async def _read_errors(self) -> None:
        assert self._process.stderr is not None  # noqa: S101 - we asked for a pipe
        async for line in self._process.stderr:
            self._errors.append(line.decode(errors="replace").rstrip())


@dataclass(frozen=True, slots=True)
class LocalSwarmConfig:
    """Which processes to run."""

    model: str
    spans: Sequence[Span]
    home: str  # where the nodes keep their identities and lists of known peers
    dtype: str = "fp32"
    threads: int = 1
    extra: Sequence[str] = ()  # options of every peer
    on_start: Callable[[str], None] = lambda text: None  # told, in words, each time a node is up
    quantization: str = "none"


@dataclass(slots=True)
class LocalSwarm:
    """A bootstrap node and one peer for each span, as processes on 127.0.0.1."""

    config: LocalSwarmConfig
    bootstrap: SwarmProcess | None = None
    peers: list[SwarmProcess] = field(default_factory=list)
    services: list[SwarmProcess] = field(default_factory=list)
    join: str = ""

    async def __aenter__(self) -> Self:
        try:
            self.bootstrap = await SwarmProcess.start(
                "bootstrap", "--listen", "127.0.0.1:0", "--identity", f"{self.config.home}/bootstrap.key"
            )
            self.join = (await self.bootstrap.wait_for("joined"))["join"][0]
            self.config.on_start("The bootstrap node is up")
            for span in self.config.spans:
                await self.start_peer(span)
            await asyncio.gather(*(self._wait_online(peer) for peer in self.peers))
        except BaseException:
            await self._stop()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._stop()

    async def start_peer(
        self, span: Span, identity: str | None = None, join: str | None = None
    ) -> SwarmProcess:
        """Start one more peer; does not wait until it is online."""
        config = self.config
        peer = await SwarmProcess.start(
            "peer", config.model, "--blocks", str(span), "--join", join or self.join,
            "--listen", "127.0.0.1:0", "--dtype", config.dtype, "--threads", str(config.threads),
            "--quantization", config.quantization,
            "--identity", identity or f"{config.home}/peer-{len(self.peers)}.key", *config.extra,
        )  # fmt: skip
        self.peers.append(peer)
        return peer

    async def start_service(self, *arguments: str) -> str:
        """Start a gateway or status page of this swarm, and give its address once it listens."""
        service = await SwarmProcess.start(*arguments, "--join", self.join, "--listen", "127.0.0.1:0")
        self.services.append(service)
        return str((await service.wait_for("listening"))["url"]).rstrip("/")

    async def tell_ends(self, tell: Callable[[str], None]) -> None:
        """Say, in words, each process that ends from now on; returns when none is left."""

        async def tell_end(process: SwarmProcess) -> None:
            status = await process.end()
            how = f"with status {status}" if status >= 0 else f"by {signal.Signals(-status).name}"
            tell(f"The {process.name} has ended {how}")

        await asyncio.gather(*map(tell_end, self._processes))

    @property
    def _processes(self) -> list[SwarmProcess]:
        return [*self.services, *self.peers, *([self.bootstrap] if self.bootstrap else [])]

    async def _wait_online(self, peer: SwarmProcess) -> None:
        blocks = (await peer.wait_for("online"))["blocks"]
        self.config.on_start(f"The peer of blocks {blocks} is online")

    async def _stop(self) -> None:
        await asyncio.gather(*(process.stop() for process in self._processes))


def even_spans(num_blocks: int, count: int) -> list[Span]:
    """The blocks of a model in `count` spans of nearly the same length."""
    edges = [round(index * num_blocks / count) for index in range(count + 1)]
    return [Span(start, end) for start, end in pairwise(edges)]
