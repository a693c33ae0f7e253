"""What a model takes, how it is split best over machines, and how fast it should then be.

Pure arithmetic. Decoding reads every weight once for each token, so a block takes its bytes over the speed
of the memory; a prompt takes its operations over the speed of the processor; a hop takes a round trip, the
bytes of a hidden state there and back, and what the protocol costs. A chain is a star: the client sends
to each hop and takes the answer back.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations
from math import ceil

from swarm.bench.plan.machines import Machine
from swarm.client.router import HOP_OVERHEAD_MS
from swarm.model.cache import bytes_per_token
from swarm.model.config import ModelConfig
from swarm.model.dtypes import parse_dtype
from swarm.model.weights import head_size_bytes, span_size_bytes
from swarm.peer.placement.fit import blocks_that_fit
from swarm.values import Span

BYTES_PER_WEIGHT = {"fp32": 4.0, "bf16": 2.0, "fp16": 2.0, "int8": 1.0 + 1 / 32, "int4": 0.5 + 1 / 16}
HOSTED_DTYPES = ("fp32", "bf16", "fp16")  # that a peer computes in; the others are told for comparison
RESERVE_BYTES = 600 * 10**6  # of a process besides its blocks: Python, torch, the network daemon
CHUNK_TOKENS = 128  # of a prompt, so that all hops compute at once
LOCAL_RTT_MS = 0.15  # to a peer on the client's own machine
ACCEPTED_TOKENS = 2.5  # for each round, where a small model or an n-gram guesses ahead


@dataclass(frozen=True, slots=True)
class Needs:
    """What a model takes in one number format, for one conversation of a length."""

    dtype: str
    blocks: int
    hidden_bytes: int  # of one token's hidden state on the wire
    block_bytes: int  # of weights
    cache_bytes: int  # of one block's KV cache for the whole context
    head_bytes: int

    @property
    def total_bytes(self) -> int:
        """All blocks with their caches."""
        return self.blocks * (self.block_bytes + self.cache_bytes)


@dataclass(frozen=True, slots=True)
class PlannedPart:
    """A machine and how many blocks it holds."""

    machine: Machine
    span: Span


@dataclass(frozen=True, slots=True)
class Prediction:
    """How fast a split should be, with the parts of one token's time."""

    parts: tuple[PlannedPart, ...]
    compute_ms: float
    network_ms: float
    protocol_ms: float
    ttft_s: float
    pushed_ms: float  # of the network, if each hop sent straight to the next

    @property
    def token_ms(self) -> float:
        """From one token to the next."""
        return self.compute_ms + self.network_ms + self.protocol_ms

    @property
    def tokens_per_s(self) -> float:
        """Of one conversation."""
        return 1e3 / self.token_ms

    def modes(self) -> dict[str, float]:
        """Tokens per second by the way of the chain, without and with guessing ahead."""
        guessed = self.compute_ms + (self.network_ms + self.protocol_ms) / ACCEPTED_TOKENS
        pushed = self.compute_ms + self.pushed_ms + self.protocol_ms
        pushed_guessed = self.compute_ms + (self.pushed_ms + self.protocol_ms) / ACCEPTED_TOKENS
        return {
            "star": self.tokens_per_s,
            "push": 1e3 / pushed,
            "star_speculating": 1e3 / guessed,
            "push_speculating": 1e3 / pushed_guessed,
        }


def needs(config: ModelConfig, dtype: str, context_tokens: int) -> Needs:
    """What the model takes; from its config alone."""
    per_weight = BYTES_PER_WEIGHT[dtype]
    wide = parse_dtype("bf16")
    weights = max(span_size_bytes(config, Span(b, b + 1), wide) for b in range(config.num_blocks)) / 2
    cached = parse_dtype(dtype if dtype in HOSTED_DTYPES else "bf16")
    return Needs(
        dtype,
        config.num_blocks,
        config.hidden_size * cached.itemsize,
        int(weights * per_weight),
        bytes_per_token(config, 1, cached) * context_tokens,
        int(head_size_bytes(config, wide) / 2 * cached.itemsize),
    )


def blocks_on(machine: Machine, need: Needs) -> int:
    """How many blocks a machine holds, beside the client's head where the client runs."""
    room = machine.memory_bytes - RESERVE_BYTES - (need.head_bytes if machine.is_client else 0)
    return min(need.blocks, blocks_that_fit(max(0, room), need.block_bytes, need.cache_bytes))


def best_split(machines: Sequence[Machine], need: Needs, prompt_tokens: int) -> Prediction | None:
    """The fastest of all splits; None when the model does not fit on all machines together."""
    predictions = [
        predict(parts, machines, need, prompt_tokens)
        for chosen in _subsets(machines)
        if (parts := _fill(chosen, need))
    ]
    return min(predictions, key=lambda each: each.token_ms, default=None)


def alone(machine: Machine, machines: Sequence[Machine], need: Needs, prompt: int) -> Prediction | None:
    """The whole model on one machine, if it fits."""
    parts = _fill([machine], need)
    return predict(parts, machines, need, prompt) if parts else None


def predict(
    parts: Sequence[PlannedPart], machines: Sequence[Machine], need: Needs, prompt_tokens: int
) -> Prediction:
    """How fast a split should be."""
    client = next(machine for machine in machines if machine.is_client)
    head_ms = need.head_bytes / client.reads_gb_per_s / 1e6
    rtts_ms = [_rtt_ms(part.machine) for part in parts]
    carried_ms = [_carry_ms(part.machine, 2 * need.hidden_bytes) for part in parts]
    return Prediction(
        tuple(parts),
        head_ms + sum(_block_ms(part, need) for part in parts),
        sum(rtts_ms) + sum(carried_ms),
        HOP_OVERHEAD_MS * len(parts),
        _ttft_s(parts, need, prompt_tokens, head_ms),
        (sum(rtts_ms) + sum(carried_ms)) * (len(parts) + 1) / (2 * len(parts)),
    )


def _subsets(machines: Sequence[Machine]) -> Iterator[list[Machine]]:
    """All of few machines; of many only the fastest of each number."""
    by_speed = sorted(machines, key=lambda machine: -machine.reads_gb_per_s)
    for count in range(1, len(machines) + 1):
        if len(machines) > 10:
            yield by_speed[:count]
        else:
            yield from map(list, combinations(by_speed, count))


def _fill(machines: Sequence[Machine], need: Needs) -> list[PlannedPart]:
    """The fastest first, as much as each holds; nothing when the model does not fit, or one is left over."""
    parts, start = [], 0
    for machine in sorted(machines, key=lambda each: -each.reads_gb_per_s):
        count = min(blocks_on(machine, need), need.blocks - start)
        if count == 0:
            return []
        parts.append(PlannedPart(machine, Span(start, start + count)))
        start += count
    return parts if start == need.blocks else []


def _block_ms(part: PlannedPart, need: Needs) -> float:
    return len(part.span) * need.block_bytes / part.machine.reads_gb_per_s / 1e6 + part.machine.step_ms


def _rtt_ms(machine: Machine) -> float:
    return LOCAL_RTT_MS if machine.is_client else machine.rtt_ms


def _carry_ms(machine: Machine, size_bytes: float) -> float:
    return 0.0 if machine.is_client else size_bytes * 8 / machine.mbit_per_s / 1e3


def _ttft_s(parts: Sequence[PlannedPart], need: Needs, prompt_tokens: int, head_ms: float) -> float:
    """The prompt goes in chunks: the slowest hop takes them all, the others one before or after."""
    chunks = ceil(prompt_tokens / CHUNK_TOKENS)
    tokens = min(prompt_tokens, CHUNK_TOKENS)
    operations = 2 * need.block_bytes / BYTES_PER_WEIGHT[need.dtype] * tokens
    stages_ms = [
        max(len(part.span) * operations / part.machine.gflops / 1e6, _block_ms(part, need))
        + _carry_ms(part.machine, 2 * need.hidden_bytes * tokens)
        + _rtt_ms(part.machine)
        + HOP_OVERHEAD_MS
        for part in parts
    ]
    return (max(stages_ms) * (chunks - 1) + sum(stages_ms) + head_ms) / 1e3
