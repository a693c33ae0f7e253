"""The real node: starts that fail, deaths of every part, and a swarm that outlives its bootstrap."""

import asyncio
import contextlib
import errno
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import psutil
import pytest
from hivemind.p2p import P2PHandlerError, PeerID

from swarm.errors import (
    ChannelClosed,
    ClockSkew,
    JoinFailed,
    NetworkError,
    PeerUnreachable,
    PortInUse,
    UsageError,
)
from swarm.network.addresses import parse_join_address
from swarm.network.channel import Channel
from swarm.network.libp2p import Libp2pConfig, Libp2pNetwork
from swarm.network.memory import LinkConditions
from swarm.network.node import Node, multiaddr, readable
from swarm.security.identity import Identity, new_identity
from swarm.testing.links import LinkEmulator
from swarm.wire.directory import DIRECTORY_PROTOCOL, Hello, Store, Stored, Welcome, decode_answer, encode
from swarm.wire.messages import Ping
from swarm.wire.records import PeerRecord, seal

pytestmark = pytest.mark.live
ECHO = "/test/echo/1"
KEY = f"peers/{'ab' * 32}/0"
OPEN_S, SOON_S = 30.0, 60.0  # no machine is so slow that what works takes longer
SCRIPT = Path(__file__).with_name("node_process.py")


async def echo(channel: Channel) -> None:
    while True:
        message, body = await channel.receive()
        await channel.send(message, body)


Start = Callable[..., Awaitable[Libp2pNetwork]]


@pytest.fixture
async def start() -> AsyncIterator[Start]:
    """Starts nodes that are closed at the end."""
    started: list[Libp2pNetwork] = []

    async def start_node(identity: Identity | None = None, **config: object) -> Libp2pNetwork:
        settings = Libp2pConfig(**({"watch_interval_s": 0.2} | config))
        started.append(await Libp2pNetwork.start(settings, identity or new_identity()))
        return started[-1]

    yield start_node
    for network in started:
        await network.close()


@pytest.fixture
def spawn() -> object:
    """Starts node processes that are killed at the end; gives each with its address."""
    processes: list[subprocess.Popen[str]] = []

    def spawn_node(*join: str, ahead_s: float = 0.0) -> tuple[subprocess.Popen[str], str]:
        command = [sys.executable, str(SCRIPT), str(ahead_s), *join]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        processes.append(process)
        assert process.stdout is not None
        return process, process.stdout.readline().strip()

    yield spawn_node
    for process in processes:
        process.kill()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()


def living(processes: list[psutil.Process]) -> list[psutil.Process]:
    """Those still running; a zombie waits for nobody but init."""
    alive = []
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            if process.status() != psutil.STATUS_ZOMBIE:
                alive.append(process)
    return alive


def own_daemons() -> list[psutil.Process]:
    return [child for child in psutil.Process().children(recursive=True) if child.name() == "p2pd"]


async def eventually(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(SOON_S):
        while not condition():  # noqa: ASYNC110 - what is waited for has no event
            await asyncio.sleep(0.02)


async def says_hello(client: Libp2pNetwork, server: Libp2pNetwork) -> None:
    channel = await client.open_channel(server.peer_id, ECHO, OPEN_S)
    await channel.send(Ping(id=1))
    assert (await asyncio.wait_for(channel.receive(), SOON_S)).message == Ping(id=1)
    channel.close()


async def says_hello_in_the_end(client: Libp2pNetwork, server: Libp2pNetwork) -> None:
    """libp2p may have to look for an address first."""
    async with asyncio.timeout(SOON_S):
        while True:
            with contextlib.suppress(PeerUnreachable):
                return await says_hello(client, server)
            await asyncio.sleep(0.2)


def test_importing_the_network_loads_neither_hivemind_nor_torch() -> None:
    check = "import sys, swarm.network.libp2p; sys.exit(bool({'hivemind', 'torch'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", check], check=False).returncode == 0


async def test_malformed_join_address_is_refused_before_anything_starts() -> None:
    with pytest.raises(UsageError, match="/p2p/<peer id>"):
        await Libp2pNetwork.start(Libp2pConfig(join=("127.0.0.1:31337",)), new_identity())
    assert own_daemons() == []


async def test_join_address_that_nobody_answers_is_named() -> None:
    address = f"/ip4/127.0.0.1/tcp/9/p2p/{new_identity().peer_id}"
    with pytest.raises(JoinFailed, match=address):
        await Libp2pNetwork.start(Libp2pConfig(join=(address,)), new_identity())
    assert own_daemons() == []


async def test_one_answering_join_address_of_two_is_enough(start: Start) -> None:
    first = await start()
    dead = f"/ip4/127.0.0.1/tcp/9/p2p/{new_identity().peer_id}"
    await first.serve(ECHO, echo)
    await says_hello(await start(join=(dead, *first.addresses)), first)


async def test_join_address_of_another_identity_does_not_answer(start: Start) -> None:
    first = await start()
    route = parse_join_address(first.addresses[0]).route
    with pytest.raises(JoinFailed):
        await start(join=(f"{route}/p2p/{new_identity().peer_id}",))


@pytest.mark.parametrize("holder", ["another program", "another node"])
async def test_port_in_use_is_refused(start: Start, holder: str) -> None:
    with contextlib.ExitStack() as stack:
        if holder == "another node":
            port = int(parse_join_address((await start()).addresses[0]).route.rpartition("/")[2])
        else:
            listener = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
            port = listener.getsockname()[1]
        with pytest.raises(PortInUse, match=str(port)):
            await start(listen=(f"127.0.0.1:{port}",))


async def test_clocks_too_far_apart_are_named(spawn: Callable[..., tuple[object, str]]) -> None:
    _, address = spawn(ahead_s=10.0)
    with pytest.raises(ClockSkew, match="clock"):
        await Libp2pNetwork.start(Libp2pConfig(join=(address,)), new_identity())


async def test_killed_process_leaves_neither_daemon_nor_guard(
    spawn: Callable[..., tuple[subprocess.Popen[str], str]],
) -> None:
    process, _ = spawn()
    children = psutil.Process(process.pid).children(recursive=True)
    assert {child.name() for child in children} == {"p2pd", "sh"}
    guard = next(child for child in children if child.name() == "sh")
    directory = guard.cmdline()[4]  # sh -c SCRIPT NAME DIRECTORY
    process.kill()
    await eventually(lambda: not living(children))
    assert not os.path.exists(directory)  # noqa: ASYNC240 - a test may block


async def test_death_of_the_remote_process_closes_the_channel_at_once(
    start: Start, spawn: Callable[..., tuple[subprocess.Popen[str], str]]
) -> None:
    process, address = spawn()
    network = await start(join=(address,))
    channel = await network.open_channel(parse_join_address(address).peer, ECHO, OPEN_S)
    await channel.send(Ping(id=1))
    assert (await channel.receive()).message == Ping(id=1)
    process.kill()
    with pytest.raises(ChannelClosed):
        await asyncio.wait_for(channel.receive(), SOON_S)


async def test_node_whose_daemon_dies_comes_back_at_the_same_address(start: Start) -> None:
    server = await start()
    await server.serve(ECHO, echo)
    (daemon,) = own_daemons()
    client = await start(join=server.addresses)
    addresses = server.addresses
    channel = await client.open_channel(server.peer_id, ECHO, OPEN_S)
    daemon.kill()
    with pytest.raises(ChannelClosed):
        await asyncio.wait_for(channel.receive(), SOON_S)
    await says_hello_in_the_end(
        client, server
    )  # the client's own dials may have to back off for some seconds
    assert server.addresses == addresses


async def test_opening_while_the_daemon_is_dead_ends_in_time(start: Start) -> None:
    server = await start()
    client = await start(join=server.addresses)
    for daemon in own_daemons():
        daemon.kill()
    async with asyncio.timeout(SOON_S):
        with pytest.raises(PeerUnreachable):
            await client.open_channel(server.peer_id, ECHO, 0.3)


async def test_closing_waits_for_no_daemon_that_is_dead(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("swarm.network.daemon._STOP_TIMEOUT_S", 1000.0)
    network = await start()
    (daemon,) = own_daemons()
    daemon.kill()
    async with asyncio.timeout(SOON_S):
        await network.close()
    assert living(own_daemons()) == []


async def test_swarm_without_its_bootstrap_can_still_be_joined(start: Start, tmp_path: Path) -> None:
    bootstrap = await start()
    remembered = tmp_path / "peers.json"
    server = await start(join=bootstrap.addresses)
    await server.serve(ECHO, echo)
    newcomer = await start(join=bootstrap.addresses, peer_list=remembered)
    await eventually(lambda: remembered.exists() and server.peer_id in remembered.read_text())
    await newcomer.close()
    await bootstrap.close()
    returned = await start(join=bootstrap.addresses, peer_list=remembered)
    await says_hello(returned, server)


async def test_nodes_met_in_one_swarm_are_not_joined_from_another(start: Start, tmp_path: Path) -> None:
    remembered = tmp_path / "peers.json"
    first, second = await start(), await start()
    identity = new_identity()
    node = await start(identity, join=first.addresses, peer_list=remembered)
    await eventually(lambda: remembered.exists() and first.peer_id in remembered.read_text())
    await node.close()
    await first.serve(ECHO, echo)
    for join in (second.addresses, ()):
        node = await start(identity, join=join, peer_list=remembered)
        with pytest.raises(PeerUnreachable):
            await node.open_channel(first.peer_id, ECHO, 1.0)
        await node.close()


async def test_peer_that_comes_back_elsewhere_is_reached_as_soon_as_its_record_is_seen(start: Start) -> None:
    bootstrap, identity = await start(), new_identity()

    async def publish(server: Libp2pNetwork) -> None:
        now = time.time()
        record = PeerRecord(
            peer=identity.peer_id, model="ab" * 32, issued_at=now, expires_at=now + 30,
            sequence=int(now * 1e3), start=0, end=2,
            state="online", dtype="fp32", quantization="none", decode_tokens_per_s=1.0,
            prefill_tokens_per_s=1.0, free_tokens=1, queue_depth=0, wire_version=1, software="0",
            started_at=now,
        )  # fmt: skip
        assert await server.store(KEY, seal(record, identity.sign))

    server = await start(identity, join=bootstrap.addresses)
    await server.serve(ECHO, echo)
    await publish(server)
    client = await start(join=bootstrap.addresses, client=True)
    await says_hello(client, server)
    assert [record.peer for record in (await client.fetch(KEY)).records] == [identity.peer_id]
    await server.close()
    with pytest.raises(PeerUnreachable):
        await client.open_channel(identity.peer_id, ECHO, 5.0)
    moved = await start(identity, join=bootstrap.addresses)
    assert moved.addresses != server.addresses
    await moved.serve(ECHO, echo)
    await publish(moved)
    assert [record.peer for record in (await client.fetch(KEY)).records] == [identity.peer_id]
    await says_hello_in_the_end(client, moved)  # without the record libp2p is not even asked for 30 s


async def test_node_whose_daemon_cannot_be_started_at_once_tries_again(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = await start()
    await server.serve(ECHO, echo)
    client = await start(join=server.addresses)
    failures = iter([OSError(errno.ENOSPC, "No space left"), NetworkError("identify failed")])
    make_directory, identify = tempfile.mkdtemp, Node.addresses

    def full(*args: object, **kwargs: object) -> str:
        for error in failures:
            raise error
        return make_directory(*args, **kwargs)

    async def no_answer(node: Node) -> tuple[str, ...]:
        for error in failures:
            raise error
        return await identify(node)

    monkeypatch.setattr(tempfile, "mkdtemp", full)
    client._node.daemon._process.stdin.close()  # its guard ends it
    await client._node.daemon.wait_gone()
    monkeypatch.setattr(Node, "addresses", no_answer)
    await eventually(lambda: client._node is None)
    await says_hello(client, server)
    assert next(failures, None) is None


@pytest.mark.parametrize("raw", [b"\x36\x04a..b\x06\x00\x01", b"\xff\xff"])
def test_an_address_that_hivemind_cannot_read_is_none(raw: bytes) -> None:
    assert readable(raw) is None


def test_a_relayed_route_is_written_as_libp2p_reads_it() -> None:
    relay = new_identity().peer_id
    route = f"/ip4/192.0.2.1/tcp/1/p2p/{relay}/p2p-circuit"
    raw = multiaddr(route).to_bytes()
    assert raw.hex().startswith("04c0000201060001a503260024080112")  # the id as a multihash, no CID around it
    assert readable(raw) == route
    assert multiaddr("/ip4/192.0.2.1/tcp/1").to_bytes().hex() == "04c0000201060001"


async def test_nothing_that_others_say_ends_a_node(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    server = await start()
    await server.serve(ECHO, echo)
    client = await start(join=server.addresses)
    asked = asyncio.Event()

    async def confused(node: Node, peer: str, timeout_s: float) -> bool:
        asked.set()
        raise ValueError("what a stranger said makes no sense")

    monkeypatch.setattr(Node, "ping", confused)
    await asyncio.wait_for(asked.wait(), SOON_S)
    await asyncio.sleep(0.1)
    await says_hello(client, server)
    assert not client._failed.done()


@pytest.mark.parametrize(
    "raw",
    [
        bytes.fromhex("c841c940") * 234,  # 936 bytes of nested extensions ended every process once
        b"\x91" * 3_000_000,
        b"\x93\xa7records\x01\xa1k" + b"\x81\xa1a" * 900_000,
        b"",
        encode(Store(True, KEY, b"\xc8\x01\x00\x40" * 300)),
    ],
    ids=["extensions", "arrays", "maps", "nothing", "record"],
)
async def test_no_request_of_a_stranger_ends_a_node(start: Start, raw: bytes) -> None:
    server = await start()
    await server.serve(ECHO, echo)
    stranger = await start(join=server.addresses)
    control, victim = stranger._node._control, PeerID.from_base58(server.peer_id)
    for _ in range(5):
        with contextlib.suppress(P2PHandlerError):
            assert isinstance(
                decode_answer(await control.call_unary_handler(victim, DIRECTORY_PROTOCOL, raw)), Stored
            )
    await says_hello(stranger, server)
    assert (await stranger.fetch(KEY)).records == ()


async def test_bootstrap_that_comes_back_is_found_again(start: Start) -> None:
    identity = new_identity()
    bootstrap = await start(identity)
    address = bootstrap.addresses[0]
    listen = (parse_join_address(address).route,)
    server = await start(join=(address,))
    await server.serve(ECHO, echo)
    await bootstrap.close()
    await asyncio.sleep(0.5)
    await start(identity, listen=listen)
    async with asyncio.timeout(100):  # libp2p refuses for a while to dial who did not answer
        while True:  # a stranger who knows only the bootstrap finds the server as soon as that knows it again
            stranger = await start(join=(address,))
            with contextlib.suppress(PeerUnreachable):
                return await says_hello(stranger, server)
            await stranger.close()


async def test_interrupt_from_the_terminal_does_not_reach_the_daemon(start: Start) -> None:
    await start()
    (daemon,) = own_daemons()
    assert os.getpgid(daemon.pid) != os.getpgid(0)


async def test_guard_outlives_a_request_to_end(start: Start) -> None:
    await start()
    (daemon,) = own_daemons()
    guard = daemon.parent()
    guard.terminate()
    await asyncio.sleep(0.2)
    assert living([guard, daemon]) == [guard, daemon]


async def test_peer_behind_a_link_that_was_down_is_reached_as_soon_as_it_is_up(start: Start) -> None:
    """libp2p alone refuses to dial for five seconds after a dial that failed."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    async with contextlib.AsyncExitStack() as stack:
        link = await LinkEmulator.start(port)
        stack.push_async_callback(link.close)
        server = await start(listen=(f"127.0.0.1:{port}",), announce=(link.address,))
        await server.serve(ECHO, echo)
        client = await start(join=server.addresses, client=True, watch_interval_s=60.0)
        took_s = [await _time_until_back(link, client, server) for _ in range(3)]
        assert min(took_s) < 4.0  # five are libp2p's own pause; a busy machine only adds to it


async def _time_until_back(link: LinkEmulator, client: Libp2pNetwork, server: Libp2pNetwork) -> float:
    """Cut the link, try to get through, and make it whole again; gives the seconds until one gets through."""
    channel = await client.open_channel(server.peer_id, ECHO, OPEN_S)
    await asyncio.sleep(1.0)  # whom p2pd asks in the very moment of the cut it dials again
    link.set_link(LinkConditions(cut=True))
    with pytest.raises(ChannelClosed):
        await channel.receive()
    channel.close()
    await asyncio.sleep(0.5)  # a stream ends a moment before p2pd has forgotten its connection
    for _ in range(3):
        with pytest.raises(PeerUnreachable):
            await client.open_channel(server.peer_id, ECHO, 5.0)
    with pytest.raises(NetworkError):  # the DHT must not dial it either
        await client.fetch("nothing")
    link.set_link()
    up_at = time.monotonic()
    await says_hello(client, server)
    return time.monotonic() - up_at


async def test_calls_that_nobody_waits_for_any_more_leave_nothing(start: Start) -> None:
    server = await start()
    client = await start(join=server.addresses)
    control, callee = client._node._control, PeerID.from_base58(server.peer_id)
    request, tasks, before = encode(Hello(True)), len(asyncio.all_tasks()), set(control._pending_calls)
    for delay_s in [number / 10_000 for number in range(30)]:  # some as the answer comes
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(control.call_unary_handler(callee, DIRECTORY_PROTOCOL, request), delay_s)
    assert isinstance(
        decode_answer(await control.call_unary_handler(callee, DIRECTORY_PROTOCOL, request)), Welcome
    )
    assert control._pending_calls.keys() == before
    assert len(asyncio.all_tasks()) < tasks + 10  # thirty calls; the node has a few tasks of its own
