"""The HTTP interface of the status page: which path gives which answer.

Every answer but the event stream comes from the responses; a request never reaches the swarm. Anything
not known is a 404 in the API's shape, and every answer carries the same strict headers.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from importlib.resources import files

import msgspec
from aiohttp import web

from swarm.http_server import Hosts, most_connections
from swarm.metrics import CONTENT_TYPE
from swarm.status import api
from swarm.status.history import RANGES, Range
from swarm.status.metrics import StatusMetrics
from swarm.status.page import PEERS_A_PAGE, Site, render_page, render_peers
from swarm.status.plots import badge
from swarm.status.snapshot import SwarmState
from swarm.status.view import MAX_FEEDS, Answer, ResponseCache, View

PING_EVERY_S = 15.0
_HTML, _JSON, _SVG = "text/html; charset=utf-8", "application/json", "image/svg+xml"
_STATIC = {"status.css": "text/css; charset=utf-8", "status.js": "text/javascript; charset=utf-8"}
_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Permissions-Policy": "geolocation=(), camera=(), microphone=()",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}
_BADGES = {
    "healthy": ("working", "#1a7f3c"),
    "degraded": ("weak spots", "#9a6700"),
    "broken": ("not working", "#c1271d"),
    "unknown": ("not proven", "#59636e"),
}

Make = Callable[[View], bytes | None]
Handle = Callable[[web.Request], Awaitable[web.StreamResponse]]


class StatusRoutes:
    """Answers requests from a responses."""

    def __init__(
        self, responses: ResponseCache, site: Site, instruments: StatusMetrics, hosts: Hosts | None = None
    ) -> None:
        self._responses = responses
        self._site = site
        self._instruments = instruments
        self._hosts = hosts or Hosts()
        self._closing = asyncio.Event()

    def application(self) -> web.Application:
        """The whole HTTP interface."""
        app = web.Application(middlewares=[_with_headers, self._admitted])
        app.router.add_get("/", self._page)
        app.router.add_get("/models/{name}/peers", self._peers)
        app.router.add_get("/static/{name}", self._static)
        app.router.add_get("/icon.svg", partial(self._fixed, "static/icon.svg", _SVG))
        app.router.add_get("/openapi.json", partial(self._fixed, "static/openapi.json", _JSON))
        app.router.add_get("/badge.svg", self._badge)
        app.router.add_get("/incidents.atom", self._atom)
        app.router.add_get("/events", self._events)
        app.router.add_get("/api/v1/state", self._state)
        app.router.add_get("/api/v1/models/{name:.+}", self._model)
        app.router.add_get("/api/v1/peers/{id}", self._peer)
        app.router.add_get("/api/v1/history", self._history)
        app.router.add_get("/api/v1/incidents", self._incidents)
        app.router.add_get("/metrics", self._metrics)
        app.router.add_get("/livez", self._livez)
        app.router.add_get("/readyz", self._readyz)
        app.on_shutdown.append(self._end_feeds)
        return app

    async def _page(self, request: web.Request) -> web.Response:
        range_ = _range(request)
        make: Make = lambda view: render_page(self._site, view.state, view.history, range_).encode()  # noqa: E731
        return await self._give(request, f"page {range_}", _HTML, make)

    async def _peers(self, request: web.Request) -> web.Response:
        name, page = request.match_info["name"], _whole(request, "page", 1)

        def make(view: View) -> bytes | None:
            model = api.find_model(view.state, name)
            if model is None or not 1 <= page <= max(1, -(-len(model.peers) // PEERS_A_PAGE)):
                return None
            return render_peers(self._site, view.state, model, page).encode()

        return await self._give(request, f"peers {page} {name}", _HTML, make)

    async def _state(self, request: web.Request) -> web.Response:
        return await self._give_json(request, "state", lambda view: api.state_json(view.state, view.history))

    async def _model(self, request: web.Request) -> web.Response:
        name = request.match_info["name"]
        offset, limit = _whole(request, "offset", 0), _whole(request, "limit", 500)

        def make(view: View) -> api.Json | None:
            model = api.find_model(view.state, name)
            return api.model_json(model, view.history, offset, limit) if model else None

        return await self._give_json(request, f"model {offset} {limit} {name}", make)

    async def _peer(self, request: web.Request) -> web.Response:
        peer = request.match_info["id"]
        return await self._give_json(request, f"peer {peer}", lambda view: api.peer_json(view.state, peer))

    async def _history(self, request: web.Request) -> web.Response:
        name, range_ = request.query.get("model", ""), _range(request)

        def make(view: View) -> api.Json | None:
            model = api.find_model(view.state, name) if name else next(iter(view.state.models), None)
            if model is None:
                return None
            return api.history_json(model, range_, view.history.points.get((model.manifest, range_), ()))

        return await self._give_json(request, f"history {range_} {name}", make)

    async def _incidents(self, request: web.Request) -> web.Response:
        return await self._give_json(
            request, "incidents", lambda view: api.incidents_json(view.history.incidents)
        )

    async def _atom(self, request: web.Request) -> web.Response:
        make: Make = lambda view: api.incidents_atom(  # noqa: E731
            self._site.title, view.history.incidents, view.state.at
        )
        return await self._give(request, "atom", "application/atom+xml; charset=utf-8", make)

    async def _badge(self, request: web.Request) -> web.Response:
        name = request.query.get("model", "")

        def make(view: View) -> bytes | None:
            health = _health(view.state, name)
            text, colour = _BADGES[health] if health else ("unknown model", _BADGES["unknown"][1])
            return badge("swarm", text, colour).encode()

        return await self._give(request, f"badge {name}", _SVG, make)

    async def _fixed(self, path: str, content_type: str, request: web.Request) -> web.Response:
        make: Make = lambda view: (files("swarm.status") / path).read_bytes()  # noqa: E731
        return await self._give(request, path, content_type, make)

    async def _static(self, request: web.Request) -> web.Response:
        name = request.match_info["name"]
        if name not in _STATIC:
            raise web.HTTPNotFound
        return await self._fixed(f"static/{name}", _STATIC[name], request)

    async def _events(self, request: web.Request) -> web.StreamResponse:
        responses = self._responses
        if responses.listeners >= min(MAX_FEEDS, most_connections() // 2):
            raise web.HTTPServiceUnavailable(headers={"Retry-After": "30"})
        response = web.StreamResponse(
            headers={"Content-Type": "text/event-stream", "Cache-Control": "no-store"}
        )
        response.headers.update(_HEADERS)
        await response.prepare(request)
        responses.listeners += 1
        try:
            await self._feed(response)
        except ConnectionError:
            pass  # the reader has gone
        finally:
            responses.listeners -= 1
        return response

    async def _feed(self, response: web.StreamResponse) -> None:
        version = self._responses.version
        await response.write(b"retry: 5000\n\n")
        while not self._closing.is_set():
            try:
                async with asyncio.timeout(PING_EVERY_S):
                    version = await self._responses.changed_since(version)
            except TimeoutError:
                await response.write(b": still here\n\n")
            else:
                health = self._responses.view.state.health
                await response.write(
                    f'event: state\nid: {version}\ndata: {{"health":"{health}"}}\n\n'.encode()
                )

    async def _end_feeds(self, app: web.Application) -> None:
        self._closing.set()
        await self._responses.show(self._responses.view)

    async def _metrics(self, request: web.Request) -> web.Response:
        return web.Response(body=self._instruments.metrics.render(), headers={"Content-Type": CONTENT_TYPE})

    async def _livez(self, request: web.Request) -> web.Response:
        return web.Response(text="ok\n")

    async def _readyz(self, request: web.Request) -> web.Response:
        state = self._responses.view.state
        reasons = [
            "the directory does not answer" if state.seen_at else "the directory has not been read yet"
        ]
        if not state.blind:
            return web.json_response({"ready": True, "reasons": []})
        return web.json_response({"ready": False, "reasons": reasons}, status=503)

    async def _give_json(
        self, request: web.Request, name: str, make: Callable[[View], api.Json | None]
    ) -> web.Response:
        def encoded(view: View) -> bytes | None:
            value = make(view)
            return None if value is None else msgspec.json.encode(value)

        return await self._give(request, name, _JSON, encoded)

    async def _give(self, request: web.Request, name: str, content_type: str, make: Make) -> web.Response:
        answer = await self._responses.answer(name, content_type, make)
        if answer is None:
            raise web.HTTPNotFound
        return _respond(request, answer)

    @web.middleware
    async def _admitted(self, request: web.Request, handler: Handle) -> web.StreamResponse:
        self._instruments.requests.inc()
        if not self._hosts.allow(request.host):
            raise web.HTTPForbidden
        return await handler(request)


def _respond(request: web.Request, answer: Answer) -> web.Response:
    headers = {"ETag": f'"{answer.etag}"', "Cache-Control": "no-cache", "Vary": "Accept-Encoding"}
    tags = request.if_none_match or ()
    if any(tag.value in (answer.etag, "*") for tag in tags):
        return web.Response(status=304, headers=headers)
    headers["Content-Type"] = answer.content_type
    if answer.zipped is not None and "gzip" in request.headers.get("Accept-Encoding", ""):
        headers["Content-Encoding"] = "gzip"
        return web.Response(body=answer.zipped, headers=headers)
    return web.Response(body=answer.body, headers=headers)


@web.middleware
async def _with_headers(request: web.Request, handler: Handle) -> web.StreamResponse:
    try:
        response = await handler(request)
    except web.HTTPException as error:
        response = web.json_response(_error(error), status=error.status)
        response.headers.update(
            {name: error.headers[name] for name in ("Allow", "Retry-After") if name in error.headers}
        )
    if not response.prepared:
        response.headers.update(_HEADERS)
    return response


def _error(error: web.HTTPException) -> Mapping[str, object]:
    code = error.reason.lower().replace(" ", "_")
    return {"error": {"code": code, "message": error.text if error.status == 400 else error.reason}}


def _health(state: SwarmState, name: str) -> str | None:
    if not name:
        return state.health
    model = api.find_model(state, name)
    return model.health if model else None


def _range(request: web.Request) -> Range:
    asked = request.query.get("range", "24h")
    for known in RANGES:
        if asked == known:
            return known
    raise web.HTTPBadRequest(text=f"range is one of {', '.join(RANGES)}")


def _whole(request: web.Request, name: str, default: int) -> int:
    text = request.query.get(name, str(default))
    if not (text.isascii() and text.isdigit() and len(text) <= 9):
        raise web.HTTPBadRequest(text=f"{name} is a whole number")
    return int(text)
