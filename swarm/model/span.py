"""A span of a model's blocks: hidden states in, hidden states out, for several sessions at once.

Linear layers run on the rows of all sessions stacked together, attention for each session on its
own cache. A step counts only when all of it is done: after an exception every cache stands where
it stood. Knows nothing of peers, embeddings or tokens.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from swarm.errors import ContextOverflow, UsageError
from swarm.model.attention import Scores, Segment, attend, tiles
from swarm.model.cache import KVCache
from swarm.model.config import ModelConfig
from swarm.model.dtypes import dtype_name
from swarm.model.layers import Norm
from swarm.model.linear.layouts import Quantization, multiplies_natively
from swarm.model.linear.linear import Linear
from swarm.model.linear.machine import fingerprint
from swarm.model.mlp import Mixture, Mlp
from swarm.model.rotary import Rotary, RotaryTables, rotate_
from swarm.values import Span


@dataclass(frozen=True, slots=True)
class SpanStep:
    """Rows [tokens, hidden] to push through the blocks at the cache's position."""

    cache: KVCache
    hidden: Tensor


@dataclass(frozen=True, slots=True)
class BlockWeights:
    """The tensors of one block; q, k, v stacked into one matrix."""

    input_norm: Norm | None  # [hidden]
    qkv_proj: Linear  # [(heads + 2 * kv_heads) * head_dim, hidden]
    q_norm: Norm | None  # [head_dim], or [heads * head_dim]
    k_norm: Norm | None  # [head_dim], or [kv_heads * head_dim]
    o_proj: Linear  # [hidden, heads * head_dim]
    attention_out_norm: Norm | None  # [hidden]
    mlp_norm: Norm | None  # [hidden]
    mlp: Mlp | Mixture
    mlp_out_norm: Norm | None  # [hidden]

    @property
    def linears(self) -> tuple[Linear, ...]:
        """Its linear layers."""
        return (self.qkv_proj, self.o_proj, *self.mlp.linears)

    @property
    def size_bytes(self) -> int:
        """Memory held."""
        around = (self.input_norm, self.attention_out_norm, self.mlp_norm, self.mlp_out_norm)
        norms = sum(norm.size_bytes for norm in (*around, self.q_norm, self.k_norm) if norm is not None)
        return norms + self.mlp.unpacked_bytes + sum(linear.size_bytes for linear in self.linears)


@dataclass(frozen=True, slots=True)
class _Batch:
    """What every block of one forward pass shares."""

    rotary: dict[int, RotaryTables | None]  # by kind; None: no positions
    segments: dict[int | None, list[Segment]]  # by sliding window


class SpanModel:
    """Consecutive blocks of a model, in memory, ready to compute."""

    def __init__(
        self,
        config: ModelConfig,
        span: Span,
        blocks: Sequence[BlockWeights],
        dtype: torch.dtype,
        quantization: Quantization = "none",
    ) -> None:
        self.config = config
        self.span = span
        self.dtype = dtype
        self.quantization = quantization
        self._blocks = tuple(blocks)
        ropes = list(dict.fromkeys(config.rope_of(block) for block in span))
        self._rope_kinds = [ropes.index(config.rope_of(block)) for block in span]
        self._rotaries = [None if rope is None else Rotary(rope, config.head_dim, dtype) for rope in ropes]
        self._residual = config.design.residual_multiplier
        self._parallel = config.design.parallel_residual
        self._scores = Scores(config.design.attention_scale, config.design.attention_softcap)
        # Without native fp16, torch's attention in it is three times slower than in fp32; in bf16 it is not.
        widen = dtype == torch.float16 and not multiplies_natively(dtype)
        self._attention_dtype = torch.float32 if widen else dtype

    @property
    def weights_bytes(self) -> int:
        """Memory the weights take."""
        return sum(block.size_bytes for block in self._blocks)

    @property
    def linears(self) -> list[Linear]:
        """Every linear layer, block by block."""
        return [linear for block in self._blocks for linear in block.linears]

    @property
    def kernels(self) -> str:
        """A short name of what its bits hang on besides the weights: the kernels, processor and torch."""
        kind = f"{dtype_name(self.dtype)} {self.quantization}"
        return fingerprint(f"{kind} {linear}" for linear in self.linears)

    def new_cache(self, span: Span | None = None) -> KVCache:
        """An empty cache for a session on these blocks, or on some of them."""
        return KVCache(self.config, len(self._check_span(span)), self.dtype)

    @torch.inference_mode()
    def forward(self, batch: Sequence[SpanStep], span: Span | None = None) -> list[Tensor]:
        """Push each step through the blocks (all, or those of `span`); gives [tokens, hidden] for each.

        Raises `UsageError` for rows of a wrong shape or a cache of other blocks, `ContextOverflow`
        past the model's context. Not for two threads at once.
        """
        span = self._check_span(span)
        self._check(batch, span)
        if not batch:
            return []
        for step in batch:
            step.cache.reserve(len(step.hidden))
        hidden = torch.cat([step.hidden.to(self.dtype) for step in batch])  # [rows, hidden], a copy
        shared = self._prepare(batch, span)
        for index, block in enumerate(span):
            self._run_block(block, index, hidden, shared)
        for step in batch:
            step.cache.advance(len(step.hidden))
        return list(torch.split(hidden, [len(step.hidden) for step in batch]))

    def _run_block(self, block: int, cache_index: int, hidden: Tensor, shared: _Batch) -> None:
        weights, config = self._blocks[block - self.span.start], self.config
        normed = _normed(hidden, weights.input_norm)
        rotary = shared.rotary[self._rope_kinds[block - self.span.start]]
        segments = shared.segments[config.window(block)]
        mixed = self._attention(weights, cache_index, normed, rotary, segments)
        self._add(hidden, mixed, weights.attention_out_norm)
        if not self._parallel:
            normed = _normed(hidden, weights.mlp_norm)
        self._add(hidden, weights.mlp(normed), weights.mlp_out_norm)

    def _add(self, hidden: Tensor, out: Tensor, norm: Norm | None) -> None:
        hidden.add_(out if norm is None else norm(out), alpha=self._residual)

    def _attention(
        self,
        weights: BlockWeights,
        cache_index: int,
        x: Tensor,
        rotary: RotaryTables | None,
        segments: list[Segment],
    ) -> Tensor:
        heads, kv_heads = self.config.num_heads, self.config.num_kv_heads
        qkv = weights.qkv_proj(x).view(len(x), heads + 2 * kv_heads, self.config.head_dim)
        queries, keys = qkv[:, :heads], qkv[:, heads : heads + kv_heads]
        if weights.q_norm is not None and weights.k_norm is not None:
            self._norm_heads(queries, weights.q_norm)
            self._norm_heads(keys, weights.k_norm)
        if rotary is not None:
            rotate_(qkv[:, : heads + kv_heads], rotary)
            if rotary.query_scale is not None:
                queries.mul_(rotary.query_scale)
        rows = qkv[:, heads:].view(-1, 2, kv_heads, self.config.head_dim)
        for segment in segments:
            part = rows.narrow(0, segment.start, segment.end - segment.start)
            segment.cache.write(cache_index, segment.cache.position, part)
        mixed = attend(queries.to(self._attention_dtype), segments, cache_index, self._scores)
        return weights.o_proj(mixed.to(self.dtype))

    def _norm_heads(self, heads: Tensor, norm: Norm) -> None:
        rows = heads.flatten(1) if self.config.design.whole_qk_norm else heads
        heads.copy_(norm(rows).view(heads.shape))

    def _prepare(self, batch: Sequence[SpanStep], span: Span) -> _Batch:
        positions = [
            torch.arange(step.cache.position, step.cache.position + len(step.hidden)) for step in batch
        ]
        windows = {self.config.window(block) for block in span}
        kinds = {self._rope_kinds[block - self.span.start] for block in span}
        return _Batch(
            rotary={kind: self._tables(kind, torch.cat(positions)) for kind in kinds},
            segments={window: self._segments(batch, window) for window in windows},
        )

    def _tables(self, kind: int, positions: Tensor) -> RotaryTables | None:
        rotary = self._rotaries[kind]
        return None if rotary is None else rotary.tables(positions)

    def _segments(self, batch: Sequence[SpanStep], window: int | None) -> list[Segment]:
        segments: list[Segment] = []
        start = 0
        for step in batch:
            end = start + len(step.hidden)
            cut = tiles(step.cache.position, len(step.hidden), window, self._attention_dtype)
            segments.append(Segment(step.cache, start, end, cut))
            start = end
        return segments

    def _check_span(self, span: Span | None) -> Span:
        if span is None:
            return self.span
        if not self.span.covers(span):
            raise UsageError(
                f"The blocks {span} are not all in the span {self.span}", f"Ask for blocks of {self.span}."
            )
        return span

    def _check(self, batch: Sequence[SpanStep], span: Span) -> None:
        if len({id(step.cache) for step in batch}) < len(batch):
            raise UsageError("Two steps of one session are in a batch", "Push them one after the other.")
        for step in batch:
            self._check_step(step, span)

    def _check_step(self, step: SpanStep, span: Span) -> None:
        shape = tuple(step.hidden.shape)
        if len(shape) != 2 or shape[0] == 0 or shape[1] != self.config.hidden_size:
            raise UsageError(
                f"Hidden states of shape {list(shape)} cannot go through this model",
                f"Send [tokens, {self.config.hidden_size}] with at least one token.",
            )
        if step.cache.num_blocks != len(span):
            raise UsageError(
                f"A cache of {step.cache.num_blocks} blocks does not fit the {len(span)} blocks {span}",
                "Use the cache that `new_cache` gave for these blocks.",
            )
        if step.cache.position + len(step.hidden) > self.config.context_length:
            raise ContextOverflow(
                f"{step.cache.position + len(step.hidden)} tokens exceed the context of "
                f"{self.config.context_length} tokens",
                "Shorten the prompt or ask for fewer tokens.",
            )


def _normed(x: Tensor, norm: Norm | None) -> Tensor:
    return x if norm is None else norm(x)
