"""The chat page at ``/``: a few files that ask nobody else for anything."""

from collections.abc import Awaitable, Callable
from importlib import resources

from aiohttp import web

_TYPES = {
    "chat.html": "text/html",
    "chat.css": "text/css",
    "chat.js": "text/javascript",
    "markdown.js": "text/javascript",
    "store.js": "text/javascript",
    "stream.js": "text/javascript",
    "icon.svg": "image/svg+xml",
}
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
_HEADERS = {
    "Content-Security-Policy": _POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-cache",
}


def add_page(app: web.Application) -> None:
    """Serve the page and its files."""
    app.router.add_get("/", _server_of("chat.html"))
    for name in _TYPES:
        app.router.add_get(f"/static/{name}", _server_of(name))


def _server_of(name: str) -> Callable[[web.Request], Awaitable[web.Response]]:
    body = (resources.files("swarm.gateway") / "static" / name).read_bytes()

    async def serve(request: web.Request) -> web.Response:
        return web.Response(body=body, content_type=_TYPES[name], charset="utf-8", headers=_HEADERS)

    return serve
