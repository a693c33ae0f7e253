"""Missing blocks run by the client itself, when it has the weights, the memory, and leave to.

A local hop looks like any other to the session. It is loaded when nobody hosts the blocks, and left
again, like any slow peer, when somebody does.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import torch

from swarm.errors import DoesNotFit, HopLost, NoRoute
from swarm.memory import available_bytes
from swarm.model.cache import KVCache
from swarm.model.compute import Compute
from swarm.model.config import ModelConfig
from swarm.model.dtypes import parse_dtype
from swarm.model.parts import missing_of_span
from swarm.model.span import SpanModel, SpanStep
from swarm.model.weights import load_span, span_size_bytes
from swarm.security.manifest import Manifest
from swarm.session.hop import ASSUMED_BYTES_PER_S, HopStats
from swarm.session.plan import Numerics, PlannedHop
from swarm.values import PeerId, Span, format_size

LOCAL = PeerId("local")
MEMORY_SHARE = 0.8  # of what is free


class LocalHop:
    """A session on blocks in this process; see `session/hop.Hop` for what each part means."""

    def __init__(
        self, planned: PlannedHop, model: SpanModel, compute: Compute, codec_dtype: torch.dtype
    ) -> None:
        self.planned = planned
        self.position = 0
        self.lost: HopLost | None = None
        self.on_lost: Callable[[HopLost], None] = lambda error: None
        self.leaving_in_s: float | None = None
        self.stats = HopStats()
        self.rtt_s = 0.0
        self.decode_s = 0.0
        self.bytes_per_s = ASSUMED_BYTES_PER_S  # nothing is sent
        self.rewinds = 0
        self._model = model
        self._cache: KVCache = model.new_cache(planned.span)
        self._compute = compute
        self._dtype = codec_dtype

    async def step(self, hidden: torch.Tensor, reply_tokens: int) -> torch.Tensor:
        """Push rows [tokens, hidden]; gives the last `reply_tokens` of the result."""
        started_at = asyncio.get_running_loop().time()
        cache, position = self._cache, self.position

        def forward() -> torch.Tensor:
            cache.rewind(position)  # here, because a cancelled step may still be computed before
            [output] = self._model.forward([SpanStep(cache, hidden)], self.planned.span)
            return output

        output = await asyncio.shield(self._compute.run(forward))
        self.position += len(hidden)
        self._note(len(hidden), asyncio.get_running_loop().time() - started_at)
        return output[len(hidden) - reply_tokens :].to(self._dtype)

    @property
    def is_late(self) -> bool:
        """Never: there is nobody else for these blocks."""
        return False

    def give_up(self, reason: str) -> None:
        """Nobody to give up."""

    def rewind(self, position: int) -> None:
        """Forget everything from `position` on."""
        self.position = min(self.position, position)

    async def keep_alive(self) -> None:
        """Nobody to tell."""

    async def promote(self) -> None:
        """Nobody to tell."""

    async def close(self, wait_s: float = 0.0) -> None:
        """Free the cache."""
        self._cache = self._model.new_cache(self.planned.span)

    async def drop(self) -> None:
        """As `close`: nobody else could keep it."""
        await self.close()

    def _note(self, tokens: int, elapsed_s: float) -> None:
        self.stats.steps += 1
        self.stats.tokens += tokens
        self.stats.compute_ms += elapsed_s * 1e3
        if tokens == 1:
            self.decode_s += 0.2 * (elapsed_s - self.decode_s) if self.decode_s else elapsed_s


@dataclass(slots=True)
class LocalBlocks:
    """Loads spans of one model on demand, within the memory that is free."""

    directory: Path
    config: ModelConfig
    manifest: Manifest
    compute: Compute
    on_use: Callable[[str], None]  # told, in words, each time blocks are loaded
    _loaded: dict[tuple[Span, str], SpanModel] = field(default_factory=dict)
    _too_large: set[tuple[Span, str]] = field(default_factory=set)

    def fits(self, span: Span, numerics: Numerics) -> bool:
        """Whether the blocks can be run here: the files are here, there is room, and nothing quantised is
        asked for."""
        key = span, numerics.dtype
        if numerics.quantization != "none" or key in self._too_large:
            return False
        needed_bytes = span_size_bytes(self.config, span, parse_dtype(numerics.dtype))
        if key not in self._loaded and missing_of_span(self.directory, self.config, span):
            return False
        return key in self._loaded or needed_bytes < available_bytes() * MEMORY_SHARE

    async def open(self, planned: PlannedHop, codec_dtype: torch.dtype) -> LocalHop:
        """A session on the blocks, which are loaded the first time.

        Raises `ModelError`, and `NoRoute` when there is not enough memory after all.
        """
        span, dtype = planned.span, planned.numerics.dtype
        if (span, dtype) not in self._loaded:
            size = format_size(span_size_bytes(self.config, span, parse_dtype(dtype)))
            self.on_use(f"Nobody hosts blocks {span}; this machine runs them itself ({size})")
            try:
                self._loaded[span, dtype] = await self.compute.run(
                    lambda: load_span(
                        self.directory, self.config, span, dtype=parse_dtype(dtype), manifest=self.manifest
                    )
                )
            except DoesNotFit as error:  # so it is as if it had never been thought of
                self._too_large.add((span, dtype))
                self.on_use(error.what)
                raise NoRoute(f"Nobody hosts blocks {span}, and here they do not fit: {error}") from error
        return LocalHop(planned, self._loaded[span, dtype], self.compute, codec_dtype)
