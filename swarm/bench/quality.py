"""What quantising a model's weights costs: how well it still foretells a text.

Each token of a text is foretold by the model in 16 bits and by the quantised one. Perplexity is e to the
mean surprise; the divergence (Kullback-Leibler) is how far the two disagree. Only one of them is in
memory at a time: what is kept of the first are its last hidden states. The head is not quantised.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from importlib import resources
from pathlib import Path

import torch
from torch import Tensor

from swarm.errors import UsageError
from swarm.model.config import ModelConfig, read_config
from swarm.model.head import Head
from swarm.model.linear.chooser import MeasuringChooser
from swarm.model.linear.layouts import Quantization
from swarm.model.span import SpanModel, SpanStep
from swarm.model.store import ensure_manifest
from swarm.model.tokenizer import load_tokenizer
from swarm.model.weights import load_head, load_span
from swarm.values import Span

WINDOW_TOKENS = 512  # each is read from its own beginning
_PART_TOKENS = 128  # whose logits are in memory at once

Progress = Callable[[str, int, int], None]


@dataclass(frozen=True, slots=True)
class Quality:
    """Of a quantised model, beside the same one in 16 bits."""

    tokens: int  # foretold
    perplexity: float
    perplexity_16_bit: float
    divergence_nats: float  # mean, from the 16-bit model's prediction
    same_first_choice: float  # share of tokens
    weights_bytes: int
    weights_bytes_16_bit: int

    @property
    def ratio(self) -> float:
        """Of the perplexities."""
        return self.perplexity / self.perplexity_16_bit


@dataclass(frozen=True, slots=True)
class _Sums:
    surprise: float = 0.0
    surprise_16_bit: float = 0.0
    divergence: float = 0.0
    same: int = 0
    tokens: int = 0

    def __add__(self, other: "_Sums") -> "_Sums":
        return _Sums(
            self.surprise + other.surprise,
            self.surprise_16_bit + other.surprise_16_bit,
            self.divergence + other.divergence,
            self.same + other.same,
            self.tokens + other.tokens,
        )


def own_text() -> str:
    """A small text of many kinds, for when none is named."""
    return resources.files("swarm.bench").joinpath("quality.txt").read_text(encoding="utf-8")


def measure_quality(
    directory: Path,
    store_root: Path,
    text: str,
    quantization: Quantization,
    dtype: torch.dtype,
    on_progress: Progress,
) -> Quality:
    """Compare a model in 16 bits with itself quantised. Raises `ModelError`, and `UsageError` for a text
    that is too short to say anything."""
    config = read_config(directory)
    windows = _windows(load_tokenizer(directory).encode(text), config)
    manifest, chooser = ensure_manifest(directory, store_root), MeasuringChooser(store_root)
    head = load_head(directory, config, dtype=dtype, manifest=manifest)
    sizes: list[int] = []
    states: list[list[Tensor]] = []
    kinds: tuple[Quantization, ...] = ("none", quantization)
    for kind in kinds:
        blocks = load_span(
            directory,
            config,
            Span(0, config.num_blocks),
            dtype=dtype,
            quantization=kind,
            chooser=chooser,
            manifest=manifest,
        )
        sizes.append(blocks.weights_bytes)
        states.append(
            list(_states(blocks, head, windows, partial(on_progress, f"Reading, weights in {kind}")))
        )
        del blocks  # before the next is loaded
    sums = _Sums()
    for window, exact, quantized in zip(windows, *states, strict=True):
        sums += _compare(head, window, exact, quantized)
    return _quality(sums, sizes)


def _windows(ids: Sequence[int], config: ModelConfig) -> list[Sequence[int]]:
    length = min(WINDOW_TOKENS, config.context_length)
    windows = [ids[start : start + length] for start in range(0, len(ids), length)]
    windows = [window for window in windows if len(window) > 1]
    if not windows:
        raise UsageError("The text is too short to foretell anything of it", "Name a text of some pages.")
    return windows


def _states(
    blocks: SpanModel, head: Head, windows: Sequence[Sequence[int]], on_done: Callable[[int, int], None]
) -> Iterator[Tensor]:
    for index, window in enumerate(windows):
        [hidden] = blocks.forward([SpanStep(blocks.new_cache(), head.embed(window))])
        yield hidden
        on_done(index + 1, len(windows))


def _compare(head: Head, window: Sequence[int], exact: Tensor, quantized: Tensor) -> _Sums:
    """The last state of a window foretells nothing that is known."""
    sums, targets = _Sums(), torch.tensor(window[1:])
    for start in range(0, len(targets), _PART_TOKENS):
        part = slice(start, min(start + _PART_TOKENS, len(targets)))
        expected = head.logits(exact[part]).log_softmax(dim=1)
        found = head.logits(quantized[part]).log_softmax(dim=1)
        wanted = targets[part].unsqueeze(1)
        sums += _Sums(
            -float(found.gather(1, wanted).sum()),
            -float(expected.gather(1, wanted).sum()),
            float((expected.exp() * (expected - found)).sum()),
            int((expected.argmax(dim=1) == found.argmax(dim=1)).sum()),
            len(wanted),
        )
    return sums


def _quality(sums: _Sums, sizes: Sequence[int]) -> Quality:
    return Quality(
        sums.tokens,
        math.exp(sums.surprise / sums.tokens),
        math.exp(sums.surprise_16_bit / sums.tokens),
        sums.divergence / sums.tokens,
        sums.same / sums.tokens,
        sizes[1],
        sizes[0],
    )
