"""Which fields of a body are known, at every level, before it is read strictly.

Pure. A null is the same as leaving a field out; fields that nobody knows are taken out and named, so that
the caller may tell of them or refuse them. JSON whose form is the client's own is left as it is.
"""

from collections.abc import Iterator, Mapping
from typing import Any, TypeAlias

import msgspec
from msgspec import inspect

Json: TypeAlias = Any  # what `msgspec.json.decode` may give

MAX_NAMED = 32  # unknown fields that are told of
_MAX_NAME_CHARS = 64


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
