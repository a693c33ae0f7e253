"""Bodies of requests: read within a size and a time, and looked at no deeper than a limit.

Which fields are known is looked at, on every level, before a body is read strictly. A null is the same as
leaving a field out; fields that nobody knows are taken out and named, so that the caller may tell of them or
refuse them. JSON whose form is the client's own is left as it is.
"""

import asyncio
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias, TypeVar

import msgspec
from aiohttp import web
from msgspec import inspect

from swarm.gateway.refusal import Refusal, bad, refusal_of_body

Json: TypeAlias = Any  # what `msgspec.json.decode` may give

MAX_NAMED = 32  # unknown fields that are told of
_MAX_NAME_CHARS = 64
Body = TypeVar("Body", bound=msgspec.Struct)

IGNORED = web.RequestKey("ignored", list[str])  # fields of the body that nobody knows

READ_WITHIN_S = 30.0
MAX_DEPTH = 64  # of JSON whose form is the client's own; whatever reads it recurses
_HALF_PAIR = re.compile(
    r"(?<!\\)(?:\\\\)*(?P<half>\\u[dD][89abAB][0-9a-fA-F]{2}(?!\\u[dD][c-fC-F])|"
    r"(?<!\\u[dD][89abAB][0-9a-fA-F]{2})\\u[dD][c-fC-F][0-9a-fA-F]{2})"
)


def settle(value: Json, kind: type[msgspec.Struct]) -> tuple[Json, list[str]]:
    """The body without nulls and without unknown fields, and the places of these: ``stream_options.x``."""
    unknown: list[str] = []
    return _settle(value, inspect.type_info(kind), "", unknown), unknown[:MAX_NAMED]


def _settle(value: Json, kind: inspect.Type, place: str, unknown: list[str]) -> Json:
    if isinstance(value, list):
        items = next((each for each in _choices(kind) if isinstance(each, inspect.ListType)), None)
        if items is None or not _holds_structs(items.item_type):
            return value
        return [
            _settle(item, items.item_type, f"{place}[{index}]", unknown) for index, item in enumerate(value)
        ]
    struct = _struct_of(kind, value) if isinstance(value, dict) else None
    return value if struct is None else _settle_struct(value, struct, place, unknown)


def _settle_struct(
    value: Mapping[str, Json], struct: inspect.StructType, place: str, unknown: list[str]
) -> dict[str, Json]:
    fields = {field.encode_name: field.type for field in struct.fields}
    kept: dict[str, Json] = {}
    for name, item in value.items():
        inner = f"{place}.{name[:_MAX_NAME_CHARS]}" if place else name[:_MAX_NAME_CHARS]
        if name == struct.tag_field:
            kept[name] = item
        elif item is None:
            continue
        elif name in fields:
            kept[name] = _settle(item, fields[name], inner, unknown)
        else:
            unknown.append(inner)
    return kept


def _struct_of(kind: inspect.Type, value: Mapping[str, Json]) -> inspect.StructType | None:
    """The one that an object is to be read as."""
    structs = [each for each in _choices(kind) if isinstance(each, inspect.StructType)]
    tagged = (each for each in structs if each.tag_field and value.get(each.tag_field) == each.tag)
    untagged = (each for each in structs if each.tag_field is None)
    return next(tagged, None) or next(untagged, None)


def _holds_structs(kind: inspect.Type) -> bool:
    return any(
        isinstance(each, inspect.StructType)
        or (isinstance(each, inspect.ListType) and _holds_structs(each.item_type))
        for each in _choices(kind)
    )


def _choices(kind: inspect.Type) -> Iterator[inspect.Type]:
    """The types of a union, without what only describes them."""
    if isinstance(kind, inspect.Metadata):
        yield from _choices(kind.type)
    elif isinstance(kind, inspect.UnionType):
        for each in kind.types:
            yield from _choices(each)
    else:
        yield kind


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
