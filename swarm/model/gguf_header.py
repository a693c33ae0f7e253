"""Looks through the header of a GGUF file before a library reads it: every length against what is there.

The reader of the `gguf` package believes counts and lengths, follows arrays of arrays as deep as they go,
and keeps an object for each item. Format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md
"""

import os
import struct
from io import BufferedReader
from pathlib import Path
from typing import BinaryIO

from swarm.security.foreign import open_regular

MAX_FIELDS = 4096
MAX_TENSORS = 10_000 * 14 + 16  # those of as many blocks as a model may have
MAX_ITEMS = 2**22  # in all arrays together: a vocabulary's tokens, their kinds, scores and merges
MAX_TEXT_BYTES = 2**24
MAX_DIMENSIONS = 4
_MAGIC = b"GGUF"
_VERSIONS = (2, 3)
_SCALAR_BYTES = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}  # by kind of value
_TEXT, _ARRAY = 8, 9


def check_gguf_header(path: Path) -> None:
    """Raise `ValueError` unless the header is whole and within bounds, `OSError` when it cannot be read."""
    with BufferedReader(open_regular(path)) as file:
        _Walk(file).header()


class _Walk:
    """One way through a header, from its beginning."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._size_bytes = os.fstat(file.fileno()).st_size
        self._items = 0

    def header(self) -> None:
        if self._file.read(len(_MAGIC)) != _MAGIC:
            raise ValueError("it does not begin as a GGUF file")
        if self._number("<I") not in _VERSIONS:
            raise ValueError("it is of an unknown version, or of the other byte order")
        tensors = self._count("tensors", MAX_TENSORS)
        fields = self._count("fields", MAX_FIELDS)
        for _ in range(fields):
            self._text()
            self._value(self._number("<I"))
        for _ in range(tensors):
            self._tensor()

    def _value(self, kind: int) -> None:
        count = 1
        if kind == _ARRAY:
            kind, count = self._number("<I"), self._number("<Q")
            self._items += count
            if self._items > MAX_ITEMS:
                raise ValueError(f"its arrays have more than {MAX_ITEMS:,} items")
        if kind == _TEXT:
            for _ in range(count):
                self._text()
        elif kind in _SCALAR_BYTES:
            self._skip(count * _SCALAR_BYTES[kind])
        else:
            raise ValueError(f"it has a value, or an array, of the unknown kind {kind}")

    def _tensor(self) -> None:
        self._text()
        dimensions = self._number("<I")
        if dimensions > MAX_DIMENSIONS:
            raise ValueError(f"a tensor has {dimensions} dimensions")
        self._skip(8 * dimensions + 4 + 8)  # their sizes, the format, where it lies

    def _count(self, what: str, most: int) -> int:
        count = self._number("<Q")
        if count > most:
            raise ValueError(f"it claims to have {count:,} {what}")
        return count

    def _number(self, format_: str) -> int:
        size_bytes = struct.calcsize(format_)
        data = self._file.read(size_bytes)
        if len(data) < size_bytes:
            raise ValueError("it ends within its header")
        number: int = struct.unpack(format_, data)[0]
        return number

    def _text(self) -> None:
        length = self._number("<Q")
        if length > MAX_TEXT_BYTES:
            raise ValueError(f"a text in it claims to have {length:,} bytes")
        self._skip(length)

    def _skip(self, count: int) -> None:
        if self._file.seek(count, os.SEEK_CUR) > self._size_bytes:
            raise ValueError("it ends within its header")
