"""Room for bodies: for each client and for all, in order, and given back."""

import asyncio

import pytest

from swarm.errors import SessionRefused
from swarm.peer.inbox import COPIES, SHARE, WAIT_S, InFlight, Room
from swarm.testing.clock import run_virtual
from swarm.values import PeerId

A, B = PeerId("a"), PeerId("b")
LARGEST = 100
TOTAL = COPIES * LARGEST * SHARE * 2  # two bodies for each client, four for all


def test_one_client_has_its_share_and_another_still_finds_room():
    async def run():
        room = InFlight(TOTAL, LARGEST)
        for _ in range(2):
            await room.reserve(A, LARGEST)
        with pytest.raises(SessionRefused, match="no room"):
            await room.reserve(A, LARGEST)
        waited_s = asyncio.get_running_loop().time()
        await room.reserve(B, LARGEST)
        return waited_s, room.held_bytes

    assert run_virtual(run()) == (WAIT_S, 3 * COPIES * LARGEST)


def test_all_clients_together_stay_within_the_total():
    async def run():
        room = InFlight(TOTAL, LARGEST)
        clients = [PeerId(str(number)) for number in range(50)]
        waiting = [asyncio.create_task(room.reserve(client, LARGEST)) for client in clients]
        await asyncio.sleep(1)
        held = room.held_bytes
        for task in waiting:
            task.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)
        return held, sum(task.cancelled() for task in waiting)

    assert run_virtual(run()) == (TOTAL, 46)


def test_who_waits_gets_what_another_gives_back():
    async def run():
        room = InFlight(0, LARGEST)
        await room.reserve(A, LARGEST)
        waiting = asyncio.create_task(room.reserve(B, LARGEST))
        await asyncio.sleep(1)
        assert not waiting.done()
        room.release(A, LARGEST)
        await waiting
        return room.held_bytes

    assert run_virtual(run()) == COPIES * LARGEST


def test_a_wait_that_is_cancelled_as_it_ends_holds_nothing():
    async def run():
        room = InFlight(0, LARGEST)
        await room.reserve(A, LARGEST)
        waiting = asyncio.create_task(room.reserve(B, LARGEST))
        await asyncio.sleep(1)
        room.release(A, LARGEST)
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        return room.held_bytes

    assert run_virtual(run()) == 0


def test_a_stream_that_ends_gives_back_all_it_holds():
    async def run():
        in_flight = InFlight(TOTAL, LARGEST)
        room = Room(in_flight, A)
        await room.reserve(10)
        await room.reserve(20)
        room.release(10)
        room.close()
        room.close()
        return in_flight.held_bytes

    assert run_virtual(run()) == 0
