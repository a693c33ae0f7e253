"""The tensors of a model directory, in one safetensors file or many, read one at a time.

Only the bytes of the asked tensor are read, into memory of our own: nothing is mapped, so a peer
holds its own blocks and no more, and no pickle is ever opened. Every header is checked against the
file's size before it is believed. Format: https://huggingface.co/docs/safetensors (u64 length,
JSON header, bytes).
"""

import hashlib
import math
import os
from dataclasses import dataclass
from pathlib import Path
from typing import TypeGuard

import torch
from torch import Tensor

from swarm.errors import BrokenModel, ManifestMismatch, UnsupportedModel
from swarm.model.fields import REPULL, Fields, brief, read_fields
from swarm.security.foreign import open_regular, parse_json, read_exactly
from swarm.security.manifest import Manifest

INDEX_FILE = "model.safetensors.index.json"
SINGLE_FILE = "model.safetensors"
_PREFIX = "model."  # of all but the lm_head
_MAX_HEADER_BYTES = 2**25  # 10,000 blocks of 14 tensors take 22 MB
_MAX_INDEX_BYTES = 2**25
_MAX_DIMENSIONS = 8
_CHUNK_BYTES = 2**22
_DTYPES = {"F32": torch.float32, "BF16": torch.bfloat16, "F16": torch.float16}
_DTYPE_NAMES = {dtype: name for name, dtype in _DTYPES.items()}

Shape = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """Where a tensor lies and what it is, from the header alone."""

    file: Path
    dtype: torch.dtype
    shape: Shape
    offset: int  # of its first byte in the file
    size_bytes: int


class Checkpoint:
    """A model directory's tensors by name. Headers are read when first needed, shard by shard.

    As in transformers, the prefix `model.` may be missing or be there once more.
    """

    def __init__(self, directory: Path, *, single_file: bool = False) -> None:
        """With `single_file`, an index is not looked at."""
        self._directory = directory
        self._headers: dict[str, _Header] = {}
        self._other_names: dict[str, str] = {}
        # by tensor name; None: everything is in one file
        self._files = None if single_file else shard_files(directory)

    def has(self, name: str) -> bool:
        """Whether there is such a tensor."""
        return self._stored_name(name) is not None

    def file_of(self, name: str) -> str | None:
        """The file that holds a tensor, as far as can be said without opening one."""
        if self._files is None:
            return SINGLE_FILE
        stored = self._stored_name(self._other_names.get(name, name))
        return None if stored is None else self._files[stored]

    def read_instead(self, name: str, other: str) -> None:
        """From now on, give the tensor `other` for `name`."""
        self._other_names[name] = other

    def info(self, name: str, shape: Shape) -> TensorInfo:
        """A tensor's place. Raises `BrokenModel` unless it is there, whole, and of that shape."""
        stored = self._stored_name(self._other_names.get(name, name))
        if stored is None:
            file = SINGLE_FILE if self._files is None else INDEX_FILE
            raise BrokenModel(f"The tensor {name} is missing from {self._directory / file}", REPULL)
        info = self._header(self._file_of(stored), name).info(stored)
        if info.shape != shape:
            raise BrokenModel(
                f"The tensor {name} in {info.file} has the shape {list(info.shape)} "
                f"where config.json asks for {list(shape)}",
                REPULL,
            )
        return info

    def _stored_name(self, name: str) -> str | None:
        names = (name, f"{_PREFIX}{name}", name.removeprefix(_PREFIX))
        if self._files is None:
            entries = self._header(SINGLE_FILE, name).entries
            return next((each for each in names if entries.raw(each) is not None), None)
        return next((each for each in names if each in self._files), None)

    def _file_of(self, stored: str) -> str:
        return SINGLE_FILE if self._files is None else self._files[stored]

    def _header(self, file: str, wanted: str) -> "_Header":
        if file not in self._headers:
            self._headers[file] = _read_header(self._directory / file, wanted)
        return self._headers[file]

    def read_into(self, name: str, destination: Tensor, manifest: Manifest | None = None) -> None:
        """Fill a contiguous tensor, of the shape that is asked for, converting to its dtype.

        With a manifest, raises `ManifestMismatch` unless the stored tensor is the one it names.
        """
        info = self.info(name, tuple(destination.shape))
        raw = destination if info.dtype == destination.dtype else torch.empty(info.shape, dtype=info.dtype)
        _read_bytes(info, name, raw)
        if manifest is not None:
            digest = _new_digest(info)
            digest.update(raw.view(torch.uint8).numpy().data)
            _check_digest(name, info, digest.hexdigest(), manifest)
        if raw is not destination:
            destination.copy_(raw)

    def digest(self, name: str, shape: Shape) -> str:
        """SHA-256 of a tensor (its dtype, shape and bytes), in pieces, so that any size will do."""
        info = self.info(name, shape)
        digest, left = _new_digest(info), info.size_bytes
        try:
            with open_regular(info.file) as file:
                file.seek(info.offset)
                while left and (chunk := file.read(min(left, _CHUNK_BYTES))):
                    digest.update(chunk)
                    left -= len(chunk)
        except OSError as error:
            raise _unreadable(info, name, error) from error
        if left:
            raise _truncated(info.file, name)
        return digest.hexdigest()


def has_both_layouts(directory: Path) -> bool:
    """Whether there is a whole file beside an index that names others."""
    files = shard_files(directory)
    return files is not None and SINGLE_FILE not in files.values() and (directory / SINGLE_FILE).exists()


def shard_files(directory: Path) -> dict[str, str] | None:
    """The file of each tensor by the index, or None without one. Raises `BrokenModel` for a damaged one."""
    path = directory / INDEX_FILE
    if not path.exists():
        if not (directory / SINGLE_FILE).exists():
            raise BrokenModel(
                f"{directory} holds neither {SINGLE_FILE} nor {INDEX_FILE}; no other format is read", REPULL
            )
        return None
    weight_map = read_fields(path, _MAX_INDEX_BYTES).raw("weight_map")
    if not isinstance(weight_map, dict):
        raise BrokenModel(f"{path} has no weight_map", REPULL)
    for name, file in weight_map.items():
        if not isinstance(file, str) or Path(file).name != file:
            raise BrokenModel(
                f"{path} puts the tensor {brief(name)} in {brief(file)}, which is not a file name", REPULL
            )
    return weight_map


@dataclass(frozen=True, slots=True)
class _Header:
    """The header of one file; an entry is checked when its tensor is asked for."""

    entries: Fields
    body_start: int
    file_size_bytes: int

    def info(self, name: str) -> TensorInfo:
        path = self.entries.path
        entry = self.entries.section(name)
        if entry is None:
            raise BrokenModel(f"The tensor {name} is missing from {path}", REPULL)
        dtype_name = entry.text_or("dtype", "")
        if dtype_name not in _DTYPES:
            raise UnsupportedModel(
                f"The tensor {name} in {path} is stored as {dtype_name[:20] or 'nothing'}",
                f"Supported: {', '.join(_DTYPES)}.",
            )
        dtype, shape, offsets = _DTYPES[dtype_name], entry.raw("shape"), entry.raw("data_offsets")
        if not _are_counts(shape) or not _are_counts(offsets) or len(offsets) != 2:
            raise BrokenModel(f"The header of {path} is damaged at the tensor {name}", REPULL)
        start, end = offsets
        if end - start != math.prod(shape) * dtype.itemsize:
            raise BrokenModel(f"The header of {path} is damaged at the tensor {name}", REPULL)
        if self.body_start + end > self.file_size_bytes:
            raise _truncated(path, name)
        return TensorInfo(path, dtype, tuple(shape), self.body_start + start, end - start)


def _read_header(path: Path, wanted: str) -> _Header:
    try:
        with open_regular(path) as file:
            size_bytes = os.fstat(file.fileno()).st_size
            header_bytes = int.from_bytes(read_exactly(file, 8), "little")
            if header_bytes > size_bytes - 8:
                raise _truncated(path, wanted)
            if header_bytes > _MAX_HEADER_BYTES:
                raise ValueError(f"its header has {header_bytes:,} bytes")
            entries = parse_json(read_exactly(file, header_bytes))
    except FileNotFoundError as error:
        raise BrokenModel(f"{path}, which holds the tensor {wanted}, is missing", REPULL) from error
    except (OSError, ValueError) as error:
        raise BrokenModel(
            f"{path}, which holds the tensor {wanted}, cannot be read: {error}", REPULL
        ) from error
    if not isinstance(entries, dict):
        raise BrokenModel(f"The header of {path} is not a JSON object", REPULL)
    return _Header(Fields(path, entries), 8 + header_bytes, size_bytes)


def _are_counts(value: object) -> TypeGuard[list[int]]:
    """Whether it is a short list of numbers that a file's size can reach."""
    return (
        isinstance(value, list)
        and len(value) <= _MAX_DIMENSIONS
        and all(type(item) is int and 0 <= item < 2**63 for item in value)
    )


def _read_bytes(info: TensorInfo, name: str, raw: Tensor) -> None:
    view = raw.view(torch.uint8).numpy().data.cast("B")
    try:
        with open_regular(info.file) as file:
            file.seek(info.offset)
            while view:
                count = file.readinto(view)
                if not count:
                    raise _truncated(info.file, name)
                view = view[count:]
    except OSError as error:
        raise _unreadable(info, name, error) from error


def _new_digest(info: TensorInfo) -> "hashlib._Hash":
    shape = ",".join(map(str, info.shape))
    return hashlib.sha256(f"{_DTYPE_NAMES[info.dtype]} {shape}\n".encode())


def _check_digest(name: str, info: TensorInfo, digest: str, manifest: Manifest) -> None:
    expected = manifest.tensors.get(name, "none")
    if digest != expected:
        raise ManifestMismatch(
            f"The tensor {name} in {info.file} has the digest {digest} where the manifest names {expected}",
            "It is another model, or it is damaged: fetch it again with `swarm model pull`.",
        )


def _truncated(path: Path, name: str) -> BrokenModel:
    return BrokenModel(f"{path} ends before the tensor {name} does", REPULL)


def _unreadable(info: TensorInfo, name: str, error: OSError) -> BrokenModel:
    return BrokenModel(f"The tensor {name} cannot be read from {info.file}: {error}", REPULL)
