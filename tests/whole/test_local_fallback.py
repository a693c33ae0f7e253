"""A client with the weights runs blocks that nobody hosts, says so, and stops when somebody does."""

import asyncio
import re
import threading
from itertools import pairwise

import pytest

from swarm import memory
from swarm.client.client import ClientOptions
from swarm.errors import NoRoute
from swarm.model.compute import ComputeThread, InlineCompute
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


def test_memory_that_runs_out_meanwhile_is_as_if_it_could_not(virtual_swarm, monkeypatch):
    told = []

    async def run():
        async with virtual_swarm() as swarm:
            await swarm.add_peers([Span(0, 2)])
            options = ClientOptions(local_fallback=True, on_local=told.append, patience_s=3.0)
            client = swarm.client(options)
            # when they are loaded; when it is asked whether they fit, there seems to be enough
            monkeypatch.setattr(memory, "available_bytes", lambda: 10)
            await client.generate(PROMPT, max_tokens=5)

    with pytest.raises(NoRoute, match="2:6"):
        run_virtual(run())
    assert re.search(
        r"blocks 2:6; this machine .*Blocks 2:6 in fp32 need .* and 10 B are free", " ".join(told)
    )


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


def test_silent_peers_are_not_asked_again_and_again_before_blocks_are_run_here(virtual_swarm, reference):
    async def run():
        async with virtual_swarm(compute=lambda: InlineCompute(0.02)) as swarm:
            replicas = await swarm.add_peers([Span(0, 3), Span(0, 3)])
            await swarm.add_peer(Span(3, 6))
            client = swarm.client(ClientOptions(local_fallback=True, spares="off"))
            ids, told_at = [], []
            async for piece in client.generate(PROMPT, max_tokens=60, stop_token_ids=frozenset()):
                ids.append(piece.token_id)
                told_at.append(asyncio.get_running_loop().time())
                if len(ids) == 20:
                    for replica in replicas:
                        swarm.net.freeze(replica.id)
            return ids, max(later - earlier for earlier, later in pairwise(told_at))

    ids, longest_s = run_virtual(run())
    assert ids == reference.reply(PROMPT, 60)
    assert longest_s < 8  # a lease for each of the two, and some


class HeldUp(ComputeThread):
    """A compute thread that begins the work which is to be held up when it is given the next."""

    def __init__(self) -> None:
        super().__init__()
        self.hold_up = False
        self.holds = asyncio.Event()
        self._next = threading.Event()

    async def run(self, work):
        self._next.set()
        if not self.hold_up:
            return await super().run(work)
        self.hold_up, self._next = False, threading.Event()
        self.holds.set()

        def later(given=self._next):
            given.wait(10)
            return work()

        return await super().run(later)


def test_a_step_that_is_computed_after_it_was_cancelled_changes_nothing(virtual_swarm, reference):
    async def run():
        async with virtual_swarm() as swarm:
            client = swarm.client(ClientOptions(local_fallback=True))
            client._local.compute = compute = HeldUp()
            context = client.conversation().context
            await context.move_to(PROMPT)
            compute.hold_up = True
            step = asyncio.create_task(context.feed([65]))
            await compute.holds.wait()
            step.cancel()
            await asyncio.wait({step})
            ids = [*PROMPT, 66]
            for _ in range(3):
                ids.append(int((await context.move_to(ids)).argmax()))
            await context.close()
            return ids[-3:]

    assert run_virtual(run()) == reference.reply([*PROMPT, 66], 3)


def test_blocks_that_an_earlier_process_ran_itself_are_asked_of_nobody_by_that_name(virtual_swarm, reference):
    asked = []

    async def run():
        async with virtual_swarm() as swarm:
            await swarm.add_peers([Span(0, 3)])
            context = swarm.client(ClientOptions(local_fallback=True)).conversation().context
            await context.move_to(PROMPT)
            state = context.session.export()
            await context.leave()
            await swarm.add_peers([Span(3, 6)])
            client = swarm.client()
            open_channel = client.network.open_channel

            async def watched(peer, protocol, timeout_s):
                asked.append(peer)
                return await open_channel(peer, protocol, timeout_s)

            client.network.open_channel = watched
            context = client.conversation().context
            await context.take_up(state, PROMPT)
            logits = await context.move_to(PROMPT)
            await context.close()
            return (
                [hop.peer for hop in state.hops],
                {hosted.id for hosted in swarm.peers},
                int(logits.argmax()),
            )

    before, hosting, token = run_virtual(run())
    assert "local" in before
    assert set(asked) == hosting
    assert token == reference.reply(PROMPT, 1)[0]
