"""A chain among strangers: peers that refuse for ever, and sessions that somebody else has changed."""

import asyncio
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from swarm.client.client import ClientOptions
from swarm.client.routes import FIRST_BAN_S
from swarm.errors import SessionRefused
from swarm.model.compute import InlineCompute
from swarm.peer.sessions import SessionTable
from swarm.security.identity import new_identity
from swarm.session import driver
from swarm.session.opener import LATE_OPEN_S
from swarm.session.remote_hop import open_hop
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
            opener, hop = context.session.opener, context.session.hops[1]
            take = replace(opener.settings, epoch=opener.settings.epoch + 1)
            opener.settings = replace(opener.settings, epoch=opener.settings.epoch + epochs_ahead)
            meddler = await open_hop(swarm.net.join(new_identity()), hop.planned, take)
            meddler.rewind(0)
            await meddler.step(torch.randn(len(PROMPT) + 9, take.hidden_size), 0)
            await meddler.drop()
            while len(tokens) < COUNT:
                tokens.append(int((await context.feed(tokens[-1:])).argmax()))
            await context.close()
            return tokens

    assert run_virtual(run()) == reference.reply(PROMPT, COUNT)


def replied(virtual_swarm, disturb, options=OPTIONS):
    """A reply during which `disturb(peer)` is done to whoever serves the second half; its ids, how long it
    took, and the losses it tells of."""

    async def run():
        async with virtual_swarm(compute=lambda: InlineCompute(0.02)) as swarm:
            await swarm.add_peers([Span(0, 3), Span(3, 6), Span(3, 6)])
            generation = swarm.client(options).generate(PROMPT, max_tokens=COUNT, stop_token_ids=frozenset())
            pieces = aiter(generation)
            ids = [(await anext(pieces)).token_id for _ in range(10)]
            [serving] = [
                hosted
                for hosted in swarm.peers
                if hosted.peer.handler.active_streams and hosted.peer.announcer.profile.span.start == 3
            ]
            begun = asyncio.get_running_loop().time()
            disturb(serving)
            async for piece in pieces:
                ids.append(piece.token_id)
            lost = [resume.reason for resume in generation.reply.resumes]
            return ids, asyncio.get_running_loop().time() - begun, lost

    return run_virtual(run())


def beats_and_computes_nothing(hosted) -> None:
    hosted.peer.executor._compute = InlineCompute(1e6)


def test_a_peer_that_only_beats_is_left_for_a_replica_as_soon_as_it_is_late(virtual_swarm, reference):
    ids, elapsed_s, lost = replied(virtual_swarm, beats_and_computes_nothing)
    assert ids == reference.reply(PROMPT, COUNT)
    assert lost == ["it answers far too late"]
    assert elapsed_s < 5


@pytest.mark.parametrize("patience_s", [1.0, 5.0])
def test_patience_is_for_blocks_that_nobody_has(virtual_swarm, reference, patience_s, monkeypatch):
    """A loss that is noticed later than the patience lasts is made good all the same."""
    monkeypatch.setattr(driver, "LOOK_EVERY_S", 1e6)  # so that only the deadline notices it
    options = ClientOptions(spares="off", lease_s=2.0, patience_s=patience_s)
    ids, elapsed_s, lost = replied(virtual_swarm, beats_and_computes_nothing, options=options)
    assert ids == reference.reply(PROMPT, COUNT)
    assert elapsed_s > patience_s
    assert lost == ["no answer within 20 s"]


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf"), 3e38, -1e13])
def test_an_answer_that_no_model_computes_is_a_loss_and_is_not_kept(virtual_swarm, reference, value):
    def answer_nonsense(hosted) -> None:
        model = hosted.peer.executor._model
        honest = model.forward

        def forward(batch, span=None):
            return [rows.index_fill(1, torch.tensor([7]), value) for rows in honest(batch, span)]

        hosted.peer.executor._model = SimpleNamespace(forward=forward, dtype=model.dtype)

    ids, elapsed_s, lost = replied(virtual_swarm, answer_nonsense)
    assert ids == reference.reply(PROMPT, COUNT)
    assert lost == ["it answered what no model computes"]
    assert elapsed_s < 5


def test_a_replica_that_fell_silent_while_idle_costs_one_new_chat_less_than_a_second(
    virtual_swarm, reference
):
    async def run():
        async with virtual_swarm() as swarm:
            await swarm.add_peers([Span(0, 6), Span(0, 6)])
            client, clock = swarm.client(OPTIONS), asyncio.get_running_loop().time
            first = await client.generate(PROMPT, max_tokens=2, stop_token_ids=frozenset())
            swarm.net.freeze(first.hops[0].peer)
            took_s = []
            for _ in range(3):
                begun = clock()
                reply = await client.generate(PROMPT, max_tokens=COUNT, stop_token_ids=frozenset())
                took_s.append(clock() - begun)
                assert list(reply.token_ids) == reference.reply(PROMPT, COUNT)
                await asyncio.sleep(FIRST_BAN_S + 1)
            return took_s

    took_s = run_virtual(run())
    assert took_s[0] < LATE_OPEN_S + 0.3
    assert max(took_s[1:]) < 0.3
