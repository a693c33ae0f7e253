"""Prints what the engine does alone: decode ms/token and prefill tokens/s, by dtype and batch size.

    python tests/bench/engine.py [--model DIRECTORY] [--threads N]

Without a model: random weights in the shape of SmolLM2-135M.
"""

import argparse
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch

from swarm.model.config import read_config
from swarm.model.dtypes import parse_dtype
from swarm.model.span import SpanModel, SpanStep
from swarm.model.weights import load_head, load_span
from swarm.testing.tiny_models import TinyModel, write_tiny_model
from swarm.values import Span

SMOLLM2_135M = {
    "hidden_size": 576,
    "intermediate_size": 1536,
    "num_attention_heads": 9,
    "num_key_value_heads": 3,
    "head_dim": 64,
    "vocab_size": 49152,
    "max_position_embeddings": 8192,
    "tie_word_embeddings": True,
}
DECODE_STEPS = 16


def best_of(repeats: int, work: Callable[[], object]) -> float:
    """Seconds of the fastest run: the machine may be busy, the work is the same."""
    times = []
    for _ in range(repeats):
        started = time.perf_counter()
        work()
        times.append(time.perf_counter() - started)
    return min(times)


def decode_ms(model: SpanModel, sessions: int, context: int) -> float:
    """Milliseconds for one token of each session."""
    caches = [model.new_cache() for _ in range(sessions)]
    hidden = model.config.hidden_size
    for cache in caches:
        model.forward([SpanStep(cache, torch.randn(context, hidden))])
    steps = [SpanStep(cache, torch.randn(1, hidden)) for cache in caches]

    def decode() -> None:
        for _ in range(DECODE_STEPS):
            model.forward(steps)
        for cache in caches:
            cache.rewind(context)

    return best_of(4, decode) / DECODE_STEPS * 1e3


def prefill_tokens_per_s(model: SpanModel, tokens: int) -> float:
    rows = torch.randn(tokens, model.config.hidden_size)
    return tokens / best_of(3, lambda: model.forward([SpanStep(model.new_cache(), rows)]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", type=Path)
    parser.add_argument("--threads", type=int, default=1)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    with tempfile.TemporaryDirectory() as scratch:
        directory = arguments.model or Path(scratch)
        if arguments.model is None:
            write_tiny_model(directory, TinyModel(num_blocks=30, dtype="bfloat16", overrides=SMOLLM2_135M))
        print(f"{torch.backends.cpu.get_cpu_capability()}, {arguments.threads} thread(s)")
        print(
            "dtype  head ms | decode ms per step, by sessions: "
            "1, 1 after 1024 tokens, 2, 4, 8, 16 | prefill 512, tokens/s"
        )
        for name in ("fp32", "bf16", "fp16"):
            measure(directory, name)


def measure(directory: Path, name: str) -> None:
    config, dtype = read_config(directory), parse_dtype(name)
    head = load_head(directory, config, dtype=dtype)
    row = torch.randn(1, config.hidden_size)
    head_ms = best_of(10, lambda: head.logits(row)) * 1e3
    model = load_span(directory, config, Span(0, config.num_blocks), dtype=dtype)
    shapes = [(1, 32), (1, 1024), (2, 32), (4, 32), (8, 32), (16, 32)]
    decode = "  ".join(f"{decode_ms(model, *shape):6.1f}" for shape in shapes)
    print(f"{name}   {head_ms:7.1f} | {decode} | {prefill_tokens_per_s(model, 512):6.0f}", flush=True)


if __name__ == "__main__":
    main()
