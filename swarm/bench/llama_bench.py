"""llama.cpp's own benchmark, run beside ours: its figures for a GGUF file, in the same minutes.

`llama-bench -o json` prints a list with an object for each test; those of a prompt alone have no
generated tokens, and the other way round.
"""

import asyncio
import json
from dataclasses import asdict, dataclass
from pathlib import Path

from swarm.errors import UsageError


@dataclass(frozen=True, slots=True)
class LlamaLine:
    """One GGUF file in one process of llama.cpp."""

    against: str  # llama-bench
    model: str
    threads: int
    decode_tokens_per_s: float
    prefill_tokens_per_s: float

    def to_json(self) -> dict[str, object]:
        """The line that `--json` prints."""
        return asdict(self)


async def run_llama_bench(
    program: Path, gguf: Path, *, threads: int, prompt_tokens: int, tokens: int, rpc: str = ""
) -> LlamaLine:
    """Run it to its end. Raises `UsageError` when it cannot be run, or prints something else."""
    options = ["-m", gguf, "-t", threads, "-p", prompt_tokens, "-n", tokens, "-r", 3, "-o", "json"]
    options += ["--rpc", rpc] if rpc else []
    try:
        process = await asyncio.create_subprocess_exec(
            program,
            *map(str, options),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
        )
    except OSError as error:
        raise UsageError(f"{program} cannot be run: {error}", "Name the program llama-bench.") from error
    try:
        output, _ = await process.communicate()
    except asyncio.CancelledError:
        process.kill()
        await process.wait()
        raise
    if process.returncode:
        raise UsageError(f"{program} failed with {process.returncode} on {gguf}", "Try it by hand.")
    return read_llama_bench(output, gguf.name, threads)


def read_llama_bench(output: bytes, model: str, threads: int) -> LlamaLine:
    """What it printed. Raises `UsageError` for anything else."""
    try:
        tests = json.loads(output)
        decode = next(float(test["avg_ts"]) for test in tests if test["n_gen"] and not test["n_prompt"])
        prefill = next(float(test["avg_ts"]) for test in tests if test["n_prompt"] and not test["n_gen"])
    except (ValueError, KeyError, TypeError, StopIteration) as error:
        raise UsageError(
            "The output is not what llama-bench prints with -o json", "Name the program llama-bench."
        ) from error
    return LlamaLine("llama-bench", model, threads, round(decode, 2), round(prefill, 1))
