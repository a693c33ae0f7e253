"""Logging: one handler to stderr, as lines for a person or as JSON for a machine.

Prompts, answers and tokens are never logged, at any level. Libraries stay quiet below a warning
unless `-vv` asks for all there is. What somebody else chose cannot steer the terminal that shows a line,
nor fill the disk by having the same line written again and again.
"""

import json
import logging
import sys
import time
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from typing import Any, Literal, TextIO

from swarm.plain_text import one_line, shown

LogFormat = Literal["human", "json"]

FOLD_S = 10.0  # within which the same line is written once
_FOLDED_LINES = 256  # that are remembered

_OWN_LEVELS = {-1: logging.ERROR, 0: logging.WARNING, 1: logging.INFO, 2: logging.DEBUG}
_LIBRARY_LEVELS = {-1: logging.ERROR, 0: logging.ERROR, 1: logging.WARNING, 2: logging.DEBUG}


class HumanFormatter(logging.Formatter):
    """``14:03:22 warning swarm.peer: text``"""

    def format(self, record: logging.LogRecord) -> str:
        clock = time.strftime("%H:%M:%S", time.localtime(record.created))
        text = f"{clock} {_level_name(record)} {record.name}: {one_line(record.getMessage())}"
        return f"{text}\n{shown(self.formatException(record.exc_info))}" if record.exc_info else text


class JsonFormatter(logging.Formatter):
    """One JSON object a line: ``time`` (Unix seconds), ``level``, ``logger``, ``message``, ``error``."""

    def format(self, record: logging.LogRecord) -> str:
        entry: dict[str, object] = {
            "time": round(record.created, 3),
            "level": _level_name(record),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            entry["error"] = self.formatException(record.exc_info)
        return json.dumps(entry)


@dataclass(slots=True)
class _Seen:
    first_at: float
    again: int = 0


@dataclass(slots=True)
class Folder:
    """Which lines are to be written. Pure: the clock is an argument."""

    _seen: dict[Hashable, _Seen] = field(default_factory=dict)  # in the order of their first time

    def is_new(self, line: Hashable, now: float) -> bool:
        """Whether to write a line: the first of its kind since `over` has given it back."""
        seen = self._seen.get(line)
        if seen is not None:
            seen.again += 1
            return False
        self._seen[line] = _Seen(now)
        return True

    def over(self, now: float) -> list[tuple[Hashable, int]]:
        """The lines whose time is over, and how often each came again."""
        ended = []
        for line, seen in list(self._seen.items()):
            if now - seen.first_at < FOLD_S and len(self._seen) <= _FOLDED_LINES:
                break
            del self._seen[line]
            if seen.again:
                ended.append((line, seen.again))
        return ended


class FoldingHandler(logging.StreamHandler[TextIO]):
    """Writes the same line once in a while, and then how often it came."""

    def __init__(self, stream: TextIO, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__(stream)
        self._folder: Folder = Folder()
        self._clock = clock

    def emit(self, record: logging.LogRecord) -> None:
        now = self._clock()
        for line, again in self._folder.over(now):
            self._tell_again(line, again)
        kind = record.exc_info[0] if record.exc_info else None
        try:
            line = (record.name, record.levelno, record.getMessage(), kind)
        except (TypeError, ValueError, KeyError):  # its arguments do not fit
            self.handleError(record)
            return
        if self._folder.is_new(line, now):
            super().emit(record)

    def _tell_again(self, line: Any, again: int) -> None:  # noqa: ANN401 - what `emit` made
        name, level, message, _ = line
        told = {"name": name, "levelno": level, "levelname": logging.getLevelName(level)}
        super().emit(logging.makeLogRecord(told | {"msg": f"{message} ({again} times more)"}))


def configure_logging(verbosity: int = 0, log_format: LogFormat = "human") -> None:
    """Set logging up anew. `verbosity`: -1 errors, 0 warnings, 1 what happens, 2 also in libraries."""
    verbosity = max(-1, min(verbosity, 2))
    handler = FoldingHandler(sys.stderr)
    handler.setFormatter(JsonFormatter() if log_format == "json" else HumanFormatter())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(_LIBRARY_LEVELS[verbosity])
    logging.getLogger("swarm").setLevel(_OWN_LEVELS[verbosity])


def _level_name(record: logging.LogRecord) -> str:
    """The standard word; libraries rename levels for the whole process."""
    names = {logging.DEBUG: "debug", logging.INFO: "info", logging.WARNING: "warning", logging.ERROR: "error"}
    return names.get(record.levelno, record.levelname.lower())
