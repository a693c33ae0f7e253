"""Reachability probes: a plain connection tells whether a peer is there, before libp2p is to dial it.

A dial that fails is dear in go-libp2p: it refuses to dial the address again for five seconds and more
(`DialBackoff` of its swarm), and meanwhile looks for a better address by dialling others, so that those
of them that are gone are refused as well. A TCP connection of our own that fails costs nothing.
Knows TCP and the first words of a libp2p listener; not p2pd, which is asked through two functions.
"""

import asyncio
import os
import time
from collections.abc import Awaitable, Callable, Collection, Coroutine
from dataclasses import dataclass
from typing import Any

from swarm.errors import NetworkError, PeerUnreachable
from swarm.network.addresses import Endpoint, JoinAddress, endpoint_of
from swarm.values import PeerId
from swarm.wire.records import MAX_CLOCK_SKEW_S, PeerRecord

TIMEOUT_S = 2.5
RELAYED_TIMEOUT_S = 0.3  # for a direct way, when there is one through a relay
RETOLD_TIMEOUT_S = 1.0  # where a peer says it is, before it is asked again: it may have just arrived
AGAIN_EVERY_S = 0.5  # a first packet lost with a link that just comes back is repeated by TCP too late
GREETING = b"\x13/multistream/1.0.0\n"  # multistream-select: whoever listens speaks first
LEARN_EVERY_S = 60.0
SEARCH_EVERY_S = 30.0
MOST_KNOWN = 1000
MOST_ENDPOINTS = 8  # of one peer; whoever names more is not probed


@dataclass(frozen=True, slots=True)
class _Way:
    """How a peer is reached: multiaddresses, none for those that p2pd knows already. Or why it is not."""

    routes: tuple[str, ...] = ()
    why_not: str = ""
    is_told: bool = False  # neighbors say that it is there


@dataclass(slots=True)
class _Sighting:
    """Where a peer listens, and what was seen there. Times are in Unix seconds."""

    endpoints: tuple[Endpoint, ...]  # empty when some way in is no TCP address: a probe proves nothing
    learned_at: float
    started_at: float | None = None  # as the peer says
    silent_since: float | None = None
    has_moved: bool = False
    is_relayed: bool = False


class AddressBook:
    """Where peers were met, and whether they answer there now.

    `is_connected` tells whether p2pd has a connection to a peer, `addresses_of` where a connected one
    listens, as multiaddresses, with None for one that cannot be read; `locate` asks neighbors that a peer
    answers to where it listens now.
    """

    def __init__(
        self,
        is_connected: Callable[[PeerId], Awaitable[bool]],
        addresses_of: Callable[[PeerId], Awaitable[Collection[str | None]]],
        now: Callable[[], float] = time.time,
        locate: Callable[[PeerId], Awaitable[Collection[str]]] | None = None,
    ) -> None:
        self._is_connected = is_connected
        self._addresses_of = addresses_of
        self._now = now
        self.locate = locate
        self._known: dict[PeerId, _Sighting] = {}

    async def check(self, peer: PeerId) -> None:
        """Raises `PeerUnreachable` when p2pd would have to dial the peer and the dial would fail."""
        entry = self._known.get(peer)
        if entry is None or not entry.endpoints:
            return
        if await self._is_connected(peer):
            entry.silent_since, entry.has_moved = None, False
            return
        reason = await probe(entry.endpoints)
        if reason is None:
            entry.silent_since = None
            return
        entry.silent_since = entry.silent_since or self._now()
        raise PeerUnreachable(f"Peer {peer} does not answer: {reason}")

    async def find(self, peer: PeerId) -> tuple[str, ...]:
        """Multiaddresses that lead to the peer now and that p2pd may not know; none when it knows enough.

        Where it was met is probed, and at the same time neighbors are asked where it is: it may have
        moved, or be reached through a relay only. A peer that nobody knows is left to libp2p, and so is
        one that seems to have moved, or is silent for long, once: it may find it elsewhere. Else raises
        `PeerUnreachable` when p2pd would dial in vain.
        """
        if await self._is_connected(peer):
            return ()
        entry = self._known.get(peer)
        silent_s = self._now() - entry.silent_since if entry and entry.silent_since is not None else 0.0
        known = entry.endpoints if entry is not None else ()
        was_met = bool(known) or (entry is not None and entry.is_relayed)
        tries = [self._ask_where(peer, was_met), *([_probe_known(known)] if known else [])]
        ways = await _first_way(tries)
        found = next((way for way in ways if not way.why_not), None)
        if entry is not None and found is not None:
            entry.silent_since, entry.has_moved = None, False
        if found is not None or entry is None or not was_met:
            return found.routes if found is not None else ()
        if (entry.has_moved or silent_s > SEARCH_EVERY_S) and not any(way.is_told for way in ways):
            entry.silent_since, entry.has_moved = self._now(), False
            return ()
        entry.silent_since = entry.silent_since or self._now()
        raise PeerUnreachable(f"Peer {peer} does not answer: {ways[-1].why_not}")

    async def _ask_where(self, peer: PeerId, persistent: bool) -> _Way:
        """The way that neighbors tell of, once somebody answers there. With `persistent` they are asked
        again and again: they may meet it meanwhile, and it may say something else of itself."""
        ends_at = _now() + TIMEOUT_S
        while True:
            way = await self._ask_once(peer, RETOLD_TIMEOUT_S if persistent else TIMEOUT_S)
            if not way.why_not or not persistent or self.locate is None or _now() > ends_at:
                return way
            await asyncio.sleep(AGAIN_EVERY_S)

    async def _ask_once(self, peer: PeerId, timeout_s: float) -> _Way:
        suffix = f"/p2p/{peer}"
        addresses = await self.locate(peer) if self.locate is not None else ()
        if not addresses:
            return _Way(why_not="its neighbors do not know it")
        routes = tuple(address.removesuffix(suffix) for address in addresses if address.endswith(suffix))
        relayed = tuple(route for route in routes if route.endswith("/p2p-circuit"))
        endpoints = [endpoint for route in routes if (endpoint := endpoint_of(route)) is not None]
        tcp = [endpoint for endpoint in endpoints if endpoint.transport == "tcp"][:MOST_ENDPOINTS]
        why_not = await probe(tcp, RELAYED_TIMEOUT_S if relayed else timeout_s)
        if why_not is None:
            return _Way(routes, is_told=True)
        return _Way(relayed, "" if relayed else why_not, is_told=True)

    async def check_address(self, address: JoinAddress) -> None:
        """The same for a peer that was perhaps never met, at an address somebody gave us."""
        endpoint = endpoint_of(address.route)
        if endpoint is None or endpoint.transport != "tcp" or await self._is_connected(address.peer):
            return
        reason = await probe([endpoint])
        if reason is not None:
            raise PeerUnreachable(f"{address} does not answer: {reason}")

    async def met(self, peer: PeerId) -> None:
        """The peer has just answered: learn where it listens, if that is not known or an old story."""
        entry = self._known.get(peer)
        if entry is not None and self._now() - entry.learned_at < LEARN_EVERY_S:
            return
        try:
            addresses = await self._addresses_of(peer)
        except NetworkError:  # p2pd has just ended, and with it what it knows
            return
        endpoints = [
            endpoint_of(address.removesuffix(f"/p2p/{peer}")) if address else None for address in addresses
        ]
        tcp = tuple(each for each in endpoints if each is not None and each.transport == "tcp")
        can_probe = len(tcp) == len(endpoints) <= MOST_ENDPOINTS
        self._known.pop(peer, None)
        self._known[peer] = _Sighting(
            tcp if can_probe else (),
            self._now(),
            started_at=entry.started_at if entry else None,
            is_relayed=any(address and "/p2p-circuit" in address for address in addresses),
        )
        while len(self._known) > MOST_KNOWN:
            del self._known[next(iter(self._known))]

    def heard_of(self, record: PeerRecord) -> None:
        """A peer's own word, seen in the DHT: a restarted one may listen elsewhere, and so may one that
        speaks although it has been silent where it listens for a while."""
        entry = self._known.get(record.peer_id)
        if entry is None:
            return
        if entry.started_at is None:
            entry.started_at = record.started_at
        if record.started_at > entry.started_at:
            del self._known[record.peer_id]
        elif entry.silent_since is not None and record.issued_at > entry.silent_since + MAX_CLOCK_SKEW_S:
            entry.has_moved = True


async def probe(endpoints: Collection[Endpoint], timeout_s: float = TIMEOUT_S) -> str | None:
    """None when a libp2p node answers at one of the TCP endpoints, else how the last of them failed."""
    tries = [asyncio.create_task(_greeting(endpoint)) for endpoint in endpoints]
    reason = "it has no address"
    try:
        async with asyncio.timeout(timeout_s):
            for answer in asyncio.as_completed(tries):
                try:
                    greeting = await answer
                except (OSError, UnicodeError) as error:  # the latter: of a name that is none
                    reason = _said(error)
                else:
                    if greeting == GREETING:
                        return None
                    reason = "no libp2p node listens there" if greeting else "it closes the connection"
    except TimeoutError:
        reason = f"silent for {timeout_s:g} s"
    finally:
        await _end(tries)
    return reason


async def _probe_known(endpoints: Collection[Endpoint]) -> _Way:
    return _Way(why_not=await probe(endpoints) or "")


async def _first_way(tries: Collection[Coroutine[Any, Any, _Way]]) -> list[_Way]:
    """What was found, in order, up to the first way that leads there."""
    tasks = [asyncio.create_task(each) for each in tries]
    ways: list[_Way] = []
    try:
        for answer in asyncio.as_completed(tasks):
            ways.append(await answer)
            if not ways[-1].why_not:
                break
    finally:
        await _end(tasks)
    return ways


async def _greeting(endpoint: Endpoint) -> bytes:
    """The first bytes that whoever listens there says. As long as it is silent it is called again
    every half second, beside the earlier calls."""
    calls: list[asyncio.Task[bytes]] = []
    try:
        while True:
            calls.append(asyncio.create_task(_call(endpoint)))
            done, _ = await asyncio.wait(calls, timeout=AGAIN_EVERY_S, return_when=asyncio.FIRST_COMPLETED)
            if done:
                return done.pop().result()
    finally:
        await _end(calls)


async def _call(endpoint: Endpoint) -> bytes:
    """The first bytes of one connection; fewer when it ends."""
    reader, writer = await asyncio.open_connection(endpoint.host, endpoint.port)
    try:
        return await reader.readexactly(len(GREETING))
    except asyncio.IncompleteReadError as error:
        return error.partial
    finally:
        writer.close()


async def _end(tasks: Collection["asyncio.Task[Any]"]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


def _said(error: OSError | UnicodeError) -> str:
    """In the system's words, which asyncio replaces by its own when a connection fails."""
    if isinstance(error, UnicodeError):
        return "its name is no host name"
    text = error.strerror or str(error)
    if error.errno and text.startswith("Connect call failed"):
        text = os.strerror(error.errno)
    return text[:1].lower() + text[1:]


def _now() -> float:
    return asyncio.get_running_loop().time()
