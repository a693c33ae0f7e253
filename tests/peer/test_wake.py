"""A peer notices that it slept, whichever clock tells."""

import asyncio

from swarm.peer.wake import watch_for_sleep
from swarm.testing.clock import run_virtual


def naps_noticed(disturb) -> list[float]:
    async def run():
        loop, naps, offset = asyncio.get_running_loop(), [], [0.0]

        async def on_wake(seconds: float) -> None:
            naps.append(seconds)

        watching = asyncio.create_task(watch_for_sleep(lambda: 1e9 + loop.time() + offset[0], on_wake))
        await asyncio.sleep(5.5)
        disturb(loop, offset)
        await asyncio.sleep(10)
        watching.cancel()
        return naps

    return run_virtual(run())


def test_a_suspended_machine_shows_in_the_wall_clock():
    def suspend(loop, offset):
        offset[0] += 90.0

    [slept] = naps_noticed(suspend)
    assert 89 <= slept <= 91


def test_a_frozen_process_shows_in_its_own_lateness():
    def freeze(loop, offset):
        loop._now_s += 90.0  # the loop did not run while time went on

    [slept] = naps_noticed(freeze)
    assert 89 <= slept <= 91


def test_a_busy_machine_or_a_clock_set_back_is_no_sleep():
    def jitter(loop, offset):
        offset[0] += 2.0
        loop.call_later(3, offset.__setitem__, 0, -100.0)

    assert naps_noticed(jitter) == []
