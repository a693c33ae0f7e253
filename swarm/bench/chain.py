"""What a chain of peers keeps of the engine's own speed: real peers on loopback against one process.

Both do the client's work too (embedding, lm_head, sampling) and have one thread each. They take turns,
and each pair gives one ratio; the median is what counts. On a busy machine several processes get more
of the cores than one, and the ratio flatters the chain.
"""

import statistics
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from swarm.bench.numbers import Numbers
from swarm.client.client import Client, ClientOptions
from swarm.model.cache import KVCache
from swarm.model.compute import ComputeThread
from swarm.model.config import read_config
from swarm.model.head import Head
from swarm.model.linear.chooser import MeasuringChooser
from swarm.model.sampling import Sampling, choose
from swarm.model.span import SpanModel, SpanStep
from swarm.model.weights import load_head, load_span
from swarm.testing.processes import LocalSwarm, LocalSwarmConfig, even_spans
from swarm.values import Span

_CHUNK_TOKENS = 128  # as peers are sent a long prompt
COLUMNS = ("format", "peers", "decode", "floor", "ratio", "prefill", "floor", "ratio", "same tokens")


@dataclass(frozen=True, slots=True)
class ChainWork:
    """What each run does: a reply after a short prompt, and one token after a long one."""

    short: tuple[int, ...]
    long: tuple[int, ...]
    tokens: int
    pairs: int


@dataclass(frozen=True, slots=True)
class Run:
    """One run of either."""

    decode_tokens_per_s: float
    prefill_tokens_per_s: float
    ids: tuple[int, ...]  # of the reply


@dataclass(frozen=True, slots=True)
class ChainLine:
    """One format: medians over the pairs. The floor is the engine in one process."""

    dtype: str
    quantization: str
    peers: int
    decode_tokens_per_s: float
    prefill_tokens_per_s: float
    floor_decode_tokens_per_s: float
    floor_prefill_tokens_per_s: float
    ratio_decode: float
    ratio_prefill: float
    parity: bool  # whether both gave the same tokens, every time

    def to_json(self) -> dict[str, object]:
        """The line that `--json` prints."""
        return asdict(self)

    def row(self) -> tuple[str, ...]:
        """The cells of the table."""
        numbers = self.dtype if self.quantization == "none" else f"{self.dtype}+{self.quantization}"
        return (
            numbers,
            str(self.peers),
            f"{self.decode_tokens_per_s:.1f}",
            f"{self.floor_decode_tokens_per_s:.1f}",
            f"{self.ratio_decode:.2f}",
            f"{self.prefill_tokens_per_s:.0f}",
            f"{self.floor_prefill_tokens_per_s:.0f}",
            f"{self.ratio_prefill:.2f}",
            "yes" if self.parity else "NO",
        )


def chain_work(vocabulary: int, prompt_tokens: int, tokens: int, pairs: int) -> ChainWork:
    """Prompts of token ids that are always the same."""
    ids = tuple(1 + index * 37 % (vocabulary - 1) for index in range(prompt_tokens))
    return ChainWork(ids[:8], ids, tokens, pairs)


async def measure_chain(
    directory: Path, store_root: Path, numbers: Numbers, peers: int, work: ChainWork
) -> ChainLine:
    """Start peers, measure both, end them. Raises `ModelError`, and what starting a process raises."""
    torch.set_num_threads(1)
    config, chooser = read_config(directory), MeasuringChooser(store_root)
    blocks = load_span(
        directory,
        config,
        Span(0, config.num_blocks),
        dtype=numbers.torch_dtype,
        quantization=numbers.quantization,
        chooser=chooser,
    )
    floor = _Floor(blocks, load_head(directory, config, dtype=numbers.torch_dtype, chooser=chooser))
    with tempfile.TemporaryDirectory(prefix="swarm-bench-") as home:
        processes = LocalSwarmConfig(
            str(directory),
            even_spans(config.num_blocks, peers),
            home,
            dtype=numbers.dtype,
            quantization=numbers.quantization,
        )
        options = ClientOptions(dtype=numbers.dtype, spares="off")
        async with (
            LocalSwarm(processes) as swarm,
            await Client.open(directory, join=[swarm.join], options=options) as client,
        ):
            if numbers.quantization != "none":  # a dtype that is asked for is one that is not quantised
                client.options = replace(options, dtype=None)
            await _ask(client, work)  # the first time everything is slower
            await floor.run(work)
            runs = [await _pair(client, floor, work, index) for index in range(work.pairs)]
    return _line(numbers, peers, runs)


class _Floor:
    """The whole model in this process: what client and peers do, without a network."""

    def __init__(self, blocks: SpanModel, head: Head) -> None:
        self._blocks = blocks
        self._head = head
        self._compute = ComputeThread()

    async def run(self, work: ChainWork) -> Run:
        _, decode_s, ids = await self._reply(work.short, work.tokens)
        prefill_s, _, _ = await self._reply(work.long, 1)
        return Run((work.tokens - 1) / decode_s, len(work.long) / prefill_s, ids)

    async def _reply(self, prompt: tuple[int, ...], count: int) -> tuple[float, float, tuple[int, ...]]:
        """Seconds to the first token and for those after it, and the tokens."""
        cache = self._blocks.new_cache()
        output: list[int] = []
        given, started = list(prompt), time.perf_counter()
        first = started
        while len(output) < count:
            logits = await self._compute.run(partial(self._forward, cache, given))
            output.append(choose(logits, Sampling(), prompt, output).token_id)
            given = output[-1:]
            first = time.perf_counter() if len(output) == 1 else first
        return first - started, time.perf_counter() - first, tuple(output)

    def _forward(self, cache: KVCache, ids: Sequence[int]) -> Tensor:
        hidden = self._head.embed(ids)
        for start in range(0, len(ids), _CHUNK_TOKENS):
            [last] = self._blocks.forward([SpanStep(cache, hidden[start : start + _CHUNK_TOKENS])])
        return self._head.logits(last[-1:])[0]


async def _ask(client: Client, work: ChainWork) -> Run:
    """The same over the peers."""
    sampling, no_stop = Sampling(), frozenset[int]()
    reply = await client.generate(
        work.short, sampling=sampling, max_tokens=work.tokens, stop_token_ids=no_stop
    )
    filled = await client.generate(work.long, sampling=sampling, max_tokens=1, stop_token_ids=no_stop)
    return Run(reply.tokens_per_s, len(work.long) / filled.ttft_s, tuple(reply.token_ids))


async def _pair(client: Client, floor: _Floor, work: ChainWork, index: int) -> tuple[Run, Run]:
    """Of the chain and of the floor; who goes first takes turns."""
    if index % 2:
        chain = await _ask(client, work)
        return chain, await floor.run(work)
    alone = await floor.run(work)
    return await _ask(client, work), alone


def _line(numbers: Numbers, peers: int, runs: Sequence[tuple[Run, Run]]) -> ChainLine:
    def median(values: list[float], digits: int) -> float:
        return round(statistics.median(values), digits)

    return ChainLine(
        numbers.dtype,
        numbers.quantization,
        peers,
        median([chain.decode_tokens_per_s for chain, _ in runs], 2),
        median([chain.prefill_tokens_per_s for chain, _ in runs], 1),
        median([alone.decode_tokens_per_s for _, alone in runs], 2),
        median([alone.prefill_tokens_per_s for _, alone in runs], 1),
        median([chain.decode_tokens_per_s / alone.decode_tokens_per_s for chain, alone in runs], 3),
        median([chain.prefill_tokens_per_s / alone.prefill_tokens_per_s for chain, alone in runs], 3),
        all(chain.ids == alone.ids for chain, alone in runs),
    )
