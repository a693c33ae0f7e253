"""The right answer to a canary, computed here from the model's own files.

Runs the model once, block by block, and keeps the hidden states at every boundary between blocks,
so that a wrong answer can be laid at the door of one hop. Only tokens that stand well above the
next likeliest are demanded of others: rounding must not make an honest peer look broken.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from swarm.client.model import ClientModel, load_client_model
from swarm.errors import DoesNotFit
from swarm.memory import available_bytes
from swarm.model.config import ModelConfig
from swarm.model.span import SpanModel, SpanStep
from swarm.model.store import ensure_manifest
from swarm.model.weights import load_span, span_size_bytes
from swarm.values import Span, format_size

SAFE_MARGIN = 0.3  # of a token's logit over the next; bf16 peers stay below half of it
MEMORY_SHARE = 0.5  # of what is free, at most


@dataclass(frozen=True, slots=True)
class Reference:
    """What each step of a canary must give. `states[step][block]` is [rows, hidden] on entering `block`."""

    token_ids: tuple[int, ...]
    settled: int  # so many leading tokens are beyond doubt
    states: tuple[tuple[Tensor, ...], ...]


def compute_reference(
    directory: Path, root: Path, ends: ClientModel, prompt_ids: Sequence[int], max_tokens: int
) -> Reference:
    """Run the model on a prompt, greedily. Takes as much memory as its blocks; raises `DoesNotFit`."""
    blocks = _load(directory, root, ends.config)
    caches = [blocks.new_cache(Span(block, block + 1)) for block in blocks.span]
    steps: list[tuple[Tensor, ...]] = []
    token_ids: list[int] = []
    settled, in_doubt = 0, False
    rows = ends.head.embed(prompt_ids)
    for _ in range(max_tokens):
        states = [rows]
        for block, cache in zip(blocks.span, caches, strict=True):
            states += blocks.forward([SpanStep(cache, states[-1])], Span(block, block + 1))
        steps.append(tuple(states))
        likeliest = torch.topk(ends.head.logits(states[-1][-1:])[-1], 2)
        in_doubt = in_doubt or float(likeliest.values[0] - likeliest.values[1]) < SAFE_MARGIN
        settled += not in_doubt
        token_ids.append(int(likeliest.indices[0]))
        rows = ends.head.embed(token_ids[-1:])
    return Reference(tuple(token_ids), settled, tuple(steps))


def load_ends(directory: Path, root: Path) -> ClientModel:
    """The embedding, head and tokenizer of a model, in fp32. Raises `ModelError`."""
    return load_client_model(str(directory), root, "fp32")


def _load(directory: Path, root: Path, config: ModelConfig) -> SpanModel:
    span = Span(0, config.num_blocks)
    needed, free = span_size_bytes(config, span, torch.float32), available_bytes()
    if needed > MEMORY_SHARE * free:
        raise DoesNotFit(
            f"Computing the canary's answer takes {format_size(needed)}, and {format_size(free)} are free",
            "Peers are compared with each other instead; for more proof, run the page on a larger machine.",
        )
    return load_span(directory, config, span, dtype=torch.float32, manifest=ensure_manifest(directory, root))
