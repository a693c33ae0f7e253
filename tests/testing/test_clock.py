"""Virtual time: it jumps, waits for threads, and tells when nothing can happen."""

import asyncio
import time

import pytest

from swarm.testing.clock import Deadlock, run_virtual


def test_an_hour_passes_at_once() -> None:
    async def sleep() -> float:
        await asyncio.sleep(3600)
        return asyncio.get_running_loop().time()

    started = time.monotonic()
    assert run_virtual(sleep()) == 3600
    assert time.monotonic() - started < 3600


def test_timers_fire_in_the_order_of_their_time() -> None:
    async def race() -> list[tuple[float, int]]:
        seen: list[tuple[float, int]] = []

        async def note(after_s: float) -> None:
            await asyncio.sleep(after_s)
            seen.append((asyncio.get_running_loop().time(), int(after_s)))

        await asyncio.gather(note(30), note(10), note(20))
        return seen

    assert run_virtual(race()) == [(10, 10), (20, 20), (30, 30)]


def test_timeouts_are_exact() -> None:
    async def wait() -> float:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(2.5):
                await asyncio.Event().wait()
        return asyncio.get_running_loop().time()

    assert run_virtual(wait()) == 2.5


def test_time_stands_still_while_a_thread_works() -> None:
    async def work() -> float:
        async with asyncio.timeout(0.01):
            await asyncio.to_thread(time.sleep, 0.05)
        return asyncio.get_running_loop().time()

    assert run_virtual(work()) == 0


def test_waiting_for_ever_is_an_error_that_names_who_waits() -> None:
    async def wait() -> None:
        waiter = asyncio.create_task(asyncio.Event().wait(), name="the waiter")
        await waiter

    with pytest.raises(Deadlock, match="the waiter"):
        run_virtual(wait())


def test_errors_come_through() -> None:
    async def fail() -> None:
        await asyncio.sleep(1)
        raise KeyError("lost")

    with pytest.raises(KeyError, match="lost"):
        run_virtual(fail())
