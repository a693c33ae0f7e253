"""Opening a chain is all or nothing, and settles the numerics."""

import asyncio

import pytest

from swarm.client.client import ClientOptions
from swarm.errors import NoRoute
from swarm.session.opener import Opener
from swarm.testing.swarm import InProcessSwarm
from swarm.values import Span
from swarm.wire.messages import SESSION_PROTOCOL, Fault

WHOLE = Span(0, 6)


def opener_of(swarm: InProcessSwarm, **options) -> Opener:
    return swarm.client(ClientOptions(**options)).conversation().context.session.opener


async def refuse(channel) -> None:
    """A peer that takes no sessions any more, whatever its record says."""
    await channel.receive()
    await channel.send(
        Fault(code="capacity", text="This peer's memory for sessions is full.", retryable=True)
    )


def sessions(swarm: InProcessSwarm) -> list[int]:
    return [len(hosted.peer.sessions) for hosted in swarm.peers]


def test_the_first_chain_settles_numerics_and_codec(play):
    async def scene(swarm):
        opener = opener_of(swarm)
        hops = await opener.open_chain(WHOLE)
        settled = str(opener.numerics), opener.settings.codec, opener.settled
        await asyncio.gather(*(hop.close(1.0) for hop in hops))
        return [str(hop.planned.span) for hop in hops], settled, sessions(swarm)

    assert play(scene, "0:2 2:6") == (["0:2", "2:6"], ("fp32", "fp32", True), [0, 0])


async def asked(swarm: InProcessSwarm, **options):
    """A reply of two tokens, what the client was told meanwhile, and the sessions that are left."""
    waits = []
    client = swarm.client(ClientOptions(on_wait=waits.append, **options))
    client._routes.heard(swarm.peers[-1].id, 0.9)  # so that the others are tried first
    try:
        reply = await client.generate([1, 2, 3], max_tokens=2, stop_token_ids=frozenset())
    finally:
        await asyncio.sleep(1)
    return reply, [wait.what for wait in waits], sessions(swarm)


def test_a_peer_that_refuses_is_replaced_and_no_half_chain_is_left(play):
    async def scene(swarm):
        full, other = swarm.peers[1], swarm.peers[2]
        await full.network.serve(SESSION_PROTOCOL, refuse)
        reply, waits, left = await asked(swarm)
        return reply.hops[1].peer == other.id, waits, left

    assert play(scene, "0:3 3:6 3:6") == (
        True,
        ["No live peer hosts blocks 0:6 (this peer's memory for sessions is full)"],
        [0, 0, 0],
    )


def test_when_all_are_full_the_error_says_so_and_names_the_blocks(play):
    async def scene(swarm):
        await swarm.peers[1].network.serve(SESSION_PROTOCOL, refuse)
        with pytest.raises(NoRoute) as error:
            await asked(swarm, patience_s=2.0)
        return str(error.value), sessions(swarm), asyncio.get_running_loop().time()

    told, left, ended_at = play(scene, "0:3 3:6")
    assert told == (
        "The peers that host blocks 3:6 have no room for another session. "
        "Try again in a while, or start another peer for these blocks."
    )
    assert left == [0, 0]
    assert ended_at < 5


def test_opening_that_is_cancelled_leaves_no_session(play):
    async def silent(channel) -> None:
        await asyncio.sleep(3600)

    async def scene(swarm):
        await swarm.peers[1].network.serve(SESSION_PROTOCOL, silent)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.5):
                await opener_of(swarm).open_chain(WHOLE)
        await asyncio.sleep(0.1)
        return sessions(swarm)

    assert play(scene, "0:3 3:6") == [0, 0]


def test_each_attempt_has_a_higher_epoch(play):
    async def scene(swarm):
        opener = opener_of(swarm)
        epochs = []
        for _ in range(2):
            hops = await opener.open_chain(WHOLE)
            epochs.append(opener.settings.epoch)
            await asyncio.gather(*(hop.drop() for hop in hops))
        return epochs

    assert play(scene) == [1, 2]


def test_takes_that_begin_at_once_have_epochs_of_their_own(play):
    async def scene(swarm):
        context = swarm.client().conversation().context
        await context.move_to([1, 2, 3, 4])
        [hop], opener = context.session.hops, context.session.opener
        taken = await asyncio.gather(
            opener.open_beside(hop.planned, "spare"), opener.open_beside(hop.planned, "spare")
        )
        epochs = sorted(session.epoch for peer in swarm.peers for session in peer.peer.sessions.all())
        for hops in taken:
            await hops[0].close(1.0)
        await context.close()
        return epochs

    assert play(scene, "0:6 0:6") == [1, 3]


def test_a_lost_hop_that_is_found_again_still_holds_what_it_held(play):
    async def scene(swarm):
        client = swarm.client()
        context = client.conversation().context
        await context.move_to([1, 2, 3, 4])
        [old] = context.session.hops
        opener = context.session.opener
        await opener.let_go(old)
        [new] = await opener.open_chain(WHOLE, {old: 4})
        held = new.position
        await new.close(1.0)
        return held

    assert play(scene) == 4
