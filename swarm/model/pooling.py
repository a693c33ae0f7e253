"""Embeddings of texts: which models are for that, and how hidden states become one vector.

A model is for embeddings when it says so in the files of sentence-transformers: `modules.json` and its
pooling's `config.json`.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor

from swarm.errors import BrokenModel, UnsupportedModel
from swarm.model.fields import MAX_CONFIG_BYTES, brief, read_fields
from swarm.security.foreign import read_json

Method = Literal["cls", "mean", "lasttoken"]

_METHODS: dict[str, Method] = {
    "pooling_mode_cls_token": "cls",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_lasttoken": "lasttoken",
}
_FOLDER = re.compile(r"[A-Za-z0-9][\w-]*")


@dataclass(frozen=True, slots=True)
class Pooling:
    """How a model's last hidden states become the embedding of a text."""

    method: Method
    normalize: bool = False  # to length 1
    may_cut: bool = False  # the first numbers are an embedding, too (arXiv:2205.13147)
    dimensions: tuple[int, ...] = ()  # to which it may be cut; none: to any

    def rows_needed(self, tokens: int) -> int:
        """How many of the last hidden states of a text are looked at."""
        return 1 if self.method == "lasttoken" else tokens

    def pool(self, states: Tensor, dimensions: int | None = None) -> Tensor:
        """The embedding [dimensions] in fp32 of hidden states [rows needed, hidden] that are normed."""
        match self.method:
            case "lasttoken":
                pooled = states[-1].float()
            case "cls":
                pooled = states[0].float()
            case "mean":
                pooled = states.mean(0, dtype=torch.float64).float()
        pooled = pooled[:dimensions]
        return torch.nn.functional.normalize(pooled, dim=0) if self.normalize else pooled


def read_pooling(directory: Path) -> Pooling | None:
    """How a model directory says that texts are embedded; None for a model that is not for that.

    Raises `BrokenModel` for files without sense, and `UnsupportedModel` for a step that is not known here.
    """
    modules = directory / "modules.json"
    if not modules.exists():
        return None
    kinds = dict(_read_modules(modules))
    unknown = kinds.keys() - {"Transformer", "Pooling", "Normalize"}
    if unknown or "Pooling" not in kinds:
        what = f"the step {min(unknown)!r}" if unknown else "no pooling"
        raise UnsupportedModel(f"{modules} has {what}, which is not supported for embeddings")
    folder = kinds["Pooling"]
    if not _FOLDER.fullmatch(folder):
        raise BrokenModel(f"{modules} names the folder {folder[:80]!r}", "Get the model again.")
    config = read_fields(directory / "config.json")
    sizes = config.raw("matryoshka_dimensions") or []
    if not isinstance(sizes, list) or not all(isinstance(size, int) for size in sizes):
        raise config.broken("matryoshka_dimensions", f"is {brief(sizes)}, not a list of sizes")
    return Pooling(
        method=_method(directory / folder / "config.json"),
        normalize="Normalize" in kinds,
        may_cut=bool(sizes) or config.flag("is_matryoshka", False),
        dimensions=tuple(sizes),
    )


def _read_modules(path: Path) -> Sequence[tuple[str, str]]:
    """The kind and the folder of each step."""
    try:
        steps = read_json(path, MAX_CONFIG_BYTES)
        return [(str(step["type"]).rsplit(".", 1)[-1], str(step["path"])) for step in steps]
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise BrokenModel(f"{path} is no list of steps", "Get the model again.") from error


def _method(path: Path) -> Method:
    fields = read_fields(path)
    named = fields.text_or("pooling_mode", "")
    chosen = [
        name for name in fields.everything() if name.startswith("pooling_mode_") and fields.flag(name, False)
    ]
    found = {f"pooling_mode_{named}", f"pooling_mode_{named}_token", f"pooling_mode_{named}_tokens"}
    methods = [_METHODS[name] for name in chosen if name in _METHODS]
    methods += [method for name, method in _METHODS.items() if name in found and not chosen]
    if len(methods) != 1 or len(chosen) > 1:
        told = named or ", ".join(chosen) or "nothing"
        raise UnsupportedModel(
            f"{path} asks for pooling by {told[:200]}", "Supported is one of cls, mean and lasttoken."
        )
    return methods[0]
