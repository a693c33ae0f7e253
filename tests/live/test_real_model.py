"""A real model over real peers: the recorded tokens, many at once, through deaths, and within memory."""

import asyncio
import contextlib
import json
import signal
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest
import pytest_asyncio

from swarm.client.client import Client, ClientOptions
from swarm.client.generation import Generation
from swarm.model.config import read_config
from swarm.model.dtypes import parse_dtype
from swarm.model.weights import span_size_bytes
from swarm.testing.processes import LocalSwarm, LocalSwarmConfig, SwarmProcess
from swarm.values import Span

pytestmark = [
    pytest.mark.live,
    pytest.mark.model,
    pytest.mark.timeout(240),
    pytest.mark.asyncio(loop_scope="module"),
]

GOLDEN = json.loads((Path(__file__).parents[1] / "golden" / "smollm2-135m.json").read_text())
LONGEST = next(case for case in GOLDEN if case["prompt"].startswith("1, 2, 3"))
LEASE_S = 1.0


@dataclass(frozen=True, slots=True)
class Live:
    """The swarm of this module: at first just one chain, of one, 28 and one blocks."""

    model: Path
    swarm: LocalSwarm

    @contextlib.asynccontextmanager
    async def client(self, lease_s: float = 20.0) -> AsyncIterator[Client]:
        """A client; its long lease lets a busy machine be slow without being taken for dead."""
        options = ClientOptions(lease_s=lease_s, dtype="fp32", spares="off")
        async with await Client.open(self.model, join=[self.swarm.join], options=options) as client:
            yield client

    async def peer_for(self, span: str) -> SwarmProcess:
        """A living process that hosts exactly this span."""
        for peer in self.swarm.peers:
            if peer.running and (await peer.wait_for("online"))["blocks"] == span:
                return peer
        raise LookupError(span)

    async def serving(self, generation: Generation, blocks: str) -> SwarmProcess:
        """The process that runs these blocks for a reply in the making."""
        (wanted,) = (hop.peer for hop in generation.hops if hop.blocks == blocks)
        for peer in self.swarm.peers:
            if (await peer.wait_for("online"))["peer"] == wanted:
                return peer
        raise LookupError(wanted)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def live(smollm2, module_mark, tmp_path_factory) -> AsyncIterator[Live]:
    spans = [Span(0, 1), Span(1, 29), Span(29, 30)]
    home = str(tmp_path_factory.mktemp("home"))
    async with LocalSwarm(LocalSwarmConfig(str(smollm2), spans, home)) as swarm:
        yield Live(smollm2, swarm)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def grown(live) -> Live:
    """The same swarm with a second peer for 1:29, and one for 10:20."""
    for peer in [await live.swarm.start_peer(span) for span in (Span(1, 29), Span(10, 20))]:
        await peer.wait_for("online")
    return live


def begin(client: Client, case: dict) -> Generation:
    ids = case["greedy_ids_fp32"]
    return client.generate(case["prompt_ids"], max_tokens=len(ids), stop_token_ids=frozenset({2}))


async def take(generation: Generation, count: int) -> list[int]:
    """The next tokens of a reply."""
    ids = []
    async for piece in generation:
        ids.append(piece.token_id)
        if len(ids) == count:
            break
    return ids


@pytest.mark.parametrize("case", GOLDEN[:2], ids=lambda case: case["prompt"])
async def test_a_reply_over_one_and_28_and_one_blocks_is_the_recorded_one(live, case):
    async with live.client() as client:
        reply = await begin(client, case)
    assert list(reply.token_ids) == case["greedy_ids_fp32"]
    assert [hop.blocks for hop in reply.hops] == ["0:1", "1:29", "29:30"]


async def test_twenty_chats_at_once_each_equal_their_solo_run(live):
    others = ["Name a fruit.", "Why is snow white?", "Count to three.", "What is water?", "Say yes."]
    async with live.client() as client:
        prompts = [client.chat_ids([{"role": "user", "content": text}]) for text in others]
        solo = [list((await client.generate(ids, max_tokens=10)).token_ids) for ids in prompts]
        made = [
            {"prompt_ids": ids, "greedy_ids_fp32": reply} for ids, reply in zip(prompts, solo, strict=True)
        ]
        cases = [*GOLDEN, *made]
        assert len(cases) == 20
        replies = await asyncio.gather(*(begin(client, case)._finish() for case in cases))
    assert [list(reply.token_ids) for reply in replies] == [case["greedy_ids_fp32"] for case in cases]
    assert len({tuple(hop.peer for hop in reply.hops) for reply in replies}) == 1


async def test_a_peer_that_is_frozen_in_mid_reply_changes_no_token(grown):
    async with grown.client(LEASE_S) as client:
        generation = begin(client, LONGEST)
        ids = await take(generation, 8)
        frozen = await grown.serving(generation, "1:29")
        frozen.send_signal(signal.SIGSTOP)
        try:
            ids += await take(generation, 99)
        finally:
            frozen.send_signal(signal.SIGCONT)
    assert ids == LONGEST["greedy_ids_fp32"]
    [resume] = generation.reply.resumes
    assert "silent" in resume.reason
    assert resume.stall_s >= LEASE_S


async def test_a_peer_that_is_killed_in_mid_reply_changes_no_token(grown):
    async with grown.client() as client:
        generation = begin(client, LONGEST)
        ids = await take(generation, 8)
        killed = await grown.serving(generation, "1:29")
        killed.send_signal(signal.SIGKILL)
        ids += await take(generation, 99)
    assert ids == LONGEST["greedy_ids_fp32"]
    [resume] = generation.reply.resumes
    assert resume.lost_peer == (await killed.wait_for("online"))["peer"]


async def test_a_peer_keeps_no_more_than_its_blocks_and_half_a_gigabyte(grown):
    peer = psutil.Process((await grown.peer_for("10:20")).pid)
    weights = span_size_bytes(read_config(grown.model), Span(10, 20), parse_dtype("fp32"))
    assert peer.memory_info().rss <= weights + 500e6


@pytest.mark.skipif(not Path("/proc/self/io").exists(), reason="Only Linux counts the bytes a process reads")
async def test_a_peer_reads_only_the_bytes_of_its_blocks(grown):
    ten, one = [await grown.peer_for(span) for span in ("10:20", "0:1")]
    more = _bytes_read(ten) - _bytes_read(one)  # all else that they read is the same
    block = span_size_bytes(read_config(grown.model), Span(0, 1), parse_dtype("bf16"))
    assert 8.8 * block < more < 9.2 * block


def _bytes_read(process: SwarmProcess) -> int:
    counters = dict(line.split(": ") for line in Path(f"/proc/{process.pid}/io").read_text().splitlines())
    return int(counters["rchar"])
