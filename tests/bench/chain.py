"""Prints what a chain of two peers keeps of the engine's own speed: tokens/s, and the ratio of both.

    python tests/bench/chain.py MODEL_DIRECTORY [--dtype bf16] [--pairs 7] [--tokens 64] [--prompt 512]

Two `swarm peer` processes with one thread each on loopback, against the whole model in this process
with one thread. Both do the client's work too (embedding, lm_head, sampling). They take turns, and each
pair gives one ratio; the median is what counts. On an idle machine only: on a busy one three processes
get more of the cores than one, and the ratio flatters the chain.
"""

import argparse
import asyncio
import statistics
import tempfile
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path

import torch

from swarm.client.client import Client, ClientOptions
from swarm.model.compute import ComputeThread
from swarm.model.config import read_config
from swarm.model.dtypes import parse_dtype
from swarm.model.head import Head
from swarm.model.sampling import Sampling, choose
from swarm.model.span import SpanModel, SpanStep
from swarm.model.weights import load_head, load_span
from swarm.testing.processes import LocalSwarm, LocalSwarmConfig, even_spans
from swarm.values import Span


@dataclass(frozen=True, slots=True)
class Speed:
    """Of one run: decoding after a short prompt, and a long prompt, in tokens/s."""

    decode: float
    prefill: float


@dataclass(frozen=True, slots=True)
class Work:
    """What each run does."""

    short: tuple[int, ...]
    long: tuple[int, ...]
    tokens: int


class Engine:
    """The whole model in this process: what the client does, without peers."""

    def __init__(self, blocks: SpanModel, head: Head) -> None:
        self._blocks = blocks
        self._head = head
        self._compute = ComputeThread()

    async def run(self, work: Work) -> Speed:
        _, decode_s = await self._reply(work.short, work.tokens)
        prefill_s, _ = await self._reply(work.long, 1)
        return Speed((work.tokens - 1) / decode_s if decode_s else 0.0, len(work.long) / prefill_s)

    async def _reply(self, prompt: tuple[int, ...], count: int) -> tuple[float, float]:
        """Seconds to the first token, and for those after it."""
        cache, output = self._blocks.new_cache(), []
        given, started = list(prompt), time.perf_counter()
        first = started
        while len(output) < count:
            logits = await self._compute.run(lambda ids=given: self._forward(cache, ids))
            output.append(choose(logits, Sampling(), prompt, output).token_id)
            given = output[-1:]
            first = time.perf_counter() if len(output) == 1 else first
        return first - started, time.perf_counter() - first

    def _forward(self, cache: object, ids: list[int]) -> torch.Tensor:
        for start in range(0, len(ids), 128):  # in chunks, as the peers are sent it
            rows = self._head.embed(ids[start : start + 128])
            [hidden] = self._blocks.forward([SpanStep(cache, rows)])
        return self._head.logits(hidden[-1:])[0]


async def ask(client: Client, work: Work) -> Speed:
    """The same over the peers."""
    fixed = {"sampling": Sampling(), "stop_token_ids": frozenset()}
    decoded = await client.generate(work.short, max_tokens=work.tokens, **fixed)
    filled = await client.generate(work.long, max_tokens=1, **fixed)
    return Speed(decoded.tokens_per_s, len(work.long) / filled.ttft_s)


async def compare(
    one: Callable[[], Awaitable[Speed]], other: Callable[[], Awaitable[Speed]], pairs: int
) -> None:
    """Let both take turns, and print what each pair gave and the medians."""
    print("         chain decode  engine decode  ratio | chain prefill  engine prefill  ratio   (tokens/s)")
    ratios = []
    for index in range(pairs):
        order = (one, other) if index % 2 else (other, one)
        speeds = {run: await run() for run in order}
        chain, engine = speeds[one], speeds[other]
        ratio = (chain.decode / engine.decode, chain.prefill / engine.prefill)
        ratios.append(ratio)
        print(
            f"pair {index + 1:2}  {chain.decode:12.1f}  {engine.decode:13.1f}  {ratio[0]:5.2f} | "
            f"{chain.prefill:13.0f}  {engine.prefill:14.0f}  {ratio[1]:5.2f}",
            flush=True,
        )
    decode, prefill = (statistics.median(values) for values in zip(*ratios, strict=True))
    print(f"median ratio: decode {decode:.2f}, prefill {prefill:.2f}")


async def measure(model: Path, dtype: str, work: Work, pairs: int) -> None:
    config = read_config(model)
    numbers = parse_dtype(dtype)
    blocks = load_span(model, config, Span(0, config.num_blocks), dtype=numbers)
    engine = Engine(blocks, load_head(model, config, dtype=numbers))
    with tempfile.TemporaryDirectory() as home:
        processes = LocalSwarmConfig(str(model), even_spans(config.num_blocks, 2), home, dtype=dtype)
        options = ClientOptions(dtype=dtype, spares="off")
        async with (
            LocalSwarm(processes) as swarm,
            await Client.open(model, join=[swarm.join], options=options) as client,
        ):
            await ask(client, work)  # for the first time, everything is slower
            await engine.run(work)
            await compare(lambda: ask(client, work), lambda: engine.run(work), pairs)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", type=Path)
    parser.add_argument("--dtype", default="fp32")
    parser.add_argument("--pairs", type=int, default=7)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--prompt", type=int, default=512, help="Tokens of the long prompt.")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    ids = [1 + index * 37 % 40_000 for index in range(arguments.prompt)]
    work = Work(tuple(ids[:8]), tuple(ids), arguments.tokens)
    asyncio.run(measure(arguments.model.absolute(), arguments.dtype, work, arguments.pairs))


if __name__ == "__main__":
    main()
