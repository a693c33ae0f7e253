"""Files that a stranger may have written: opened only where they are files, read up to a size and a depth.

Everything that reads a file of a model goes through here. What is refused is an `OSError` or a
`ValueError`, as from the system or the parser itself, so that a caller handles both in one place.
"""

import errno
import json
import os
import stat
from io import FileIO
from pathlib import Path
from typing import Any

MAX_JSON_DEPTH = 64  # a config is 5 deep, a tokenizer 8


def open_regular(path: Path) -> FileIO:
    """Open a file for reading, unbuffered. Raises `OSError` for a pipe, a socket, a device or a directory.

    Opening does not wait, as it else would for the other end of a pipe.
    """
    handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        os.close(handle)
        raise OSError(errno.EINVAL, "it is not a regular file", str(path))
    return FileIO(handle)


def read_bounded(path: Path, limit_bytes: int) -> bytes:
    """All of a regular file. Raises `ValueError` when it is larger than the limit, before reading it."""
    with open_regular(path) as file:
        size_bytes = os.fstat(file.fileno()).st_size
        if size_bytes > limit_bytes:
            raise ValueError(f"it has {size_bytes:,} bytes, and at most {limit_bytes:,} are read")
        return read_exactly(file, size_bytes)


def read_exactly(file: FileIO, count: int) -> bytes:
    """The next `count` bytes, fewer only at the end of the file."""
    parts = []
    while count and (part := file.read(count)):
        parts.append(part)
        count -= len(part)
    return b"".join(parts)


def parse_json(data: bytes | str) -> Any:  # noqa: ANN401 - any JSON
    """Parse JSON. Raises `ValueError` for what is not JSON, and for lists and objects too deep in others."""
    try:
        value = json.loads(data)
    except RecursionError as error:
        raise _too_deep() from error
    level = [value]
    for _ in range(MAX_JSON_DEPTH):
        level = [item for each in level for item in _items(each) if isinstance(item, list | dict)]
        if not level:
            return value
    raise _too_deep()


def read_json(path: Path, limit_bytes: int) -> Any:  # noqa: ANN401 - any JSON
    """The JSON in a file. Raises `OSError` or `ValueError` when it cannot be read, or is over a bound."""
    return parse_json(read_bounded(path, limit_bytes))


def _items(value: Any) -> Any:  # noqa: ANN401 - any JSON
    if isinstance(value, dict):
        return value.values()
    return value if isinstance(value, list) else ()


def _too_deep() -> ValueError:
    return ValueError(f"lists and objects are nested more than {MAX_JSON_DEPTH} deep")
