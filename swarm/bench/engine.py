"""What the engine does alone, in one process: steps by number of sessions, long prompts, and the kernels.

Figures are the best of several runs: the machine may be busy, the work is the same.
"""

import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import torch

from swarm.bench.numbers import Numbers
from swarm.model.config import read_config
from swarm.model.linear.chooser import Chooser
from swarm.model.span import SpanModel, SpanStep
from swarm.model.weights import load_head, load_span
from swarm.values import Span

CONTEXT_TOKENS = 32
PREFILL_TOKENS = 512
SESSIONS = (1, 2, 4, 8, 16)
_STEPS, _REPEATS = 8, 5
COLUMNS = ("format", "rows", "ms a step", "tokens/s", "head ms", "kernels")


@dataclass(frozen=True, slots=True)
class EngineLine:
    """One format at one number of rows: of as many sessions with a row each, or of one with a prompt."""

    dtype: str
    quantization: str
    threads: int
    rows: int
    kind: str  # decode, or prefill
    step_ms: float  # through all blocks
    tokens_per_s: float
    head_ms: float  # for one row
    weights_bytes: int
    kernels: dict[str, str]  # shape -> layout and kernel

    def to_json(self) -> dict[str, object]:
        """The line that `--json` prints."""
        return asdict(self)

    def row(self) -> tuple[str, ...]:
        """The cells of the table."""
        numbers = self.dtype if self.quantization == "none" else f"{self.dtype}+{self.quantization}"
        kernels = ", ".join(f"{shape} {kernel}" for shape, kernel in self.kernels.items())
        return (
            numbers,
            str(self.rows),
            f"{self.step_ms:.2f}",
            f"{self.tokens_per_s:.1f}",
            f"{self.head_ms:.2f}",
            kernels,
        )


def measure_engine(directory: Path, numbers: Numbers, threads: int, chooser: Chooser) -> Iterator[EngineLine]:
    """Load a model whole, and measure it. Raises `ModelError`."""
    torch.set_num_threads(threads)
    config, dtype = read_config(directory), numbers.torch_dtype
    head = load_head(directory, config, dtype=dtype, chooser=chooser)
    row = torch.randn(1, config.hidden_size)
    head_s = best_of(_REPEATS, lambda: head.logits(row))
    model = load_span(
        directory,
        config,
        Span(0, config.num_blocks),
        dtype=dtype,
        quantization=numbers.quantization,
        chooser=chooser,
    )

    def line(kind: str, rows: int, step_s: float) -> EngineLine:
        return EngineLine(
            numbers.dtype,
            numbers.quantization,
            threads,
            rows,
            kind,
            round(step_s * 1e3, 3),
            round(rows / step_s, 1),
            round(head_s * 1e3, 3),
            model.weights_bytes,
            {str(each.shape): f"{each.choice.layout} {each.choice.kernel(rows)}" for each in model.linears},
        )

    for sessions in SESSIONS:
        yield line("decode", sessions, _decode_s(model, sessions))
    tokens = min(PREFILL_TOKENS, config.context_length)
    yield line("prefill", tokens, _prefill_s(model, tokens))


def best_of(repeats: int, work: Callable[[], object]) -> float:
    """Seconds of the fastest run."""
    times = []
    for _ in range(repeats):
        started = time.perf_counter()
        work()
        times.append(time.perf_counter() - started)
    return min(times)


def _decode_s(model: SpanModel, sessions: int) -> float:
    """For one token of each session."""
    caches = [model.new_cache() for _ in range(sessions)]
    hidden = model.config.hidden_size
    context = min(CONTEXT_TOKENS, model.config.context_length - _STEPS)
    for cache in caches:
        model.forward([SpanStep(cache, torch.randn(context, hidden))])
    steps = [SpanStep(cache, torch.randn(1, hidden)) for cache in caches]

    def decode() -> None:
        for _ in range(_STEPS):
            model.forward(steps)
        for cache in caches:
            cache.rewind(context)

    return best_of(_REPEATS, decode) / _STEPS


def _prefill_s(model: SpanModel, tokens: int) -> float:
    rows = torch.randn(tokens, model.config.hidden_size)
    return best_of(3, lambda: model.forward([SpanStep(model.new_cache(), rows)]))
