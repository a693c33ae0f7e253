"""A session on real peers: what the machine behind it cannot see."""

import asyncio

import pytest

from swarm.client.client import ClientOptions
from swarm.errors import ManifestMismatch

OPTIONS = ClientOptions(spares="off")


def test_the_state_of_a_session_is_built_anew_only_when_it_has_changed(play):
    async def scene(swarm):
        context = swarm.client(OPTIONS).conversation().context
        before = context.session.export()
        await context.move_to([1, 2, 3])
        first = context.session.export()
        await context.feed([4])
        same = context.session.export()
        await context.move_to([1, 5])  # takes rows back on the peers
        cut = context.session.export()
        await context.close()
        return before, first is same, first.rewinds, cut.rewinds

    assert play(scene, "0:3 3:6") == (None, True, (0, 0), (1, 1))


def test_an_error_that_no_other_peer_would_mend_is_the_callers_and_costs_nothing(play):
    async def scene(swarm):
        context = swarm.client(OPTIONS).conversation().context
        planner = context.session.opener.planner
        fetch, planner._fetch = planner._fetch, refuse
        with pytest.raises(ManifestMismatch):
            await context.move_to([1, 2, 3])
        kept, planner._fetch = context.session.position, fetch
        await context.move_to([1, 2, 3])
        held = context.session.held
        await context.close()
        return kept, held, [len(peer.peer.sessions) for peer in swarm.peers]

    assert play(scene, "0:3 3:6") == (0, 3, [0, 0])


async def refuse():
    raise ManifestMismatch("The swarm hosts another model")


def test_a_session_that_ends_ends_the_call_that_is_under_way(play):
    async def scene(swarm):
        context = swarm.client(OPTIONS).conversation().context
        asking = asyncio.create_task(context.move_to([1, 2, 3]))
        await asyncio.sleep(0.5)
        await context.close()
        ended = await asyncio.gather(asking, return_exceptions=True)
        return type(ended[0]), [len(peer.peer.sessions) for peer in swarm.peers]

    assert play(scene, "0:6", cost_s=1.0) == (asyncio.CancelledError, [0])
