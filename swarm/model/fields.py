"""Typed reading of the JSON files of a model directory.

Knows JSON and paths, nothing of models. ``null`` counts as absent. Whatever is missing or of the
wrong type ends in a `BrokenModel` that names the field and the file.
"""

import json
import math
from pathlib import Path
from typing import TypeVar

from swarm.errors import BrokenModel

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

    def section(self, name: str) -> "Fields | None":
        """A nested object, or None."""
        value = self.raw(name)
        if value is None:
            return None
        if not isinstance(value, dict):
            raise self.broken(name, "is not an object")
        return Fields(self.path, value, f"{self._prefix}{name}.")

    def count(self, name: str) -> int:
        """A whole number above zero that must be there."""
        value = self.count_or(name, None)
        if value is None:
            raise self.broken(name, "is missing")
        return value

    def count_or(self, name: str, default: T) -> int | T:
        """A whole number above zero, or `default`."""
        value = self.raw(name)
        if value is None:
            return default
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise self.broken(name, f"is {value!r}, not a whole number above zero")
        return value

    def number(self, name: str) -> float:
        """A finite number that must be there."""
        value = self.number_or(name, None)
        if value is None:
            raise self.broken(name, "is missing")
        return value

    def number_or(self, name: str, default: T) -> float | T:
        """A finite number, or `default`."""
        value = self.raw(name)
        if value is None:
            return default
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
            raise self.broken(name, f"is {value!r}, not a number")
        return float(value)

    def flag(self, name: str, default: bool) -> bool:
        """A boolean, or `default`."""
        value = self.raw(name)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise self.broken(name, f"is {value!r}, not true or false")
        return value

    def text_or(self, name: str, default: str) -> str:
        """A string, or `default`."""
        value = self.raw(name)
        if value is None:
            return default
        if not isinstance(value, str):
            raise self.broken(name, f"is {value!r}, not a string")
        return value

    def token_ids(self, name: str) -> tuple[int, ...]:
        """Token ids, written as one number or a list of numbers; empty when absent."""
        value = self.raw(name)
        values = value if isinstance(value, list) else [] if value is None else [value]
        if any(isinstance(item, bool) or not isinstance(item, int) or item < 0 for item in values):
            raise self.broken(name, f"is {value!r}, not a token id or a list of them")
        return tuple(values)

    def broken(self, name: str, problem: str) -> BrokenModel:
        """The error for one field of this file."""
        return BrokenModel(f"The field {self._prefix}{name} in {self.path} {problem}", REPULL)


def read_fields(path: Path) -> Fields:
    """Read a JSON object from a file. Raises `BrokenModel` when it is missing or not one."""
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise BrokenModel(f"{path} is missing", REPULL) from error
    except (OSError, ValueError) as error:
        raise BrokenModel(f"{path} cannot be read as JSON: {error}", REPULL) from error
    if not isinstance(data, dict):
        raise BrokenModel(f"{path} does not hold a JSON object", REPULL)
    return Fields(path, data)
