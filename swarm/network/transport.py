"""How the rest of the program sees the network: channels to peers, and a store of signed values.

`Network` is the seam. `network/libp2p` is the real one, `network/memory` the one that ships for
tests; both are held to the same contract by the same tests.
"""

from collections.abc import Awaitable, Callable
from typing import Literal, Protocol

from swarm.errors import SwarmError
from swarm.network.channel import Channel
from swarm.values import PeerId
from swarm.wire.records import LookUp

Handler = Callable[[Channel], Awaitable[None]]
Reach = Literal["unknown", "direct", "relayed", "no"]


class Network(Protocol):
    """One node's view of the network. Closing it ends every channel it opened or serves."""

    @property
    def peer_id(self) -> PeerId:
        """Who this node is: the public key of its identity."""
        ...

    @property
    def addresses(self) -> tuple[str, ...]:
        """Multiaddresses others can join through, each ending in /p2p/<peer id>."""
        ...

    @property
    def behind_s(self) -> float:
        """How far the clocks of the nodes around are ahead of this one's, where it matters; else 0."""
        ...

    async def open_channel(self, peer: PeerId, protocol: str, timeout_s: float) -> Channel:
        """Open a stream to a peer. Raises `PeerUnreachable` at the latest after `timeout_s`.

        An open channel does not prove a living peer: over an old connection it opens without a word
        from the other end, so the first answer needs a deadline of its own.
        """
        ...

    async def hang_up(self, peer: PeerId, silent_s: float) -> None:
        """A peer was silent for so long though it should have spoken: the connection to it may be dead.

        It is closed, and dialled anew by the next channel, unless another channel has heard the peer since.
        """
        ...

    async def serve(self, protocol: str, handler: Handler) -> None:
        """Answer streams of this protocol, each in a task of its own, until the node closes."""
        ...

    async def store(self, key: str, sealed: bytes) -> bool:
        """Put a sealed record of this node's own into the DHT, under one of its keys.

        False when the nodes that answered refused it; network/admission has the rules.
        """
        ...

    async def fetch(self, key: str) -> LookUp:
        """The records that hold now under a key, each peer's last word; empty when there are none.

        Each has passed network/admission. Raises `NetworkError` when nobody answers.
        """
        ...

    @property
    def reach(self) -> Reach | None:
        """Whether others can dial this node; "unknown" with nobody to ask, None before that is found out."""
        ...

    @property
    def why_unreachable(self) -> str:
        """What the owner should know and do when `reach` is "no"; else empty."""
        ...

    async def wait_reachable(self) -> None:
        """Return when others can dial this node, as far as anybody can tell."""
        ...

    async def wait_changed(self) -> None:
        """Return when `reach` has changed, or this node is back after it was cut off. For one waiter."""
        ...

    async def wait_failed(self) -> SwarmError:
        """Return, with the reason, when the node is lost for good; a node that can recover does so unseen."""
        ...

    async def close(self) -> None:
        """Leave. Safe to call twice."""
        ...
