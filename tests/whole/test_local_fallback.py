"""A client with the weights runs blocks that nobody hosts, says so, and stops when somebody does."""

import asyncio

from swarm.client.client import ClientOptions
from swarm.model.compute import InlineCompute
from swarm.testing.clock import run_virtual
from swarm.values import Span

PROMPT = list(b"Once upon a time")


def test_blocks_that_nobody_hosts_are_run_here(virtual_swarm, reference):
    told = []

    async def run():
        async with virtual_swarm() as swarm:
            await swarm.add_peers([Span(0, 2), Span(4, 5)])
            client = swarm.client(ClientOptions(local_fallback=True, on_local=told.append))
            return await client.generate(PROMPT, max_tokens=20, stop_token_ids=frozenset())

    reply = run_virtual(run())
    assert list(reply.token_ids) == reference.reply(PROMPT, 20)
    assert [(hop.peer == "local", hop.blocks) for hop in reply.hops] == [
        (False, "0:2"),
        (True, "2:4"),
        (False, "4:5"),
        (True, "5:6"),
    ]
    assert "blocks 2:4" in told[0]
    assert "blocks 5:6" in told[1]


def test_a_whole_model_is_run_here_when_nobody_hosts_anything(virtual_swarm, reference):
    async def run():
        async with virtual_swarm() as swarm:
            client = swarm.client(ClientOptions(local_fallback=True))
            return await client.generate(PROMPT, max_tokens=5, stop_token_ids=frozenset())

    assert list(run_virtual(run()).token_ids) == reference.reply(PROMPT, 5)


def test_a_loss_in_mid_reply_falls_back_and_a_peer_that_comes_takes_over_again(virtual_swarm, reference):
    async def run():
        async with virtual_swarm(compute=lambda: InlineCompute(0.02)) as swarm:
            first, _ = await swarm.add_peers([Span(0, 3), Span(3, 6)])
            client = swarm.client(ClientOptions(local_fallback=True, spares="off"))
            generation = client.generate(PROMPT, max_tokens=200, stop_token_ids=frozenset())
            ids, peers = [], []
            async for piece in generation:
                ids.append(piece.token_id)
                peers.append({hop.peer for hop in generation.hops})
                if len(ids) == 20:
                    await first.kill()
                if len(ids) == 60:
                    await swarm.add_peer(Span(0, 3))
                await asyncio.sleep(0.1)
            return ids, peers

    ids, peers = run_virtual(run())
    assert ids == reference.reply(PROMPT, 200)
    assert "local" not in peers[10]
    assert "local" in peers[40]
