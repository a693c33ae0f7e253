"""Logging: one handler to stderr, as lines for a person or as JSON for a machine.

Prompts, answers and tokens are never logged, at any level. Libraries stay quiet below a warning
unless `-vv` asks for all there is.
"""

import json
import logging
import sys
import time
from typing import Literal

LogFormat = Literal["human", "json"]

_OWN_LEVELS = {-1: logging.ERROR, 0: logging.WARNING, 1: logging.INFO, 2: logging.DEBUG}
_LIBRARY_LEVELS = {-1: logging.ERROR, 0: logging.ERROR, 1: logging.WARNING, 2: logging.DEBUG}


class HumanFormatter(logging.Formatter):
    """``14:03:22 warning swarm.peer: text``"""

    def format(self, record: logging.LogRecord) -> str:
        clock = time.strftime("%H:%M:%S", time.localtime(record.created))
        text = f"{clock} {_level_name(record)} {record.name}: {record.getMessage()}"
        return f"{text}\n{self.formatException(record.exc_info)}" if record.exc_info else text


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


def configure_logging(verbosity: int = 0, log_format: LogFormat = "human") -> None:
    """Set logging up anew. `verbosity`: -1 errors, 0 warnings, 1 what happens, 2 also in libraries."""
    verbosity = max(-1, min(verbosity, 2))
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter() if log_format == "json" else HumanFormatter())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(_LIBRARY_LEVELS[verbosity])
    logging.getLogger("swarm").setLevel(_OWN_LEVELS[verbosity])


def _level_name(record: logging.LogRecord) -> str:
    """The standard word; libraries rename levels for the whole process."""
    names = {logging.DEBUG: "debug", logging.INFO: "info", logging.WARNING: "warning", logging.ERROR: "error"}
    return names.get(record.levelno, record.levelname.lower())
