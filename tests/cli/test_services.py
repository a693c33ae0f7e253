"""Services as commands: each ends, with an error, when its node is lost for good or a part of it fails."""

import asyncio
import gc
import os
import signal
import socket
import time
from collections.abc import Callable

import pytest

from swarm.cli import main as cli
from swarm.errors import NetworkError, SwarmError
from swarm.network.libp2p import Libp2pNetwork
from swarm.network.memory import MemoryNetwork, MemorySwarm
from swarm.peer.sleep import TICK_S
from swarm.security.identity import new_identity
from swarm.testing.tiny_models import TinyModel, write_tiny_model
from swarm.wire.records import PeerRecord

LOST = "The network daemon p2pd died 8 times in a row"
JOIN = f"/ip4/127.0.0.1/tcp/1/p2p/{new_identity().peer_id}"


class Node(MemoryNetwork):
    """A node in memory in the place of libp2p's; with `lost` set it is lost for good."""

    def __init__(self, swarm: MemorySwarm, peer_id: str) -> None:
        super().__init__(swarm, peer_id)
        self.lost = asyncio.Event()

    async def wait_failed(self) -> SwarmError:
        await self.lost.wait()
        return NetworkError(LOST)

    @property
    def states(self) -> set[str]:
        """What the records of peers say that the network keeps."""
        kept = [each.record for places in self._swarm._storage._keys.values() for each in places.values()]
        return {record.state for record in kept if isinstance(record, PeerRecord)}


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> str:
    directory = tmp_path_factory.mktemp("models") / "tiny"
    write_tiny_model(directory, TinyModel())
    return str(directory)


@pytest.fixture
def nodes(monkeypatch) -> list[Node]:
    """The nodes that were started."""
    started: list[Node] = []

    async def start(config, identity) -> Node:
        started.append(Node(MemorySwarm(0), identity.peer_id))
        return started[-1]

    monkeypatch.setattr(Libp2pNetwork, "start", start)
    return started


@pytest.fixture
def serve(nodes, model, tmp_path, monkeypatch, capfd):
    """Runs a service, and calls `disturb(its node)` once it serves. Gives the exit status and stderr."""
    monkeypatch.setenv("SWARM_HOME", str(tmp_path / "home"))

    def run(name: str, disturb: Callable[[Node], None] = lambda node: None, *more: str) -> tuple[int, str]:
        def on_result(text: str) -> None:
            if name != "peer" or text.startswith("Online"):
                asyncio.get_running_loop().call_later(0.05, disturb, nodes[0])

        page = ["--join", JOIN, "--listen", "127.0.0.1:0"]
        arguments = {
            "bootstrap": [],
            "gateway": [model, *page],
            "status-page": [*page, "--database", str(tmp_path / "history.sqlite")],
            "peer": [model, "--blocks", "0:2", "--threads", "1"],
        }
        monkeypatch.setattr(f"swarm.cli.{name.replace('-', '_')}.print_result", on_result)
        return cli.run([name, *arguments[name], *more]), capfd.readouterr().err

    return run


@pytest.mark.parametrize("name", ["bootstrap", "gateway", "status-page", "peer"])
def test_a_service_whose_node_is_lost_for_good_ends_with_the_error(serve, name):
    status, said = serve(name, lambda node: node.lost.set())
    assert status != 0
    assert said.endswith(f"swarm: {LOST}.\n")


@pytest.mark.parametrize(
    "part",
    [
        "announcer.Announcer.run",
        "executor.Executor.run",
        "peer.Peer._expire",
        "sleep.SleepWatch.run",
        "program.follow_sleep",
    ],
)
def test_a_peer_of_which_a_part_fails_for_good_ends_with_its_error_and_says_that_it_leaves(
    serve, nodes, monkeypatch, part
):
    async def fail(*_) -> None:
        await asyncio.sleep(0.05)
        raise ZeroDivisionError("a bug")

    monkeypatch.setattr("swarm.lifetime.RUN_AGAIN_AFTER_S", 0.01)
    monkeypatch.setattr(f"swarm.peer.{part}", fail)
    with pytest.raises(ZeroDivisionError, match="a bug"):
        serve("peer")
    assert nodes[0].states == {"draining"}


def hang_up(node: Node) -> None:
    os.kill(os.getpid(), signal.SIGHUP)


def test_a_peer_whose_terminal_is_closed_leaves_as_after_ctrl_c(serve, nodes, monkeypatch):
    def write_nowhere(text: str) -> None:
        if text.startswith("Leaving"):
            raise OSError(5, "Input/output error")

    monkeypatch.setattr("swarm.cli.peer.note", write_nowhere)
    status, _ = serve("peer", hang_up)
    assert (status, nodes[0].states) == (0, {"draining"})


def test_a_correction_of_the_time_is_no_sleep_to_a_peer(serve, monkeypatch):
    real_time, correction_s = time.time, [0.0]
    monkeypatch.setattr(time, "time", lambda: real_time() + sum(correction_s))

    def correct(node: Node) -> None:
        correction_s.append(60.0)
        asyncio.get_running_loop().call_later(1.5 * TICK_S, os.kill, os.getpid(), signal.SIGTERM)

    status, said = serve("peer", correct)
    assert (status, "slept" in said) == (0, False)


@pytest.mark.parametrize("name", ["gateway", "status-page"])
def test_a_port_in_use_is_all_that_is_said(serve, name, recwarn):
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        status, said = serve(name, lambda node: None, "--listen", f"127.0.0.1:{port}")
    gc.collect()  # a coroutine that was never awaited complains when it goes
    assert status == 78
    assert (len(said.splitlines()), [str(warning.message) for warning in recwarn]) == (1, [])
