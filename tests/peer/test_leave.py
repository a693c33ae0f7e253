"""A peer that leaves, or goes to sleep, whatever its clients do: who is told, when, and how long it takes."""

import asyncio

import pytest
from peer_scene import Scene, Stream

from swarm.wire.messages import Leaving, Ping, Pong


async def stuck_session(scene: Scene, **fields: object) -> Stream:
    """A session whose client takes nothing in any more, so that a frame to it waits for ever."""
    before = set(scene.hosted.peer.handler._streams)
    stream = await scene.session(**{"session": "stuck"} | fields)
    [new] = scene.hosted.peer.handler._streams - before
    await new.channel._sending.acquire()
    return stream


async def states(scene: Scene) -> list[str]:
    return [record.state for record in (await scene.swarm.client().snapshot()).peers]


def timed(begin):
    """How long a leave or a pause took, and what the record and a client said after a second of it."""

    async def scene(s):
        loop, stream = asyncio.get_running_loop(), await s.session()
        await stuck_session(s)
        await asyncio.sleep(1)
        started_at = loop.time()
        ending = asyncio.create_task(begin(s.hosted.peer))
        await asyncio.sleep(1)
        seen, told = await states(s), (await stream.channel.receive()).message
        await ending
        return seen, told, loop.time() - started_at

    return scene


def test_a_client_that_takes_nothing_in_keeps_nobody_from_hearing_of_the_leave(play):
    seen, told, took_s = play(timed(lambda peer: peer.leave(30.0)))
    assert (seen, told) == (["draining"], Leaving(seconds=30.0))
    assert took_s == pytest.approx(30, abs=0.1)


def test_nor_of_a_sleep(play):
    seen, told, took_s = play(timed(lambda peer: peer.pause(4.0)))
    assert (seen, told) == (["draining"], Leaving(seconds=4.0))
    assert took_s == pytest.approx(4, abs=0.1)


def test_a_client_that_takes_nothing_in_and_only_keeps_a_spare_is_not_waited_for(play):
    async def scene(s):
        await stuck_session(s, role="spare")
        await s.hosted.peer.pause(4.0)
        return asyncio.get_running_loop().time()

    assert play(scene) < 0.1


def test_streams_opened_since_a_sleep_that_was_announced_stay_when_the_clock_tells_of_it(play):
    async def scene(s):
        await asyncio.sleep(0.5)  # in the middle of a tick of the watch over the clock
        await s.hosted.peer.pause(0.1)
        s.sleep(90.0)
        await s.hosted.peer.resume()
        stream = await s.session()
        await asyncio.sleep(5)
        return (await stream.ask(Ping(id=1))).message, await states(s)

    assert play(scene) == (Pong(id=1, queue_depth=0), ["online"])


def test_a_sleep_that_nobody_announced_cuts_the_streams(play):
    async def scene(s):
        await s.session()
        s.sleep(90.0)
        await asyncio.sleep(2)
        return s.hosted.peer.handler.open_streams, await states(s)

    assert play(scene) == (0, ["online"])
