"""Bodies of requests: read within a size and a time, and looked at no deeper than a limit."""

import asyncio
import json
import re
from dataclasses import dataclass
from typing import Any, TypeVar

import msgspec
from aiohttp import web

from swarm.gateway.fields import settle
from swarm.gateway.refusal import Refusal, bad, refusal_of_body

Body = TypeVar("Body", bound=msgspec.Struct)

IGNORED = web.RequestKey("ignored", list[str])  # fields of the body that nobody knows

READ_WITHIN_S = 30.0
MAX_DEPTH = 64  # of JSON whose form is the client's own; whatever reads it recurses
_HALF_PAIR = re.compile(
    r"(?<!\\)(?:\\\\)*(?P<half>\\u[dD][89abAB][0-9a-fA-F]{2}(?!\\u[dD][c-fC-F])|"
    r"(?<!\\u[dD][89abAB][0-9a-fA-F]{2})\\u[dD][c-fC-F][0-9a-fA-F]{2})"
)


@dataclass(frozen=True, slots=True)
class BodyRules:
    """How bodies are read. `strict`: fields that nobody knows are refused, not ignored."""

    max_bytes: int
    strict: bool = False


async def read_body(request: web.Request, kind: type[Body], rules: BodyRules) -> Body:
    """The body; what was ignored of it is noted in the request.

    Raises a `Refusal` that names the field at fault, or the place where it is no JSON.
    """
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
            raw = await _read(request, rules.max_bytes)
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
    body, unknown = settle(_parse(raw), kind)
    if unknown and rules.strict:
        raise Refusal(
            400,
            f"There is no field {unknown[0]!r}",
            "Leave it out.",
            reason="unknown_parameter",
            param=unknown[0],
        )
    request[IGNORED] = unknown
    try:
        return msgspec.convert(body, type=kind)
    except msgspec.ValidationError as error:
        raise refusal_of_body(error) from error


def _parse(raw: bytes) -> Any:  # noqa: ANN401 - any JSON
    try:
        return msgspec.json.decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise Refusal(
            400,
            f"The body is not JSON: {_problem(raw, error)}",
            "Send one JSON object in UTF-8.",
            reason="invalid_json",
        ) from error


def _problem(raw: bytes, error: Exception) -> str:
    """What is wrong and where, which the faster parser does not always tell."""
    if isinstance(error, RecursionError):
        return "it is nested too deeply"
    try:
        text = raw.decode()
        json.loads(text, parse_constant=_refuse_constant)
    except UnicodeDecodeError as problem:
        return f"byte {problem.start} is not UTF-8"
    except (ValueError, RecursionError) as problem:
        return str(problem)
    if half := _HALF_PAIR.search(text):
        return f"{half['half']} is half a surrogate pair: {_place(text, half.start('half'))}"
    return str(error)


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is no number of JSON")


def _place(text: str, at: int) -> str:
    """As the standard library writes it."""
    line_start = text.rfind("\n", 0, at) + 1
    return f"line {text.count(chr(10), 0, at) + 1} column {at - line_start + 1} (char {at})"


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
