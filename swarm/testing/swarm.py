"""A whole swarm in one process: real peers and clients on the memory network.

Everything but the network and the weights' size is the real thing, so a test, or a reader's own
experiment, meets the same code that runs on the internet. Under `VirtualTimeLoop` it is
deterministic and takes no time to wait.
"""

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Self

from swarm.client.client import Client, ClientOptions
from swarm.client.model import ClientModel, load_client_model
from swarm.model.compute import Compute, InlineCompute
from swarm.model.dtypes import parse_dtype
from swarm.model.linear.layouts import Quantization
from swarm.model.weights import load_span
from swarm.network.directory import Directory, OwnDirectory
from swarm.network.memory import MemoryNetwork, MemorySwarm
from swarm.peer.announcer import Announcer, Profile
from swarm.peer.metrics import PeerMetrics
from swarm.peer.peer import Peer
from swarm.peer.sessions import SessionLimits
from swarm.peer.throughput import Throughput
from swarm.security.identity import Identity, new_identity
from swarm.values import PeerId, Span

CACHE_BYTES = 256 * 2**20


@dataclass(slots=True)
class HostedPeer:
    """A peer of an in-process swarm, with what is needed to disturb it."""

    peer: Peer
    net: MemorySwarm
    network: MemoryNetwork
    identity: Identity
    _announcing: asyncio.Task[None]
    gone: bool = False

    @property
    def id(self) -> PeerId:
        return self.identity.peer_id

    async def kill(self) -> None:
        """Die without a word: every stream breaks at once. Safe to call twice."""
        if self.gone:
            return
        self.gone = True
        self._announcing.cancel()
        await self.net.kill(self.id)
        await self.peer.stop()

    async def leave(self, within_s: float) -> None:
        """Leave properly."""
        self.gone = True
        self._announcing.cancel()
        await self.peer.leave(within_s)
        await self.network.close()


@dataclass(slots=True)
class InProcessSwarm:
    """Peers over a model directory. Use as an async context manager."""

    directory: Path
    dtype: str = "fp32"
    now: Callable[[], float] = time.time
    seed: int = 0
    compute: Callable[[], Compute] = InlineCompute
    quantization: Quantization = "none"
    net: MemorySwarm = field(init=False)
    peers: list[HostedPeer] = field(default_factory=list)
    _clients: list[Client] = field(default_factory=list)
    _model: ClientModel | None = None

    def __post_init__(self) -> None:
        self.net = MemorySwarm(self.seed, now=self.now)

    @property
    def model(self) -> ClientModel:
        """The ends of the model, loaded once."""
        if self._model is None:
            self._model = load_client_model(str(self.directory), self.directory.parent, self.dtype)
        return self._model

    @property
    def living(self) -> list[HostedPeer]:
        """The peers that were neither killed nor left."""
        return [hosted for hosted in self.peers if not hosted.gone]

    async def add_peer(
        self, span: Span, identity: Identity | None = None, limits: SessionLimits | None = None
    ) -> HostedPeer:
        """Start a peer for a span and wait until it is online."""
        identity = identity or new_identity()
        network = self.net.join(identity)
        model, config = self.model, self.model.config
        profile = Profile(
            peer=identity.peer_id,
            manifest=model.manifest,
            model_name=model.name,
            model_type=config.model_type,
            num_blocks=config.num_blocks,
            hidden_size=config.hidden_size,
            span=span,
            dtype=self.dtype,
            quantization=self.quantization,
            started_at=self.now(),
        )
        announcer = Announcer(OwnDirectory(network, identity, self.now), profile, self.now)
        blocks = load_span(
            self.directory, config, span, dtype=parse_dtype(self.dtype), quantization=self.quantization
        )
        limits = limits or SessionLimits(CACHE_BYTES, config.context_length)
        throughput = Throughput(threads=1, decode_tokens_per_s=1000.0, prefill_tokens_per_s=10_000.0)
        peer = Peer(blocks, announcer, limits, throughput, self.compute(), PeerMetrics(), self.now)
        await peer.serve(network)
        hosted = HostedPeer(peer, self.net, network, identity, asyncio.create_task(announcer.run()))
        self.peers.append(hosted)
        return hosted

    async def add_peers(self, spans: Sequence[Span]) -> list[HostedPeer]:
        """Start a peer for each span."""
        return [await self.add_peer(span) for span in spans]

    def client(self, options: ClientOptions | None = None) -> Client:
        """A client of this swarm; closed with it."""
        network = self.net.join(new_identity())
        client = Client(self.model, network, Directory(network, self.now), options, self.compute(), self.now)
        self._clients.append(client)
        return client

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for client in self._clients:
            await client.close()
        for hosted in self.peers:
            await hosted.kill()
