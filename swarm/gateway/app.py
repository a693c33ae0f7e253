"""The gateway, put together: models, keys, the door, the replies, and the HTTP server around them.

`Gateway` lives on one event loop; `serve` listens, `drain` lets replies end, `close` ends the rest.
"""

import asyncio
import contextlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from aiohttp import web

from swarm.client.client import Client
from swarm.errors import PortInUse, UsageError
from swarm.gateway.admission import Admission, AdmissionLimits, Workbench
from swarm.gateway.auth import KeyFile
from swarm.gateway.body import BodyRules
from swarm.gateway.metrics import GatewayMetrics
from swarm.gateway.middleware import Door, middlewares, signer
from swarm.gateway.models import HostedModel
from swarm.gateway.page import add_page
from swarm.gateway.replies import KEPT_S, Conversations, ReplyStore
from swarm.gateway.routes import Api
from swarm.http_server import LOOPBACK, Hosts, HttpServer, Listen, hosts_of

MAX_BODY_BYTES = 8 * 2**20
_READING = AdmissionLimits(max_running=2, max_waiting=256)  # of prompts that are rendered and tokenised


@dataclass(frozen=True, slots=True)
class GatewayConfig:
    """How a gateway listens and whom it serves. Raises `UsageError` for an open address without keys."""

    host: str = "127.0.0.1"
    port: int = 8000
    keys: Path | None = None
    origins: frozenset[str] = frozenset()  # web pages of these may ask, beside our own
    limits: AdmissionLimits = field(default_factory=AdmissionLimits)
    deadline_s: float = 600.0
    kept_s: float = KEPT_S
    max_body_bytes: int = MAX_BODY_BYTES
    strict: bool = False  # fields that nobody knows are refused

    def __post_init__(self) -> None:
        if self.host not in LOOPBACK and self.keys is None:
            raise UsageError(
                f"{self.host} can be reached by others, and there are no keys",
                "Make one with --new-key FILE NAME and start with --keys FILE, or listen on 127.0.0.1.",
            )


class Gateway:
    """Serves clients' models over HTTP. The clients are closed by whoever made them."""

    def __init__(self, clients: Sequence[Client], config: GatewayConfig) -> None:
        """Raises `UsageError` for two models of one name."""
        self.config = config
        self.models = {client.model.name: HostedModel(client) for client in clients}
        if len(self.models) < len(clients):
            raise UsageError("Two of the models have the same name", "Name each model once.")
        self.gate = Admission(config.limits)
        self.replies = ReplyStore(config.kept_s)
        self.conversations = Conversations()
        self.instruments = GatewayMetrics()
        self.instruments.watch(lambda: self.gate.running, lambda: self.gate.waiting)
        self.server: HttpServer | None = None
        self._watching: list[asyncio.Task[None]] = []

    async def serve(self) -> str:
        """Listen; gives the address, ``http://127.0.0.1:8000``. Raises `PortInUse`."""
        config = self.config
        for model in self.models.values():
            await model.refresh()
            self._watching.append(asyncio.create_task(model.watch(), name=f"watch {model.name}"))
        # A reader that goes away must be noticed at once, not at the next write.
        listen = Listen(config.host, config.port, "The gateway", cancels_handlers=True)
        self.server = HttpServer(self._app(), listen)
        try:
            return await self.server.start()
        except PortInUse:
            await self.close()
            raise

    async def drain(self, within_s: float) -> None:
        """Take no more requests, and give the replies in the making so long to end."""
        self.gate.drain()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(within_s):
                while self.gate.running:
                    await asyncio.gather(*(reply.ended() for reply in self.replies.busy()))
                    await asyncio.sleep(0)

    async def close(self) -> None:
        """End what runs and stop listening."""
        busy = self.replies.busy()
        for reply in busy:
            reply.cancel()
        for task in self._watching:
            task.cancel()
        await asyncio.gather(*self._watching, *(reply.ended() for reply in busy), return_exceptions=True)
        for model in self.models.values():
            await model.close()
        if self.server is not None:
            await self.server.close()

    def _app(self) -> web.Application:
        config = self.config
        door = Door(
            keys=KeyFile(config.keys),
            origins=config.origins,
            hosts=hosts_of(config.host, ()) if config.keys is None else Hosts(),
            instruments=self.instruments,
        )
        app = web.Application(middlewares=middlewares(door))
        api = Api(
            self.models,
            self.gate,
            self.replies,
            self.conversations,
            self.instruments,
            Workbench(Admission(_READING)),
            config.deadline_s,
            BodyRules(config.max_body_bytes, config.strict),
        )
        app.add_routes(api.routes())
        app.on_response_prepare.append(signer(door))
        add_page(app)
        return app
