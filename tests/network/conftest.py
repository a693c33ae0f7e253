"""What the tests of the network share: records, and nodes in memory and over libp2p."""

import time
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field

import pytest

from swarm.network.libp2p import Libp2pConfig, Libp2pNetwork
from swarm.network.memory import MemorySwarm
from swarm.network.transport import Network
from swarm.security.identity import Identity, new_identity
from swarm.wire.records import PeerRecord

MODEL = "ab" * 32


@pytest.fixture
def make_record() -> Callable[..., PeerRecord]:
    """A valid record of a peer, with whatever a test wants different."""

    def make(identity: Identity, **changes: object) -> PeerRecord:
        issued_at = float(changes.pop("issued_at", time.time()))  # type: ignore[arg-type]
        fields: dict[str, object] = {
            "peer": identity.peer_id, "model": MODEL, "issued_at": issued_at, "expires_at": issued_at + 45,
            "sequence": 1, "start": 0, "end": 10, "state": "online", "dtype": "bf16",
            "quantization": "none", "decode_tokens_per_s": 20.0, "prefill_tokens_per_s": 400.0,
            "free_tokens": 4096, "queue_depth": 0, "wire_version": 1, "software": "0.1.0",
        }  # fmt: skip
        return PeerRecord(**(fields | changes))

    return make


@dataclass
class Nodes:
    """Starts nodes of one kind that know each other."""

    start: Callable[[Identity], Awaitable[Network]]
    started: list[Network] = field(default_factory=list)

    async def add(self, identity: Identity | None = None) -> Network:
        network = await self.start(identity or new_identity())
        self.started.append(network)
        return network


@pytest.fixture(params=["memory", pytest.param("libp2p", marks=pytest.mark.live)])
async def nodes(request: pytest.FixtureRequest) -> AsyncIterator[Nodes]:
    """Nodes of each implementation in turn, all closed at the end."""
    swarm = MemorySwarm(seed=1)

    async def start_in_memory(identity: Identity) -> Network:
        return swarm.join(identity)

    async def start_libp2p(identity: Identity) -> Network:
        join = made.started[0].addresses if made.started else ()
        return await Libp2pNetwork.start(Libp2pConfig(join=join), identity)

    made = Nodes(start_in_memory if request.param == "memory" else start_libp2p)
    yield made
    for network in made.started:
        await network.close()
