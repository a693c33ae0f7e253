"""The peer's own HTTP page for machines, on loopback: /livez, /readyz and /metrics."""

from collections.abc import Callable

from aiohttp import web

from swarm.http_server import HttpServer, Listen
from swarm.metrics import CONTENT_TYPE, Metrics

NotReady = Callable[[], list[str]]


class Monitor:
    """Serves until closed. `not_ready` gives the reasons why the peer is not ready, none when it is."""

    def __init__(self, metrics: Metrics, not_ready: NotReady) -> None:
        self._metrics = metrics
        self._not_ready = not_ready
        self._server: HttpServer | None = None

    async def start(self, host: str, port: int) -> int:
        """Listen; port 0 lets the system choose. Returns the port. Raises `PortInUse`."""
        app = web.Application()
        app.add_routes(
            [
                web.get("/livez", self._livez),
                web.get("/readyz", self._readyz),
                web.get("/metrics", self._scrape),
            ]
        )
        self._server = HttpServer(app, Listen(host, port, "The monitor", option="--monitor"))
        url = await self._server.start()
        return int(url.rpartition(":")[2])

    async def close(self) -> None:
        """Stop listening."""
        if self._server is not None:
            await self._server.close()

    async def _livez(self, request: web.Request) -> web.Response:
        return web.Response(text="ok\n")

    async def _readyz(self, request: web.Request) -> web.Response:
        reasons = self._not_ready()
        if reasons:
            return web.json_response({"ready": False, "reasons": reasons}, status=503)
        return web.json_response({"ready": True, "reasons": []})

    async def _scrape(self, request: web.Request) -> web.Response:
        return web.Response(body=self._metrics.render(), headers={"Content-Type": CONTENT_TYPE})
