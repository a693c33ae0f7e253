"""The recorded replies of a real model, all asked at once, over chains cut in several ways."""

import asyncio
import json
from pathlib import Path

import pytest

from swarm.testing.clock import run_virtual
from swarm.testing.swarm import InProcessSwarm
from swarm.values import parse_span

pytestmark = [pytest.mark.model, pytest.mark.timeout(300)]  # seconds on an idle machine

GOLDEN = json.loads((Path(__file__).parents[1] / "golden" / "smollm2-135m.json").read_text())


@pytest.mark.parametrize("cuts", ["0:30", "0:11 11:30", "0:4 4:17 17:30", "0:3 3:9 9:20 20:22 22:30"])
def test_every_recorded_reply_comes_out_however_the_blocks_are_cut(smollm2, cuts):
    async def ask_all():
        loop = asyncio.get_running_loop()
        async with InProcessSwarm(smollm2, now=lambda: 1e9 + loop.time()) as swarm:
            await swarm.add_peers([parse_span(cut) for cut in cuts.split()])
            client = swarm.client()
            return await asyncio.gather(*(reply(client, case) for case in GOLDEN))

    async def reply(client, case):
        expected = case["greedy_ids_fp32"]
        return await client.generate(
            case["prompt_ids"], max_tokens=len(expected), stop_token_ids=frozenset({2})
        )

    replies = run_virtual(ask_all())
    assert [list(reply.token_ids) for reply in replies] == [case["greedy_ids_fp32"] for case in GOLDEN]
    assert {len(reply.hops) for reply in replies} == {len(cuts.split())}
