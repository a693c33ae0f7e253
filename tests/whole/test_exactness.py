"""What a replay keeps of the last bits in bf16, where they can turn a reply another way."""

import asyncio
from dataclasses import replace

import pytest
import torch

from swarm.client.client import ClientOptions
from swarm.model.compute import InlineCompute
from swarm.testing.clock import run_virtual
from swarm.values import Span

PROMPT = list(b"Once upon a time there was a swarm.")
LONG_PROMPT = [3 + number % 200 for number in range(500)]  # with the reply, more than is replayed exactly
TWICE = [Span(0, 2), Span(0, 2), Span(2, 4), Span(2, 4), Span(4, 6), Span(4, 6)]
AT, COUNT = 20, 30
BF16 = {"dtype": "bf16"}


def talk(
    virtual_swarm,
    options,
    prompt,
    *,
    kill=None,
    at=AT,
    spans=TWICE,
    later=(),
    late=2,
    edit=None,
    numbers=BF16,
):
    """The logits of each token of a greedy bf16 reply, and its resumes.

    A hop is killed before token `at`, peers come `later`, before token `late`, and before token 10 all
    from position `edit` on is given up.
    """

    async def run():
        async with virtual_swarm(**numbers, compute=lambda: InlineCompute(0.01)) as swarm:
            await swarm.add_peers(spans)
            context = swarm.client(options).conversation().context
            ids, seen = list(prompt), []
            for number in range(COUNT):
                if number == late:
                    await swarm.add_peers(later)
                if number == 10 and edit is not None:
                    ids = [*ids[:edit], 5]
                if kill is not None and number == at:
                    await asyncio.sleep(3)  # a spare has caught up
                    [victim] = [
                        hosted
                        for hosted in swarm.peers
                        if hosted.peer.announcer.profile.span == kill
                        and any(not session.spare for session in hosted.peer.sessions.all())
                    ]
                    await victim.kill()
                seen.append(await context.move_to(ids))
                ids.append(int(seen[-1].argmax()))
                await asyncio.sleep(0.1)
            resumes = context.session.resumes
            await context.close()
            return torch.stack(seen), resumes

    return run_virtual(run())


@pytest.mark.parametrize("span", [Span(0, 2), Span(2, 4), Span(4, 6)])
@pytest.mark.parametrize("recovery", ["auto", "exact"])
def test_a_short_history_is_replayed_to_the_bit(virtual_swarm, span, recovery):
    options = ClientOptions(spares="off", recovery=recovery)
    undisturbed, _ = talk(virtual_swarm, options, PROMPT)
    logits, [resume] = talk(virtual_swarm, options, PROMPT, kill=span)
    assert resume.exact
    assert resume.replayed_tokens >= len(PROMPT) + AT - 1
    assert torch.equal(logits, undisturbed)


@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
@pytest.mark.parametrize("quantization", ["int8", "int4"])
def test_quantised_weights_are_replayed_to_the_bit(virtual_swarm, dtype, quantization):
    options, numbers = ClientOptions(spares="off"), {"dtype": dtype, "quantization": quantization}
    undisturbed, _ = talk(virtual_swarm, options, PROMPT, numbers=numbers)
    logits, [resume] = talk(virtual_swarm, options, PROMPT, kill=Span(2, 4), numbers=numbers)
    assert resume.exact
    assert torch.equal(logits, undisturbed)


def test_who_computes_with_the_same_kernels_takes_over(virtual_swarm):
    async def run():
        async with virtual_swarm(dtype="bf16") as swarm:
            await swarm.add_peers([Span(0, 6)])
            context = swarm.client(ClientOptions(spares="off")).conversation().context
            await context.move_to(PROMPT)
            slow, fast = await swarm.add_peers([Span(0, 6), Span(0, 6)])
            slow.peer.threads.throughput = replace(slow.peer.threads.throughput, decode_tokens_per_s=1.0)
            fast.peer.announcer.computes_with("others")
            fast.peer.handler._hosting = replace(fast.peer.handler._hosting, kernels="others")
            for hosted in (slow, fast):
                await hosted.peer.announcer.announce()
            await swarm.peers[0].kill()
            await context.move_to([*PROMPT, 5])
            [hop] = context.session.hops
            await context.close()
            return hop.planned.peer, slow.id

    took_over, slow = run_virtual(run())
    assert took_over == slow


@pytest.mark.parametrize(("recovery", "prompt"), [("fast", PROMPT), ("auto", LONG_PROMPT)])
def test_a_replay_in_chunks_is_called_what_it_is(virtual_swarm, recovery, prompt):
    options = ClientOptions(spares="off", recovery=recovery)
    _, [resume] = talk(virtual_swarm, options, prompt, kill=Span(2, 4))
    assert not resume.exact


@pytest.mark.parametrize("at", [1, AT])
@pytest.mark.parametrize("span", [Span(0, 2), Span(2, 4), Span(4, 6)])
def test_a_spare_that_followed_step_by_step_is_exact_however_long_the_history(virtual_swarm, span, at):
    options = ClientOptions(spares="always")
    undisturbed, _ = talk(virtual_swarm, options, LONG_PROMPT)
    logits, [resume] = talk(virtual_swarm, options, LONG_PROMPT, kill=span, at=at)
    assert resume.exact
    assert resume.replayed_tokens < 20
    assert torch.equal(logits, undisturbed)


WIDE, CUT = [Span(0, 4), Span(4, 6)], [Span(0, 2), Span(2, 4)]


@pytest.mark.parametrize("late", [2, 18])
@pytest.mark.parametrize("spares", ["off", "always"])
def test_peers_with_another_cut_take_over_to_the_bit(virtual_swarm, spares, late):
    options, peers = ClientOptions(spares=spares), {"spans": WIDE, "later": CUT, "late": late}
    undisturbed, _ = talk(virtual_swarm, options, PROMPT, **peers)
    logits, [resume] = talk(virtual_swarm, options, PROMPT, **peers, kill=Span(0, 4))
    assert resume.exact
    assert torch.equal(logits, undisturbed)


def test_a_replay_of_a_step_that_an_edit_has_cut_is_not_called_exact(virtual_swarm):
    options = ClientOptions(spares="off", recovery="exact")
    again = [Span(0, 4)]
    _, [resume] = talk(virtual_swarm, options, PROMPT, spans=WIDE, later=again, edit=20, kill=Span(0, 4))
    assert not resume.exact
