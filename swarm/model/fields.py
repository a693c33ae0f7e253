"""Typed reading of the JSON files of a model directory.

Knows JSON, paths and the ranges of numbers, nothing else of models. ``null`` counts as absent. Whatever
is missing, of the wrong type or out of its range ends in a `BrokenModel` that names the field and the file.
"""

import reprlib
from collections.abc import Mapping
from pathlib import Path
from typing import TypeGuard, TypeVar

from swarm.errors import BrokenModel
from swarm.model.ranges import RANGES
from swarm.security.foreign import read_bounded, read_json

MAX_CONFIG_BYTES = 2**24  # the largest known, with every added token in it, has 2 MB
MAX_TOKENIZER_BYTES = 2**27  # the largest known has 35 MB
MAX_TEXT_CHARS = 1000
MAX_TOKEN_IDS = 256
MAX_NUMBERS = 4096
brief = reprlib.repr  # for messages: a value of any length, shortened
REPULL = "Fetch the model again with `swarm model pull`, or check it with `swarm model verify`."
T = TypeVar("T")


class Fields:
    """The fields of one JSON object, read with a type."""

    def __init__(self, path: Path, data: dict[str, object], prefix: str = "") -> None:
        self.path = path
        self._data = data
        self._prefix = prefix

    def raw(self, name: str) -> object | None:
        """The value as JSON has it; None when absent or null."""
        return self._data.get(name)

    def everything(self) -> dict[str, object]:
        """All of the object, untyped."""
        return dict(self._data)

    def with_defaults(self, defaults: Mapping[str, object]) -> "Fields":
        """The same, where a key that is left out has its default. A null stays a null."""
        return Fields(self.path, {**defaults, **self._data}, self._prefix)

    def with_fallback(self, name: str, value: object) -> "Fields":
        """The same, with a value where there is none or a null."""
        return (
            self
            if self.raw(name) is not None
            else Fields(self.path, {**self._data, name: value}, self._prefix)
        )

    def section(self, name: str) -> "Fields | None":
        """A nested object, or None."""
        value = self.raw(name)
        if value is None:
            return None
        if not isinstance(value, dict):
            raise self.broken(name, "is not an object")
        return Fields(self.path, value, f"{self._prefix}{name}.")

    def count(self, name: str) -> int:
        """A whole number within its range that must be there."""
        value = self.count_or(name, None)
        if value is None:
            raise self.broken(name, "is missing")
        return value

    def count_or(self, name: str, default: T) -> int | T:
        """A whole number within its range, or `default`."""
        value = self.raw(name)
        if value is None:
            return default
        if not _is_whole(value) or not RANGES[name].holds(value):
            raise self.broken(name, f"is {brief(value)}, not a whole number {RANGES[name]}")
        return value

    def number(self, name: str) -> float:
        """A number within its range that must be there."""
        value = self.number_or(name, None)
        if value is None:
            raise self.broken(name, "is missing")
        return value

    def number_or(self, name: str, default: T) -> float | T:
        """A number within its range, or `default`."""
        value = self.raw(name)
        if value is None:
            return default
        if not (_is_whole(value) or isinstance(value, float)) or not RANGES[name].holds(value):
            raise self.broken(name, f"is {brief(value)}, not a number {RANGES[name]}")
        return float(value)

    def numbers(self, name: str) -> tuple[float, ...]:
        """A list of numbers within their range that must be there."""
        values = self.raw(name)
        if not isinstance(values, list) or len(values) > MAX_NUMBERS:
            raise self.broken(name, f"is {brief(values)}, not a list of at most {MAX_NUMBERS:,} numbers")
        return tuple(Fields(self.path, {name: value}, self._prefix).number(name) for value in values)

    def flag(self, name: str, default: bool) -> bool:
        """A boolean, or `default`."""
        value = self.raw(name)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise self.broken(name, f"is {brief(value)}, not true or false")
        return value

    def text_or(self, name: str, default: str) -> str:
        """A string, or `default`."""
        value = self.raw(name)
        if value is None:
            return default
        if not isinstance(value, str) or len(value) > MAX_TEXT_CHARS:
            raise self.broken(
                name, f"is {brief(value)}, not a string of at most {MAX_TEXT_CHARS:,} characters"
            )
        return value

    def token_ids(self, name: str) -> tuple[int, ...]:
        """Token ids, written as one number or a list of numbers; empty when absent."""
        value = self.raw(name)
        values = value if isinstance(value, list) else [] if value is None else [value]
        if len(values) > MAX_TOKEN_IDS or not all(
            _is_whole(item) and RANGES[name].holds(item) for item in values
        ):
            raise self.broken(
                name, f"is {brief(value)}, not a token id {RANGES[name]} or a list of at most {MAX_TOKEN_IDS}"
            )
        return tuple(values)

    def broken(self, name: str, problem: str) -> BrokenModel:
        """The error for one field of this file."""
        return BrokenModel(f"The field {self._prefix}{name} in {self.path} {problem}", REPULL)


def _is_whole(value: object) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool)


def read_fields(path: Path, limit_bytes: int = MAX_CONFIG_BYTES) -> Fields:
    """Read a JSON object from a file. Raises `BrokenModel` when it is missing, too large, or not one."""
    try:
        data = read_json(path, limit_bytes)
    except FileNotFoundError as error:
        raise BrokenModel(f"{path} is missing", REPULL) from error
    except (OSError, ValueError) as error:
        raise BrokenModel(f"{path} cannot be read as JSON: {error}", REPULL) from error
    if not isinstance(data, dict):
        raise BrokenModel(f"{path} does not hold a JSON object", REPULL)
    return Fields(path, data)


def read_text(path: Path, limit_bytes: int = MAX_CONFIG_BYTES) -> str:
    """The text in a file. Raises `BrokenModel` when it cannot be read, is too large, or is not UTF-8."""
    try:
        return read_bounded(path, limit_bytes).decode()
    except (OSError, ValueError) as error:
        raise BrokenModel(f"{path} cannot be read: {error}", REPULL) from error
