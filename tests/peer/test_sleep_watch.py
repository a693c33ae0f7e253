"""A peer notices that it slept, and takes nothing else for a sleep."""

import asyncio
import sys
import time
from pathlib import Path

import pytest

from swarm.peer.sleep import SleepWatch, boot_clock
from swarm.testing.clock import run_virtual


def naps_noticed(disturb) -> list[float]:
    """What is noticed when `disturb(loop, slept, watch)` happens between two ticks."""

    async def run():
        loop, naps, slept = asyncio.get_running_loop(), [], []

        async def on_wake(seconds: float) -> None:
            naps.append(seconds)

        watch = SleepWatch(lambda: 1e5 + loop.time() + sum(slept))
        watching = asyncio.create_task(watch.run(on_wake))
        await asyncio.sleep(5.5)
        disturb(loop, slept, watch)
        await asyncio.sleep(10)
        watching.cancel()
        return naps

    return run_virtual(run())


def test_a_suspended_machine_shows_though_the_clock_of_the_loop_stood_still():
    [slept] = naps_noticed(lambda loop, slept, watch: slept.append(90.0))
    assert slept == pytest.approx(90)


def test_a_frozen_process_shows_in_its_own_lateness():
    def freeze(loop, slept, watch):
        loop._now_s += 90.0  # the loop did not run while time went on

    [slept] = naps_noticed(freeze)
    assert 89 <= slept <= 91


def test_a_busy_machine_is_no_sleep():
    assert naps_noticed(lambda loop, slept, watch: slept.append(2.0)) == []


def test_a_sleep_that_is_known_already_is_not_told_again_and_the_next_one_is():
    def known(loop, slept, watch):
        slept.append(90.0)
        watch.forget()
        loop.call_later(5, slept.append, 50.0)

    [slept] = naps_noticed(known)
    assert slept == pytest.approx(50)


def test_awake_the_clock_goes_on_like_the_monotonic_one():
    def read() -> tuple[float, float, float]:
        return time.monotonic(), boot_clock(), time.monotonic()

    before, began, after = read()
    time.sleep(0.02)
    earliest, ended, latest = read()
    assert earliest - after - 0.001 <= ended - began <= latest - before + 0.001


@pytest.mark.skipif(sys.platform != "linux", reason="/proc/uptime is Linux's")
def test_the_clock_counts_sleep_as_the_uptime_of_the_system_does():
    def uptime_s() -> float:
        return float(Path("/proc/uptime").read_text().split()[0])

    assert uptime_s() - 0.02 <= boot_clock() <= uptime_s() + 0.02  # it is told in hundredths
