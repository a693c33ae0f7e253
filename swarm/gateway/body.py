"""Bodies of requests: read within a size and a time, and looked at no deeper than a limit."""

import asyncio
from typing import Any, TypeVar

import msgspec
from aiohttp import web

from swarm.gateway.refusal import Refusal, bad, refusal_of_body

Body = TypeVar("Body", bound=msgspec.Struct)

READ_WITHIN_S = 30.0
MAX_DEPTH = 64  # of JSON whose form is the client's own; whatever reads it recurses


async def read_body(request: web.Request, kind: type[Body], max_bytes: int) -> Body:
    """The body. Raises a `Refusal` that names the field at fault."""
    # A browser sends other types to strangers without asking them first.
    if request.content_type != "application/json":
        raise Refusal(
            415,
            f"The body is {request.content_type[:80]!r}",
            "Send Content-Type: application/json.",
            reason="media_type",
        )
    try:
        async with asyncio.timeout(READ_WITHIN_S):
            raw = await _read(request, max_bytes)
    except TimeoutError:
        raise Refusal(
            408, f"The body did not arrive within {READ_WITHIN_S:.0f} s", "Try again.", reason="body_too_slow"
        ) from None
    except web.RequestPayloadError as error:
        raise Refusal(
            400,
            "The body is not in the encoding that it names",
            "Send it as it is.",
            reason="invalid_encoding",
        ) from error
    try:
        return msgspec.json.decode(raw, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise refusal_of_body(error) from error


def check_depth(value: Any, param: str) -> None:  # noqa: ANN401 - any JSON
    """Raises a `Refusal` naming `param` for JSON that is nested too deeply."""
    level = [value] if isinstance(value, dict | list) else []
    for _ in range(MAX_DEPTH):
        items = (item for each in level for item in (each.values() if isinstance(each, dict) else each))
        level = [item for item in items if isinstance(item, dict | list)]
        if not level:
            return
    raise bad(param, f"{param} is nested more than {MAX_DEPTH} levels deep", "Make it flatter.")


async def _read(request: web.Request, max_bytes: int) -> bytes:
    """Not kept by the request, which lives as long as the reply."""
    parts, size = [], request.content_length or 0
    if size <= max_bytes:
        size = 0
        async for part in request.content.iter_any():
            parts.append(part)
            size += len(part)
            if size > max_bytes:
                break
    if size > max_bytes:
        raise Refusal(
            413, "The body is larger than this gateway takes", "Send less.", reason="body_too_large"
        )
    return b"".join(parts)
