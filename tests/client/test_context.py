"""A context holds token ids, and moving to others costs only what differs."""

import asyncio

import pytest
import torch

from swarm.client.client import ClientOptions
from swarm.errors import NoRoute

PROMPT = list(range(40, 60))


def sent(context) -> int:
    """Rows pushed through the first hop so far."""
    return context.session.hops[0].stats.tokens


@pytest.mark.parametrize(
    ("next_ids", "new"),
    [
        ([*PROMPT, 7, 8], 2),
        (PROMPT, 1),  # its last token again: that one's logits are asked for
        ([*PROMPT[:15], 7], 1),
        (PROMPT[:15], 1),
        ([7, 8, 9], 3),
    ],
)
def test_moving_to_other_ids_feeds_only_what_is_not_shared(play, next_ids, new):
    async def scene(swarm):
        context = swarm.client().conversation().context
        await context.move_to(PROMPT)
        before = sent(context)
        logits = await context.move_to(next_ids)
        fed, held = sent(context) - before, list(context.ids)
        await context.close()
        fresh = swarm.client().conversation().context
        expected = await fresh.move_to(next_ids)
        await fresh.close()
        return fed, held, torch.allclose(logits, expected, atol=1e-4)

    assert play(scene, "0:3 3:6") == (new, next_ids, True)


def test_a_cancelled_feed_leaves_ids_and_session_in_step(play):
    async def scene(swarm):
        context = swarm.client().conversation().context
        await context.move_to(PROMPT)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.5):
                await context.feed([1, 2, 3])
        assert len(context.ids) == context.session.position
        logits = await context.move_to([*PROMPT, 1])
        await context.close()
        fresh = swarm.client().conversation().context
        same = torch.allclose(logits, await fresh.move_to([*PROMPT, 1]), atol=1e-4)
        await fresh.close()
        return same

    assert play(scene, "0:3 3:6", cost_s=1.0)


def test_a_closed_context_leaves_no_session(play):
    async def scene(swarm):
        context = swarm.client().conversation().context
        await context.move_to(PROMPT)
        await context.close()
        return [len(peer.peer.sessions) for peer in swarm.peers], list(context.ids)

    assert play(scene, "0:3 3:6") == ([0, 0], [])


def test_a_context_without_a_chain_holds_nothing(play):
    async def scene(swarm):
        context = swarm.client(ClientOptions(patience_s=0.0)).conversation().context
        with pytest.raises(NoRoute):
            await context.move_to(PROMPT)
        return list(context.ids), [len(peer.peer.sessions) for peer in swarm.peers]

    assert play(scene, "0:3") == ([], [0])
