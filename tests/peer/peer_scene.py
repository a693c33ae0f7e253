"""One real peer over a tiny model on the memory network, and a stranger who opens streams to it."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from msgspec import structs

from swarm.network.channel import Channel, Envelope
from swarm.security.identity import new_identity
from swarm.security.session_key import SessionKey
from swarm.testing.swarm import HostedPeer, InProcessSwarm
from swarm.values import PeerId
from swarm.wire.messages import SESSION_PROTOCOL, WIRE_VERSION, Message, Open, Opened, Step
from swarm.wire.tensors import encode_tensor

HIDDEN = 48
KEY = SessionKey(bytes(32))


@dataclass(slots=True)
class Stream:
    """A stranger's stream to the peer. `client` is the stranger, `key` that of the conversation."""

    channel: Channel
    client: PeerId
    key: SessionKey

    async def send(self, message: Message, body: bytes = b"") -> None:
        """Send a message, an Open with its signature."""
        if isinstance(message, Open) and not message.proof:
            message = self.signed(message)
        await self.channel.send(message, body)

    async def ask(self, message: Message, body: bytes = b"") -> Envelope:
        """Send a message; gives the next answer, whatever it is."""
        await self.send(message, body)
        return await self.channel.receive()

    def signed(self, request: Open) -> Open:
        """The request as the conversation's owner would send it on this stream."""
        proof = self.key.claim(request.session, request.epoch, self.channel.peer, self.client)
        return structs.replace(request, owner=self.key.owner, proof=proof)

    async def push(
        self, step_id: int, position: int, rows: torch.Tensor, reply_tokens: int | None = None
    ) -> Envelope:
        """Send rows [tokens, hidden] as a step; gives the next answer."""
        reply_tokens = len(rows) if reply_tokens is None else reply_tokens
        step = Step(id=step_id, position=position, tokens=len(rows), reply_tokens=reply_tokens)
        return await self.ask(step, encode_tensor(rows, "fp32"))


@dataclass(slots=True)
class Scene:
    """A peer that hosts the blocks 1:4 of a model of six."""

    swarm: InProcessSwarm
    hosted: HostedPeer
    sleep: Callable[[float], None]  # the machines sleep: every clock goes on but that of the loop

    async def stream(self, key: SessionKey = KEY) -> Stream:
        """A new stream, from a node of its own."""
        node = self.swarm.net.join(new_identity())
        channel = await node.open_channel(self.hosted.id, SESSION_PROTOCOL, 5.0)
        return Stream(channel, node.peer_id, key)

    async def session(self, **fields: object) -> Stream:
        """A stream with an open session on it."""
        stream = await self.stream()
        answer, _ = await stream.ask(self.open(**fields))
        assert isinstance(answer, Opened), answer
        return stream

    def open(self, **fields: object) -> Open:
        """What the peer accepts, but for `fields`."""
        right: dict[str, object] = {
            "wire_version": WIRE_VERSION, "session": "s", "epoch": 0, "manifest": self.swarm.model.manifest,
            "start": 1, "end": 4, "dtype": "fp32", "quantization": "none", "codec": "fp32", "max_tokens": 64,
            "lease_s": 2.0, "owner": KEY.owner, "proof": b"",
        }  # fmt: skip
        return Open(**(right | fields))  # type: ignore[arg-type]


def rows(count: int, seed: int = 0) -> torch.Tensor:
    """Random hidden states [count, hidden]."""
    return torch.randn(count, HIDDEN, generator=torch.Generator().manual_seed(seed))
