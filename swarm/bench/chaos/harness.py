"""The harness of a chaos run: a swarm of real peer processes, each behind a link emulator.

Every span has replicas. A peer announces only its emulator's address, so whatever a client sends it
passes through there. `heal` makes everything whole again between two scenarios. Each process and
port started here is known here, so that what is left behind can be told from what belongs.
"""

import asyncio
import socket
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Self
from urllib.request import urlopen

from swarm.client.client import Client, ClientOptions
from swarm.session.rules import SparePolicy
from swarm.testing.faults import NodeProcesses
from swarm.testing.links import HOST, LinkEmulator
from swarm.testing.processes import SwarmProcess
from swarm.values import PeerId, Span

MEMORY_PER_PEER = "1GiB"
DRAIN_S = 10.0
EXIT_TIMEOUT_S = DRAIN_S + 10.0
METRICS_TIMEOUT_S = 3.0
LOOK_EVERY_S = 0.005


@dataclass(frozen=True, slots=True)
class HarnessConfig:
    """What to set up. `home` holds the keys of all nodes."""

    model: str
    vocab_size: int
    spans: Sequence[Span]
    home: Path
    replicas: int = 2
    seed: int = 0
    spares: SparePolicy = "auto"
    lease_s: float = 2.0
    patience_s: float = 60.0


class HarnessPeer:
    """One peer: its process, which may be replaced by a new one, and the link in front of it."""

    def __init__(
        self, name: str, span: Span, config: HarnessConfig, emulator: LinkEmulator, port: int
    ) -> None:
        self.name = name
        self.span = span
        self.link = emulator
        self.id = PeerId("")
        self.address = ""  # to join through
        self.past: list[NodeProcesses] = []  # of every process it ever had
        self._config = config
        self._port = port
        self._process: SwarmProcess | None = None
        self._monitor = ""

    @classmethod
    async def create(cls, name: str, span: Span, config: HarnessConfig) -> Self:
        """Its ports and its emulator; `start` comes next."""
        port = free_port()
        return cls(name, span, config, await LinkEmulator.start(port, config.seed), port)

    @property
    def running(self) -> bool:
        """Whether its Python process has not ended."""
        return self._process is not None and self._process.running

    @property
    def processes(self) -> NodeProcesses:
        """Its processes as they were when it came online last."""
        return self.past[-1]

    @property
    def process(self) -> SwarmProcess:
        """The process it has now."""
        assert self._process is not None  # noqa: S101 - started before anything else is done with it
        return self._process

    async def start(self, join: Sequence[str]) -> None:
        """Start its process, with the identity and port it always has. `online` waits for it."""
        self._process = await SwarmProcess.start(
            "peer", self._config.model, "--blocks", str(self.span), *joining(join),
            "--listen", f"{HOST}:{self._port}", "--announce", self.link.address,
            "--identity", str(self._config.home / f"{self.name}.key"), "--dtype", "fp32",
            "--threads", "1", "--memory", MEMORY_PER_PEER, "--drain", f"{DRAIN_S}s",
        )  # fmt: skip

    async def online(self) -> None:
        """Wait until it serves. Raises `ProcessFailed`."""
        joined = await self.process.wait_for("joined")
        self._monitor = joined["monitor"]
        await self.process.wait_for("online")
        self.id, self.address = joined["peer"], joined["join"][0]
        self.past.append(NodeProcesses.of(self.process.pid))

    async def end(self) -> None:
        """End its process whatever state it is in."""
        if self.past:
            self.past[-1].release_guard()
        if self._process is not None:
            await self._process.stop()

    async def close(self) -> None:
        """End its process and its emulator."""
        await self.end()
        await self.link.close()

    async def metrics(self) -> dict[str, float]:
        """The plain values of its /metrics page, without labels. Raises `OSError`."""
        text = await asyncio.to_thread(_fetch, f"{self._monitor}/metrics")
        lines = [line.split() for line in text.splitlines() if not line.startswith("#") and "{" not in line]
        return {name: float(value) for name, value in lines}

    async def streams(self) -> int:
        """How many sessions it serves now; none when it does not answer."""
        try:
            return int((await self.metrics())["swarm_session_streams"])
        except OSError:
            return 0

    async def ready(self) -> bool:
        """Whether its /readyz page says so."""
        try:
            await asyncio.to_thread(_fetch, f"{self._monitor}/readyz")
        except OSError:  # HTTPError is one
            return False
        return True


@dataclass(slots=True)
class Harness:
    """The swarm. Use as an async context manager."""

    config: HarnessConfig
    peers: list[HarnessPeer] = field(default_factory=list)
    extras: list[HarnessPeer] = field(default_factory=list)  # of one scenario only
    join: str = ""
    _bootstrap: SwarmProcess | None = None
    _bootstrap_port: int = 0

    async def __aenter__(self) -> Self:
        async with AsyncExitStack() as stack:
            stack.push_async_callback(self._close)
            self._bootstrap_port = free_port()
            await self.start_bootstrap()
            for replica in range(self.config.replicas):
                for index, span in enumerate(self.config.spans):
                    name = f"peer-{index}-{replica}"
                    self.peers.append(await HarnessPeer.create(name, span, self.config))
            await asyncio.gather(*(peer.start([self.join]) for peer in self.peers))
            await asyncio.gather(*(peer.online() for peer in self.peers))
            stack.pop_all()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._close()

    @property
    def everybody(self) -> list[HarnessPeer]:
        """All peers, with those of the running scenario."""
        return [*self.peers, *self.extras]

    def peer(self, peer_id: str) -> HarnessPeer:
        """The peer of that id."""
        return next(peer for peer in self.everybody if peer.id == peer_id)

    def replicas(self, peer: HarnessPeer) -> list[HarnessPeer]:
        """The other peers of its span."""
        return [other for other in self.everybody if other.span == peer.span and other is not peer]

    @property
    def options(self) -> ClientOptions:
        """How a client behaves here, unless a scenario wants it otherwise."""
        config = self.config
        return ClientOptions(lease_s=config.lease_s, patience_s=config.patience_s, spares=config.spares)

    async def client(self, options: ClientOptions | None = None, join: Sequence[str] = ()) -> Client:
        """A client of this swarm, on a node of its own."""
        return await Client.open(self.config.model, join=join or [self.join], options=options or self.options)

    async def until_in_use(self, peers: Sequence[HarnessPeer]) -> HarnessPeer:
        """Wait until one of the peers serves a session."""
        while True:
            for peer in peers:
                if await peer.streams():
                    return peer
            await asyncio.sleep(LOOK_EVERY_S)

    async def add_peer(self, span: Span, join: Sequence[str] = ()) -> HarnessPeer:
        """One more peer until the scenario ends; online when this returns."""
        peer = await HarnessPeer.create(f"extra-{len(self.extras)}", span, self.config)
        self.extras.append(peer)
        await peer.start(join or [self.join])
        await peer.online()
        return peer

    async def start_bootstrap(self) -> None:
        """Start the bootstrap node, always with the same identity and port."""
        self._bootstrap = await SwarmProcess.start(
            "bootstrap", "--listen", f"{HOST}:{self._bootstrap_port}",
            "--identity", str(self.config.home / "bootstrap.key"),
        )  # fmt: skip
        self.join = (await self._bootstrap.wait_for("joined"))["join"][0]

    async def stop_bootstrap(self) -> None:
        """End the bootstrap node."""
        if self._bootstrap is not None:
            await self._bootstrap.stop()

    @property
    def expected_pids(self) -> set[int]:
        """The Python processes that belong to the harness now."""
        processes = [self._bootstrap, *(peer.process for peer in self.everybody)]
        return {process.pid for process in processes if process is not None and process.running}

    async def heal(self) -> None:
        """Clear every link, wake what sleeps, start what is down, and end the scenario's extra peers."""
        for peer in self.everybody:
            peer.link.set_link()
            peer.processes.thaw()
        extras, self.extras = self.extras, []
        await asyncio.gather(*(peer.close() for peer in extras))
        if self._bootstrap is not None and not self._bootstrap.running:
            await self.start_bootstrap()
        down = [peer for peer in self.peers if not peer.running]
        await asyncio.gather(*(self.restart(peer) for peer in down))

    async def restart(self, peer: HarnessPeer) -> None:
        """Put an ended peer back online under its old identity and port."""
        await peer.end()
        await peer.start([self.join])
        await peer.online()

    async def _close(self) -> None:
        ending = [peer.close() for peer in self.everybody]
        if self._bootstrap is not None:
            ending.append(self._bootstrap.stop())
        await asyncio.gather(*ending)


def joining(addresses: Sequence[str]) -> list[str]:
    """The addresses as --join options."""
    return [part for address in addresses for part in ("--join", address)]


def free_port() -> int:
    """A TCP port of the loopback that is free now."""
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        return int(probe.getsockname()[1])


def _fetch(url: str) -> str:
    with urlopen(url, timeout=METRICS_TIMEOUT_S) as response:  # noqa: S310 - our own peers, on the loopback
        return str(response.read(), "utf-8")
