"""Keeps a node among its neighbors: looks around now and then, and finds back when it is cut off.

A neighbor that gives no sign of life is disconnected, so that it is dialled anew. When the machine's
addresses change, or nobody answers any more, the node comes back: over the old connections where they
live, with a new p2pd where they are all dead, since that keeps dead connections, old addresses and
refusals to dial for minutes.
"""

import asyncio
import logging
import random
import time
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from swarm.network.addresses import JoinAddress, endpoint_of, first_endpoint_of, usable
from swarm.network.links import changes, has_public, interfaces
from swarm.network.probe import probe
from swarm.network.rejoin import Backoff, KnownPeer
from swarm.values import PeerId

if TYPE_CHECKING:
    from swarm.network.node import Node, OwnConnection

PINGS_PER_ROUND = 3
PING_TIMEOUT_S = 2.0
ALIVE_TIMEOUT_S = 1.0  # after a change of links, when waiting costs a reply
MOST_PROBED = 8
CONNECTIONS_LIVE_S = 3.0  # without a link; TCP then waits too long before it tries again
BEGIN_ANEW = Backoff(first_s=4.0)  # whoever is served through this node loses it each time
JUST_BEGUN_S = 2.0  # a change of links that was mended before the system told of it
PROBE_EVERY_S = 1.0  # while nobody answers
PROBE_TIMEOUT_S = 1.0

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class WatchHooks:
    """What is used of network/libp2p."""

    node: Callable[[], Awaitable["Node"]]  # raises `NetworkError` when this node has left
    return_to: Callable[["Node", tuple[JoinAddress, ...], "OwnConnection"], Awaitable[bool]]
    restart: Callable[[bool], Awaitable[bool]]  # whether it is behind a router now; whether it has joined
    candidates: Callable[[], tuple[JoinAddress, ...]]
    configured: tuple[JoinAddress, ...]
    is_relayed: Callable[[], bool]
    saw: Callable[["Node", list[KnownPeer]], Awaitable[None]]
    came_back: Callable[[], None]


class Watch:
    """`run` until cancelled."""

    def __init__(self, hooks: WatchHooks, own: PeerId, interval_s: float, chance: random.Random) -> None:
        self.is_away = False  # about to come back after a cut
        self._hooks = hooks
        self._own = own
        self._interval_s = interval_s
        self._random = chance
        self._moved = asyncio.Event()  # this machine has an address that it had not a moment ago
        self._is_cut_off = False  # no connection of before can have lived on
        self._interfaces = interfaces()  # when p2pd was started, which is slow to see that they change
        self._begun_anew_at = float("-inf")
        self._backoff, self._attempt, self._due = Backoff(first_s=interval_s), 0, 0.0

    async def run(self) -> None:
        """Look around every few seconds, and at once when this machine's addresses have changed."""
        following = asyncio.create_task(self._follow_links(), name="links")
        look = self._remember_those_met
        try:
            while True:
                try:
                    await look()
                except Exception as error:  # nothing that others say may end this node
                    _log.info("A look around the network failed: %s", error)
                finally:
                    self.is_away = False
                if following.done():
                    following.result()
                moved = await _happens(self._moved, self._interval_s)
                look = self._come_back if moved else self._look_around
        finally:
            following.cancel()

    async def _follow_links(self) -> None:
        before, kept, alone_at = interfaces(), interfaces(), 0.0
        async with aclosing(changes()) as news:
            async for now in news:
                if not now:
                    kept, alone_at = before, _now()
                elif now - before:
                    away_s = 0.0 if before else _now() - alone_at
                    had = before or kept
                    self._is_cut_off = not now & had or away_s > CONNECTIONS_LIVE_S
                    self._moved.set()
                before = now

    async def _look_around(self) -> None:
        """Keep the routing table honest, remember whom we meet, and rejoin when we are lost."""
        node = await self._hooks.node()
        await self._ping_some(node)
        if not node.neighbors():
            await self._find_back()
        elif missing := self._missing(node):
            if _now() >= self._due:
                await self._hooks.return_to(node, missing, "unknown")
                self._due = _now() + self._backoff.delay_s(self._attempt, self._random.random())
                self._attempt += 1
        else:
            self._attempt = 0

    def _missing(self, node: "Node") -> tuple[JoinAddress, ...]:
        """Those of the configured ones that are not met.

        A bootstrap that comes back knows nobody; unless its swarm looks for it, it starts a second one.
        """
        met = {*node.neighbors(), self._own}
        return tuple(address for address in self._hooks.configured if address.peer not in met)

    async def _come_back(self) -> None:
        self._moved.clear()
        if _now() - self._begun_anew_at < JUST_BEGUN_S and interfaces() == self._interfaces:
            return
        _log.info("This machine's addresses have changed")
        candidates = self._hooks.candidates()
        if (
            not candidates
            or await self._any_alive(await self._hooks.node())
            or (await _anybody_there(candidates) and await self._begin_anew())
        ):
            self._hooks.came_back()
        else:
            await self._find_back()

    async def _begin_anew(self) -> bool:
        """Start a new p2pd; whether it has joined."""
        self.is_away = True
        before, self._interfaces = self._interfaces, interfaces()
        is_behind_router = has_public(before) and not has_public(self._interfaces)
        has_joined = await self._hooks.restart(is_behind_router)
        self.is_away, self._begun_anew_at = False, _now()
        return has_joined

    async def _any_alive(self, node: "Node") -> bool:
        """Whether a neighbor answers on the connection of before."""
        known, connected = set(node.neighbors()), await node.connections()
        endpoints = [endpoint_of(address) for address in connected.values()]
        if self._is_cut_off and not any(endpoint and endpoint.is_loopback for endpoint in endpoints):
            return False
        probed = [peer for peer in connected if peer in known][:MOST_PROBED]
        return any(await asyncio.gather(*(node.is_alive(peer, ALIVE_TIMEOUT_S) for peer in probed)))

    async def _find_back(self) -> None:
        """Probe everybody known until somebody answers, and join."""
        told, attempt, anew_due = False, 0, 0.0
        while candidates := self._hooks.candidates():
            is_answered = await _anybody_there(candidates)
            node = await self._hooks.node()
            if node.neighbors():  # somebody has come to us
                return
            if is_answered:
                may_begin_anew = _now() >= anew_due
                # p2pd is slow to see other addresses, and never again asks a relay that it could not reach
                should = may_begin_anew and (self._hooks.is_relayed() or interfaces() != self._interfaces)
                is_back = not should and await self._hooks.return_to(node, candidates, "dead")
                if not is_back and may_begin_anew:  # p2pd refuses for a while to dial whom it could not reach
                    is_back = await self._begin_anew()
                    anew_due = _now() + BEGIN_ANEW.delay_s(attempt, self._random.random())
                    attempt += 1
                if is_back:
                    _log.info("Back in the swarm")
                    self._hooks.came_back()
                    await (await self._hooks.node()).explore()
                    return
            if not told:
                _log.warning("Nobody of the swarm answers; trying again every second")
                told = True
            if await _happens(self._moved, PROBE_EVERY_S):
                self._moved.clear()
                anew_due = 0.0

    async def _ping_some(self, node: "Node") -> None:
        neighbors = list(node.neighbors())
        picked = self._random.sample(neighbors, min(PINGS_PER_ROUND, len(neighbors)))
        pinging = asyncio.gather(*(node.ping(peer, PING_TIMEOUT_S) for peer in picked))
        moved = asyncio.ensure_future(self._moved.wait())
        waiting: set[asyncio.Future[Any]] = {pinging, moved}
        await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        moved.cancel()
        if not pinging.done():  # coming back is more urgent
            pinging.cancel()
            await asyncio.gather(pinging, return_exceptions=True)
            return
        alive = pinging.result()
        await self._remember(node, [peer for peer, answers in zip(picked, alive, strict=True) if answers])

    async def _remember_those_met(self) -> None:
        """Whoever answered while this node joined: a command that ends soon may never look around."""
        node = await self._hooks.node()
        connected = await node.connections()
        await self._remember(node, [peer for peer in node.neighbors() if peer in connected][:MOST_PROBED])

    async def _remember(self, node: "Node", peers: list[PeerId]) -> None:
        met = [KnownPeer(peer, usable(await node.addresses_of(peer)), time.time()) for peer in peers]
        await self._hooks.saw(node, met)


async def _anybody_there(candidates: tuple[JoinAddress, ...]) -> bool:
    """Whether joining is worth a try: somebody answers, or is reached in a way that cannot be probed."""
    endpoints = [first_endpoint_of(address.route) for address in candidates]
    tcp = [each for each in endpoints if each is not None and each.transport == "tcp"]
    return len(tcp) < len(endpoints) or await probe(tcp, PROBE_TIMEOUT_S) is None


async def _happens(event: asyncio.Event, within_s: float) -> bool:
    try:
        async with asyncio.timeout(within_s):
            await event.wait()
    except TimeoutError:
        return False
    return True


def _now() -> float:
    return asyncio.get_running_loop().time()
