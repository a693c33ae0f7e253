"""A node that everybody has left: when it starts a new p2pd, and when it only waits."""

import asyncio
import random
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

import pytest

from swarm.network import watch
from swarm.network.addresses import Endpoint, JoinAddress
from swarm.network.rejoin import KnownPeer
from swarm.network.watch import BEGIN_ANEW, Watch, WatchHooks
from swarm.security.identity import Identity
from swarm.testing.clock import run_virtual
from swarm.values import PeerId

OWN, OTHER, RELAY = (Identity(bytes([index]) * 32).peer_id for index in (1, 2, 3))
DIRECT = JoinAddress(OTHER, "/ip4/203.0.113.7/tcp/4001")
RELAYED = JoinAddress(OTHER, f"/ip4/203.0.113.9/tcp/4001/p2p/{RELAY}/p2p-circuit")
A_WHILE_S = 120.0


@dataclass
class Lonely:
    """p2pd's node without neighbors, and what is asked of network/libp2p."""

    candidate: JoinAddress
    restarts: int = 0
    returns: list[str] = field(default_factory=list)

    def neighbors(self) -> tuple[PeerId, ...]:
        return ()

    async def connections(self) -> dict[PeerId, str]:
        return {}

    async def node(self) -> "Lonely":
        return self

    async def return_to(self, node: "Lonely", addresses: tuple[JoinAddress, ...], own: str) -> bool:
        self.returns.append(own)
        return False

    async def restart(self, is_behind_router: bool) -> bool:
        self.restarts += 1
        return False

    async def saw(self, node: "Lonely", seen: list[KnownPeer]) -> None:
        assert seen == []

    async def watched_for_a_while(self) -> None:
        hooks = WatchHooks(
            node=self.node,  # type: ignore[arg-type]
            return_to=self.return_to,  # type: ignore[arg-type]
            restart=self.restart,
            candidates=lambda: (self.candidate,),
            configured=(),
            is_relayed=lambda: False,
            saw=self.saw,  # type: ignore[arg-type]
            came_back=lambda: pytest.fail("nobody answers"),
        )
        chance = random.Random(0)  # noqa: S311 - repeatable on purpose
        running = asyncio.create_task(Watch(hooks, OWN, 1.0, chance).run())
        await asyncio.sleep(A_WHILE_S)
        running.cancel()


@pytest.fixture
def answering(monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """The hosts that answer a probe; this machine's links stay as they are."""
    hosts: set[str] = set()

    async def probe(endpoints: list[Endpoint], timeout_s: float) -> str | None:
        await asyncio.sleep(0)
        return None if any(each.host in hosts for each in endpoints) else "silent"

    async def changes() -> AsyncIterator[frozenset[object]]:
        await asyncio.Event().wait()
        yield frozenset()

    monkeypatch.setattr(watch, "probe", probe)
    monkeypatch.setattr(watch, "changes", changes)
    return hosts


@pytest.mark.parametrize("candidate", [DIRECT, RELAYED])
def test_p2pd_is_left_alone_while_nobody_answers(answering: set[str], candidate: JoinAddress) -> None:
    lonely = Lonely(candidate)
    run_virtual(lonely.watched_for_a_while())
    assert (lonely.restarts, lonely.returns) == (0, [])


@pytest.mark.parametrize("candidate", [DIRECT, RELAYED])
def test_p2pd_is_started_again_ever_more_rarely(answering: set[str], candidate: JoinAddress) -> None:
    answering.update({"203.0.113.7", "203.0.113.9"})
    lonely = Lonely(candidate)
    run_virtual(lonely.watched_for_a_while())
    assert len(lonely.returns) > A_WHILE_S / 2
    assert set(lonely.returns) == {"dead"}
    waits_s = [BEGIN_ANEW.delay_s(attempt, 0.0) for attempt in range(8)]
    assert 1 < lonely.restarts <= sum(sum(waits_s[:n]) <= A_WHILE_S for n in range(8))
