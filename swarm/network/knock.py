"""Knocking: a plain connection tells whether a peer is there, before libp2p is asked to dial it.

A dial that fails is dear in go-libp2p: it refuses to dial the address again for five seconds and more
(`DialBackoff` of its swarm), and meanwhile looks for a better address by dialling others, so that those
of them that are gone are refused as well. A TCP connection of our own that fails costs nothing.
Knows TCP and the first words of a libp2p listener; not p2pd, which is asked through two functions.
"""

import asyncio
import os
from collections.abc import Awaitable, Callable, Collection, Set
from dataclasses import dataclass

from swarm.errors import NetworkError, PeerUnreachable
from swarm.network.addresses import Endpoint, JoinAddress, endpoint_of
from swarm.values import PeerId

TIMEOUT_S = 2.5
GREETING = b"\x13/multistream/1.0.0\n"  # multistream-select: whoever listens speaks first
LEARN_EVERY_S = 60.0
LET_LIBP2P_TRY_EVERY_S = 60.0  # a peer that does not answer may have moved; libp2p can find it
MOST_DOORS = 1000


@dataclass(slots=True)
class _Door:
    """Where a peer listens; empty when some way to it is no TCP address, so that knocking proves nothing."""

    endpoints: tuple[Endpoint, ...]
    learned_at: float
    silent_since: float | None = None


class Doors:
    """Where peers were met, and whether they answer there now.

    `connected` gives the peers that p2pd has a connection to, `addresses_of` where a connected one listens.
    """

    def __init__(
        self,
        connected: Callable[[], Awaitable[Set[PeerId]]],
        addresses_of: Callable[[PeerId], Awaitable[Collection[str]]],
    ) -> None:
        self._connected = connected
        self._addresses_of = addresses_of
        self._doors: dict[PeerId, _Door] = {}

    async def check(self, peer: PeerId) -> None:
        """Raises `PeerUnreachable` when p2pd would have to dial the peer and the dial would fail."""
        door = self._doors.get(peer)
        if door is None or not door.endpoints or peer in await self._connected():
            return
        reason = await knock(door.endpoints)
        now = _now()
        if reason is None:
            door.silent_since = None
        elif door.silent_since is None or now - door.silent_since < LET_LIBP2P_TRY_EVERY_S:
            door.silent_since = door.silent_since or now
            raise PeerUnreachable(f"Peer {peer} does not answer: {reason}")
        else:
            door.silent_since = now

    async def check_address(self, address: JoinAddress) -> None:
        """The same for a peer that was perhaps never met, at an address somebody gave us."""
        endpoint = endpoint_of(address.route)
        if endpoint is None or endpoint.transport != "tcp" or address.peer in await self._connected():
            return
        reason = await knock([endpoint])
        if reason is not None:
            raise PeerUnreachable(f"{address} does not answer: {reason}")

    async def met(self, peer: PeerId) -> None:
        """The peer has just answered: learn where it listens, if that is not known or an old story."""
        door = self._doors.get(peer)
        if door is not None and _now() - door.learned_at < LEARN_EVERY_S:
            return
        try:
            addresses = await self._addresses_of(peer)
        except NetworkError:  # p2pd has just ended, and with it what it knows
            return
        endpoints = [endpoint_of(address.removesuffix(f"/p2p/{peer}")) for address in addresses]
        tcp = tuple(e for e in endpoints if e is not None and e.transport == "tcp")
        self._doors.pop(peer, None)
        self._doors[peer] = _Door(tcp if len(tcp) == len(endpoints) else (), _now())
        while len(self._doors) > MOST_DOORS:
            del self._doors[next(iter(self._doors))]


async def knock(endpoints: Collection[Endpoint], timeout_s: float = TIMEOUT_S) -> str | None:
    """None when a libp2p node answers at one of the TCP endpoints, else how the last of them failed."""
    tries = [asyncio.create_task(_greeting(endpoint)) for endpoint in endpoints]
    reason = "it has no address"
    try:
        async with asyncio.timeout(timeout_s):
            for answer in asyncio.as_completed(tries):
                try:
                    greeting = await answer
                except OSError as error:
                    reason = _said(error)
                else:
                    if greeting == GREETING:
                        return None
                    reason = "no libp2p node listens there" if greeting else "it closes the connection"
    except TimeoutError:
        reason = f"silent for {timeout_s:g} s"
    finally:
        for task in tries:
            task.cancel()
        await asyncio.gather(*tries, return_exceptions=True)
    return reason


async def _greeting(endpoint: Endpoint) -> bytes:
    """The first bytes that whoever listens there says; fewer when the connection ends."""
    reader, writer = await asyncio.open_connection(endpoint.host, endpoint.port)
    try:
        return await reader.readexactly(len(GREETING))
    except asyncio.IncompleteReadError as error:
        return error.partial
    finally:
        writer.close()


def _said(error: OSError) -> str:
    """In the system's words, which asyncio replaces by its own when a connection fails."""
    text = error.strerror or str(error)
    return os.strerror(error.errno) if error.errno and text.startswith("Connect call failed") else text


def _now() -> float:
    return asyncio.get_running_loop().time()
