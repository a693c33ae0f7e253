"""A gateway in front of an in-process swarm of tiny models, listening on 127.0.0.1."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
import pytest

from swarm.client.client import ClientOptions
from swarm.gateway.app import Gateway, GatewayConfig
from swarm.model.compute import InlineCompute
from swarm.testing.swarm import InProcessSwarm
from swarm.testing.tiny_models import TinyModel, write_tiny_model
from swarm.values import Span

CHAT = "/v1/chat/completions"
HELLO = [{"role": "user", "content": "Hello"}]
MODEL = "tiny"


@dataclass
class Served:
    """A gateway, what stands behind it, and a client to it."""

    swarm: InProcessSwarm
    gateway: Gateway
    url: str
    http: aiohttp.ClientSession

    async def post(self, path: str, body: Any, **headers: str) -> tuple[int, Any, Any]:
        """Status, body and headers of an answer."""
        data = body if isinstance(body, bytes) else msgspec.json.encode(body)
        sent = {"Content-Type": "application/json", **headers}
        async with self.http.post(path, data=data, headers=sent) as response:
            text = await response.read()
            return response.status, msgspec.json.decode(text), response.headers

    async def chat(self, **fields: Any) -> Any:
        """The body of a chat's answer, which must be good."""
        status, body, _ = await self.post(CHAT, {"model": MODEL, "messages": HELLO, **fields})
        assert status == 200, body
        return body

    async def stream(self, path: str = CHAT, **fields: Any) -> list[Any]:
        """The events of a stream, without the last, which must be [DONE]."""
        body = {"model": MODEL, "stream": True, **fields}
        if path == CHAT:
            body.setdefault("messages", HELLO)
        async with self.http.post(path, json=body) as response:
            assert response.status == 200, await response.text()
            events = read_events(await response.text())
        assert events[-1] == "[DONE]"
        return events[:-1]

    @property
    def sessions(self) -> int:
        """Sessions open on the peers."""
        return sum(hosted.peer.handler.open_streams for hosted in self.swarm.peers)


def read_events(text: str) -> list[Any]:
    """The data of server-sent events."""
    lines = [line.removeprefix("data: ") for line in text.splitlines() if line.startswith("data: ")]
    return [line if line == "[DONE]" else msgspec.json.decode(line) for line in lines]


def text_of(events: list[Any]) -> str:
    """What a stream of a chat says."""
    return "".join(choice["delta"].get("content") or "" for event in events for choice in event["choices"])


EVENTUALLY_S = 30.0  # no machine is so slow; a reply that is to end by itself within it proves nothing


async def eventually(holds: Callable[[], bool]) -> None:
    """Wait until something holds; fails when it never does."""
    async with asyncio.timeout(EVENTUALLY_S):
        while not holds():  # noqa: ASYNC110 - what is waited for has no event
            await asyncio.sleep(0.01)


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny model that speaks single bytes."""
    directory = tmp_path_factory.mktemp("models") / MODEL
    write_tiny_model(directory, TinyModel(overrides={"max_position_embeddings": 1024}))
    return directory


Serve = Callable[..., AbstractAsyncContextManager[Served]]


@pytest.fixture
def serve(tiny: Path) -> Serve:
    """Starts a gateway: `async with serve(spans=..., cost_s=...) as served`."""

    @asynccontextmanager
    async def start(
        spans: tuple[tuple[int, int], ...] = ((0, 2), (2, 4)),
        cost_s: float = 0.0,
        headers: dict[str, str] | None = None,
        **config: Any,
    ) -> AsyncIterator[Served]:
        async with InProcessSwarm(tiny, compute=lambda: InlineCompute(cost_s)) as swarm:
            await swarm.add_peers([Span(*span) for span in spans])
            client = swarm.client(ClientOptions(patience_s=2.0, lease_s=30.0))
            gateway = Gateway([client], GatewayConfig(port=0, **config))
            url = await gateway.serve()
            try:
                async with aiohttp.ClientSession(url, headers=headers) as http:
                    yield Served(swarm, gateway, url, http)
            finally:
                await gateway.close()

    return start
