"""The link emulator between a client and a server that are plain sockets."""

import asyncio
import time
from contextlib import asynccontextmanager

import pytest

from swarm.network.memory import LinkConditions
from swarm.testing.links import HOST, LinkEmulator

QUIET_S = 0.2  # long enough to tell that nothing comes


async def echo(reader, writer):
    try:
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
    except ConnectionError:
        pass
    finally:
        writer.close()


@asynccontextmanager
async def emulated():
    """An emulator in front of an echo server."""
    server = await asyncio.start_server(echo, HOST, 0)
    emulator = await LinkEmulator.start(server.sockets[0].getsockname()[1], seed=1)
    try:
        yield emulator
    finally:
        await emulator.close()
        server.close()


async def connect(emulator):
    return await asyncio.open_connection(HOST, emulator.port)


async def round_trip(reader, writer, data=b"hello"):
    started_at = time.monotonic()
    writer.write(data)
    assert await reader.readexactly(len(data)) == data
    return time.monotonic() - started_at


async def quickest(measure, enough_s):
    """The shortest of several times, up to one that is short enough: a busy machine only adds to each."""
    took_s = [await measure()]
    while len(took_s) < 10 and min(took_s) >= enough_s:
        took_s.append(await measure())
    return min(took_s)


async def is_silent(reader):
    try:
        async with asyncio.timeout(QUIET_S):
            await reader.read(1)
    except TimeoutError:
        return True
    return False


async def test_bytes_pass_both_ways_and_so_does_the_end():
    async with emulated() as emulator:
        reader, writer = await connect(emulator)
        await round_trip(reader, writer, b"x" * 300_000)
        writer.write_eof()
        assert await reader.read() == b""


@pytest.mark.parametrize("direction", ["to_peer", "from_peer"])
async def test_a_delay_counts_in_the_direction_it_was_set_for(direction):
    async with emulated() as emulator:
        reader, writer = await connect(emulator)
        emulator.set_link(**{direction: LinkConditions(delay_s=0.5)})
        assert 0.5 <= await quickest(lambda: round_trip(reader, writer), 1.0) < 1.0
        emulator.set_link()
        assert await quickest(lambda: round_trip(reader, writer), 0.5) < 0.5


async def test_delayed_bytes_travel_together_and_in_order():
    async with emulated() as emulator:
        reader, writer = await connect(emulator)
        emulator.set_link(to_peer=LinkConditions(delay_s=0.1, jitter_s=0.05))

        async def travel():
            started_at = time.monotonic()
            for number in range(20):
                writer.write(bytes([number]))
                await asyncio.sleep(0.002)
            assert await reader.readexactly(20) == bytes(range(20))
            return time.monotonic() - started_at

        assert await quickest(travel, 2.0) < 2.0  # one after the other they would take twenty times a tenth


async def test_bandwidth_is_shared_out_by_the_byte():
    async with emulated() as emulator:
        reader, writer = await connect(emulator)
        emulator.set_link(to_peer=LinkConditions(rate_bytes_per_s=500_000))
        measure = lambda: round_trip(reader, writer, b"x" * 100_000)  # noqa: E731
        assert 0.19 <= await quickest(measure, 1.0) < 1.0


async def test_a_stall_holds_bytes_back_until_it_is_over():
    async with emulated() as emulator:
        reader, writer = await connect(emulator)
        emulator.set_link(to_peer=LinkConditions(stalled=True))
        writer.write(b"hello")
        assert await is_silent(reader)
        emulator.set_link()
        assert await reader.readexactly(5) == b"hello"


@pytest.mark.parametrize("direction", ["to_peer", "from_peer"])
async def test_a_connection_that_lost_bytes_in_a_blackhole_breaks_when_it_closes(direction):
    async with emulated() as emulator:
        reader, writer = await connect(emulator)
        untouched, _ = await connect(emulator)
        await round_trip(reader, writer)
        emulator.set_link(**{direction: LinkConditions(blackhole=True)})
        writer.write(b"hello")
        assert await is_silent(reader)
        emulator.set_link()
        with pytest.raises(ConnectionResetError):
            await reader.readexactly(5)
        assert await is_silent(untouched)


async def test_a_cut_breaks_what_is_open_and_refuses_what_is_new():
    async with emulated() as emulator:
        reader, _ = await connect(emulator)
        emulator.set_link(to_peer=LinkConditions(cut=True))
        with pytest.raises(ConnectionResetError):
            await reader.readexactly(1)
        reader, writer = await connect(emulator)
        with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
            await round_trip(reader, writer)
        emulator.set_link()
        await round_trip(*await connect(emulator))


async def test_a_peer_that_is_down_resets_its_callers():
    emulator = await LinkEmulator.start(target_port=1)
    reader, _ = await connect(emulator)
    with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
        await reader.readexactly(1)
    await emulator.close()


async def test_closing_leaves_no_connection_and_no_task():
    before = asyncio.all_tasks()
    async with emulated() as emulator:
        reader, writer = await connect(emulator)
        await round_trip(reader, writer)
        assert emulator.connections == 1
    assert emulator.connections == 0
    writer.close()
    async with asyncio.timeout(60):
        while asyncio.all_tasks() != before:  # noqa: ASYNC110 - the server's own tasks end in their own time
            await asyncio.sleep(0.01)
