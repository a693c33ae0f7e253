"""What every request passes: an id, a key, who may ask from where, and one shape for every error."""

import asyncio
import logging
import re
import secrets
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any

from aiohttp import web

from swarm.errors import SwarmError
from swarm.gateway import messages
from swarm.gateway.auth import ANYONE, ApiKey, KeyFile
from swarm.gateway.body import IGNORED
from swarm.gateway.metrics import GatewayMetrics
from swarm.gateway.refusal import Refusal, refusal_of
from swarm.http_server import Hosts

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]

KEY = web.RequestKey("key", ApiKey)
REQUEST_ID = web.RequestKey("request_id", str)
NOTES = web.RequestKey("notes", dict[str, Any])  # further words for the log line, never content

_OPEN = re.compile(r"/|/(livez|readyz|health|openapi\.json|static/.*)")  # to be read without a key
_REQUEST_ID = re.compile(r"[A-Za-z0-9_.-]{1,64}")
_TOKEN = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")  # what a header's name is made of
_ANY_HEADER = "*, Authorization"  # for pages that name none; the star does not stand for this one
_EXPOSED = "X-Request-ID, X-Ignored-Fields, Retry-After"

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Door:
    """Who may come in."""

    keys: KeyFile
    origins: frozenset[str]
    hosts: Hosts
    instruments: GatewayMetrics


def middlewares(door: Door) -> Sequence[Any]:
    """From the outside in."""

    @web.middleware
    async def answer(request: web.Request, handler: Handler) -> web.StreamResponse:
        request[REQUEST_ID] = _request_id(request)
        request[NOTES] = {}
        started_at = asyncio.get_running_loop().time()
        status = 499  # the client went away, unless an answer says otherwise
        try:
            response = await _guarded(request, handler, door)
            status = response.status
            return response
        finally:
            seconds = asyncio.get_running_loop().time() - started_at
            door.instruments.note_http(request.method, status)
            notes = "".join(f" {name}={value}" for name, value in request[NOTES].items())
            _log.info(
                "%s %s %s %d %.3fs%s",
                request[REQUEST_ID], request.method, request.match_info.route.resource.canonical
                if request.match_info.route.resource else "unknown", status, seconds, notes,
            )  # fmt: skip

    return [answer]


def signer(door: Door) -> Callable[[web.Request, web.StreamResponse], Awaitable[None]]:
    """Puts on every answer what all of them carry; a signal handler of the application."""

    async def sign(request: web.Request, response: web.StreamResponse) -> None:
        response.headers["X-Request-ID"] = request.get(REQUEST_ID, "")
        if ignored := request.get(IGNORED):
            response.headers["X-Ignored-Fields"] = ", ".join(map(_header_text, ignored))
        origin = request.headers.get("Origin", "")
        if origin in door.origins:
            response.headers["Access-Control-Allow-Origin"] = origin
            response.headers["Access-Control-Expose-Headers"] = _EXPOSED
            response.headers.setdefault("Vary", "Origin")

    return sign


async def _guarded(request: web.Request, handler: Handler, door: Door) -> web.StreamResponse:
    """Run the handler; every failure becomes an answer in one shape."""
    try:
        if request.method == "OPTIONS" and request.headers.get("Origin") in door.origins:
            return _preflight(request)
        _check_host(request, door)
        request[KEY] = ANYONE if _OPEN.fullmatch(request.path) else door.keys.key_of(_credentials(request))
        return await handler(request)
    except web.HTTPException as error:
        refusal = _of_http(error, request)
    except SwarmError as error:
        refusal = refusal_of(error)
    except ConnectionResetError:  # the client went away while it was answered
        raise
    except Exception:  # the edge of the program: a mistake of ours ends this request only, and is seen
        _log.exception("%s failed", request[REQUEST_ID])
        refusal = Refusal(
            500, "The gateway made a mistake", "Tell its operator the request id.", reason="internal_error"
        )
    if request.path == messages.PATH or request.path.startswith(f"{messages.PATH}/"):
        body = messages.error_body(refusal, request[REQUEST_ID])
    else:
        body = refusal.body()
    return web.Response(
        status=refusal.status, headers=refusal.headers, body=body, content_type="application/json"
    )


def _credentials(request: web.Request) -> str | None:
    """As `Authorization` has them; Anthropic's clients have a header of their own."""
    own = request.headers.get("X-API-Key")
    return request.headers.get("Authorization") or (f"Bearer {own}" if own else None)


def _check_host(request: web.Request, door: Door) -> None:
    # A page of a stranger whose name resolves to 127.0.0.1 must not talk to a gateway without keys.
    if not door.hosts.allow(request.host):
        raise Refusal(
            403, f"The host {request.host[:80]!r} is not this machine", "Ask http://127.0.0.1 directly."
        )


def _request_id(request: web.Request) -> str:
    given = request.headers.get("X-Request-ID", "")
    return given if _REQUEST_ID.fullmatch(given) else f"req_{secrets.token_hex(12)}"


def _preflight(request: web.Request) -> web.Response:
    """An origin that may ask may send whatever headers its client library likes."""
    asked = [name.strip() for name in request.headers.get("Access-Control-Request-Headers", "").split(",")]
    names = ", ".join(name for name in asked if _TOKEN.fullmatch(name))
    headers = {
        "Access-Control-Allow-Methods": "GET, POST, DELETE",
        "Access-Control-Allow-Headers": names or _ANY_HEADER,
        "Access-Control-Max-Age": "600",
        "Vary": "Origin, Access-Control-Request-Headers",
    }
    return web.Response(status=204, headers=headers)


def _header_text(name: str) -> str:
    """A field's name as a header can carry it."""
    return re.sub(r"[^!-+\--~]", "?", name)


def _of_http(error: web.HTTPException, request: web.Request) -> Refusal:
    if error.status == 404:
        return Refusal(
            404, f"There is nothing at {request.path[:200]}", "See /openapi.json.", reason="not_found"
        )
    if error.status == 405:
        return _MethodRefusal(error.headers.get("Allow", ""), request.method)
    if error.status == 413:
        return Refusal(
            413, "The body is larger than this gateway takes", "Send less.", reason="body_too_large"
        )
    return Refusal(error.status, error.reason, reason="http")


class _MethodRefusal(Refusal):
    """A method that the address does not have; the answer names those it has."""

    def __init__(self, allowed: str, method: str) -> None:
        super().__init__(
            405, f"{method} is not possible here", f"Use {allowed}.", reason="method_not_allowed"
        )
        self._allowed = allowed

    @property
    def headers(self) -> dict[str, str]:
        return {"Allow": self._allowed}
