"""One real peer over a tiny model on the memory network, and a stranger who opens streams to it."""

from collections.abc import Callable
from dataclasses import dataclass

import torch

from swarm.network.channel import Channel, Envelope
from swarm.security.identity import new_identity
from swarm.testing.swarm import HostedPeer, InProcessSwarm
from swarm.wire.messages import SESSION_PROTOCOL, WIRE_VERSION, Message, Open, Opened, Step
from swarm.wire.tensors import encode_tensor

HIDDEN = 48


@dataclass(slots=True)
class Stream:
    """A stranger's stream to the peer."""

    channel: Channel

    async def ask(self, message: Message, body: bytes = b"") -> Envelope:
        """Send a message; gives the next answer, whatever it is."""
        await self.channel.send(message, body)
        return await self.channel.receive()

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

    async def stream(self) -> Stream:
        """A new stream, from a node of its own."""
        node = self.swarm.net.join(new_identity())
        return Stream(await node.open_channel(self.hosted.id, SESSION_PROTOCOL, 5.0))

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
            "lease_s": 2.0,
        }  # fmt: skip
        return Open(**(right | fields))  # type: ignore[arg-type]


def rows(count: int, seed: int = 0) -> torch.Tensor:
    """Random hidden states [count, hidden]."""
    return torch.randn(count, HIDDEN, generator=torch.Generator().manual_seed(seed))
