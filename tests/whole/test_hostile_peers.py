"""A chain among strangers: peers that refuse for ever, and sessions that somebody else has changed."""

import asyncio
from dataclasses import replace

import pytest
import torch

from swarm.client.client import ClientOptions
from swarm.client.remote_hop import open_hop
from swarm.errors import SessionRefused
from swarm.model.compute import InlineCompute
from swarm.peer.sessions import SessionTable
from swarm.security.identity import new_identity
from swarm.testing.clock import run_virtual
from swarm.values import Span

PROMPT = list(b"Once upon a time there was a swarm.")
COUNT = 30
OPTIONS = ClientOptions(spares="off", lease_s=2.0)


@pytest.mark.parametrize("code", ["fenced", "owner", "capacity", "draining", "made_up"])
def test_a_peer_that_refuses_every_session_is_passed_over(virtual_swarm, reference, monkeypatch, code):
    async def run():
        async with virtual_swarm(compute=lambda: InlineCompute(0.02)) as swarm:
            liar, *_ = await swarm.add_peers([Span(0, 3), Span(3, 6), Span(0, 3)])
            asked = []

            def refuse(self: SessionTable, request, client, now):
                if self is liar.peer.sessions:
                    asked.append(request)
                    raise SessionRefused(code, "Not with me.")
                return honest(self, request, client, now)

            honest = SessionTable.open
            monkeypatch.setattr(SessionTable, "open", refuse)
            reply = await swarm.client(OPTIONS).generate(PROMPT, max_tokens=COUNT, stop_token_ids=frozenset())
            return reply.token_ids, len(asked), asyncio.get_running_loop().time()

    ids, asked, elapsed_s = run_virtual(run())
    assert list(ids) == reference.reply(PROMPT, COUNT)
    assert asked <= 2
    assert elapsed_s < 10


@pytest.mark.parametrize("epochs_ahead", [0, 5], ids=["the later take", "the earlier take"])
def test_a_session_that_somebody_changed_is_built_again(virtual_swarm, reference, epochs_ahead):
    """With the conversation's own key, as an earlier process of its owner has it: nobody else can."""

    async def run():
        async with virtual_swarm(compute=lambda: InlineCompute(0.02)) as swarm:
            await swarm.add_peers([Span(0, 3), Span(3, 6)])
            context = swarm.client(OPTIONS).conversation().context
            tokens = [int((await context.move_to(PROMPT)).argmax())]
            recovery, hop = context.session.recovery, context.session.hops[1]
            take = replace(recovery.settings, epoch=recovery.settings.epoch + 1)
            recovery.settings = replace(recovery.settings, epoch=recovery.settings.epoch + epochs_ahead)
            meddler = await open_hop(swarm.net.join(new_identity()), hop.planned, take)
            meddler.rewind(0)
            await meddler.step(torch.randn(len(PROMPT) + 9, take.hidden_size), 0)
            await meddler.drop()
            while len(tokens) < COUNT:
                tokens.append(int((await context.feed(tokens[-1:])).argmax()))
            await context.close()
            return tokens

    assert run_virtual(run()) == reference.reply(PROMPT, COUNT)
