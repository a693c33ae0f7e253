"""Whether peers and client keep anything of the sessions they have had: memory over a thousand of them.

Two real peers on loopback with a tiny model; prints the resident memory of each process in MiB after
every tenth of the sessions, and what sessions the peers still hold at the end.

    python tests/bench/memory.py [--sessions 1000] [--at-once 8]
"""

import argparse
import asyncio
import re
import tempfile
import urllib.request
from pathlib import Path

import psutil

from swarm.client.client import Client
from swarm.testing.processes import LocalSwarm, LocalSwarmConfig
from swarm.testing.tiny_models import TinyModel, write_tiny_model
from swarm.values import Span

TOKENS = 8


def resident_mib(pid: int) -> float:
    return round(psutil.Process(pid).memory_info().rss / 2**20, 1)


def sessions_held(monitor: str) -> int:
    with urllib.request.urlopen(f"{monitor}/metrics") as answer:  # noqa: S310 - our own peer
        text = answer.read().decode()
    return int(float(re.search(r"^swarm_sessions (\S+)", text, re.MULTILINE)[1]))


async def run(sessions: int, at_once: int) -> None:
    with tempfile.TemporaryDirectory() as home:
        model = Path(home) / "tiny"
        write_tiny_model(model, TinyModel(num_blocks=6))
        config = LocalSwarmConfig(str(model), [Span(0, 3), Span(3, 6)], home)
        async with LocalSwarm(config) as swarm, await Client.open(model, join=[swarm.join]) as client:
            pids = [psutil.Process().pid, *(peer.pid for peer in swarm.peers)]
            print("sessions    client    peers (MiB)")
            for done in range(0, sessions, at_once):
                prompts = [[1 + (done + index) % 200, 2, 3] for index in range(at_once)]
                await asyncio.gather(*(ask(client, prompt) for prompt in prompts))
                if (done // at_once) % max(1, sessions // at_once // 10) == 0:
                    print(f"{done + at_once:8}  ", *(resident_mib(pid) for pid in pids), flush=True)
            monitors = [(await peer.wait_for("joined"))["monitor"] for peer in swarm.peers]
            print("held at the end:", [sessions_held(monitor) for monitor in monitors])


async def ask(client: Client, prompt: list[int]) -> None:
    await client.generate(prompt, max_tokens=TOKENS, stop_token_ids=frozenset())


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--sessions", type=int, default=1000)
    parser.add_argument("--at-once", type=int, default=8)
    arguments = parser.parse_args()
    asyncio.run(run(arguments.sessions, arguments.at_once))


if __name__ == "__main__":
    main()
