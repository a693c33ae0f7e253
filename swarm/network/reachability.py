"""Whether others can dial this node: neighbors are asked to try, and this node tries for its neighbors.

A neighbor dials the host that it sees the question come from, at the ports named in it, and looks whose
key answers there; a port that leads to another node behind the same router does not count. What a
neighbor on one's own network can do proves little, so others outrank it.
"""

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

from swarm.errors import NetworkError, ProtocolError
from swarm.network.addresses import Endpoint, endpoint_of
from swarm.network.channel import Channel
from swarm.network.links import Interface, is_on_link
from swarm.network.probe import probe
from swarm.security.identity import is_peer_id
from swarm.values import PeerId
from swarm.wire.reach import (
    MAX_ADDRESSES,
    MAX_PORTS,
    MAX_REACH_BYTES,
    REACH_PROTOCOL,
    DialBack,
    DialedBack,
    Locate,
    Located,
    Noted,
    ReachMessage,
    Returned,
    decode_dialed_back,
    decode_located,
    decode_question,
    encode_reach,
)

DIAL_TIMEOUT_S = 1.5
ANSWER_TIMEOUT_S = 4.0  # of a dial back
LOCATE_TIMEOUT_S = 1.5
ALIVE_TIMEOUT_S = 1.0
MOST_ASKED = 4
MOST_AT_ONCE = 16  # questions answered for all others together
MOST_AT_ONCE_EACH = 4
MOST_DIALS_AT_ONCE = 4
DIAL_EVERY_S = 1.0  # for one identity
MOST_REMEMBERED = 1000


class Lines(Protocol):
    """What is used of network/node.Node."""

    async def open_channel(self, peer: PeerId, protocol: str) -> Channel: ...
    async def whose_key(self, endpoint: Endpoint) -> PeerId | None: ...
    async def count_connections(self, peer: PeerId) -> int: ...
    async def hang_up(self, peer: PeerId, silent_s: float) -> None: ...
    async def hang_up_dead(self, peer: PeerId, timeout_s: float) -> None: ...
    async def addresses(self) -> tuple[str, ...]: ...


@dataclass(frozen=True, slots=True)
class Verdict:
    """What one neighbor found."""

    neighbor: PeerId
    is_on_link: bool  # no router is between it and this node
    host: str  # where it sees this node; empty when it sees no address to dial
    reached: tuple[int, ...]
    relays: bool


def judge(verdicts: Iterable[Verdict]) -> bool | None:
    """Whether others can dial this node; None when nobody could tell."""
    telling = [verdict for verdict in verdicts if verdict.host]
    deciding = [verdict for verdict in telling if not verdict.is_on_link] or telling
    return any(verdict.reached for verdict in deciding) if deciding else None


async def ask_to_dial_back(
    lines: Lines, neighbors: Sequence[tuple[PeerId, str]], ports: Collection[int], own: frozenset[Interface]
) -> list[Verdict]:
    """Have up to four neighbors, given with the host that each is connected at, dial this node.

    Those that do not answer, or do not know the question, are left out.
    """
    question = DialBack(ports=tuple(ports)[:MAX_PORTS])

    async def ask(neighbor: PeerId, host: str) -> Verdict | None:
        data = await _ask(lines, neighbor, question, ANSWER_TIMEOUT_S)
        if data is None:
            return None
        try:
            answer = decode_dialed_back(data)
        except ProtocolError:
            return None
        return Verdict(neighbor, is_on_link(host, own), answer.host, answer.reached, answer.relays)

    answers = await asyncio.gather(*(ask(*neighbor) for neighbor in neighbors[:MOST_ASKED]))
    return [answer for answer in answers if answer is not None]


async def locate(lines: Lines, neighbors: Sequence[PeerId], peer: PeerId) -> tuple[str, ...]:
    """Where a peer listens now, as the first of a few neighbors tells that it answers; else nothing."""
    asked = [
        asyncio.create_task(_ask_where(lines, neighbor, peer))
        for neighbor in neighbors[:MOST_ASKED]
        if neighbor != peer
    ]
    try:
        for answer in asyncio.as_completed(asked):
            if addresses := await answer:
                return addresses
    finally:
        for task in asked:
            task.cancel()
    return ()


async def say_returned(lines: Lines, neighbor: PeerId) -> bool:
    """Tell a neighbor that older connections are dead. False when it has closed them all: dial it anew."""
    return await _ask(lines, neighbor, Returned(), ALIVE_TIMEOUT_S) is not None


async def _ask_where(
    lines: Lines, neighbor: PeerId, peer: PeerId, timeout_s: float = LOCATE_TIMEOUT_S
) -> tuple[str, ...] | None:
    """What a neighbor says of where a peer is; None when it says nothing."""
    data = await _ask(lines, neighbor, Locate(peer=peer), timeout_s)
    try:
        return decode_located(data).addresses if data is not None else None
    except ProtocolError:
        return None


async def _ask(lines: Lines, neighbor: PeerId, question: ReachMessage, timeout_s: float) -> bytes | None:
    try:
        async with asyncio.timeout(timeout_s):
            channel = await lines.open_channel(neighbor, REACH_PROTOCOL)
            try:
                await channel.send_frame(encode_reach(question))
                return await channel.receive_frame(MAX_REACH_BYTES)
            finally:
                channel.close()
    except (TimeoutError, NetworkError, ProtocolError):
        return None


class ReachServer:
    """Answers the questions of others.

    `lines` gives this node as it is now, restarts included; `is_away` tells that it is about to come back
    after it was cut off, when what it knows of its own addresses is old.
    """

    def __init__(
        self,
        own: PeerId,
        lines: Callable[[], Lines | None],
        is_away: Callable[[], bool],
        relays: Callable[[], bool],
    ) -> None:
        self._own = own
        self._lines = lines
        self._is_away = is_away
        self._relays = relays
        self._asking: Counter[PeerId] = Counter()
        self._dialed_at: dict[PeerId, float] = {}
        self._dialing = 0

    async def __call__(self, channel: Channel) -> None:
        """One question, one answer; none for who asks too much or what is no question."""
        peer, lines = channel.peer, self._lines()
        if lines is None or self._asking[peer] >= MOST_AT_ONCE_EACH or self._asking.total() >= MOST_AT_ONCE:
            return
        self._asking[peer] += 1
        try:
            async with asyncio.timeout(ANSWER_TIMEOUT_S):
                question = decode_question(await channel.receive_frame(MAX_REACH_BYTES))
                answer: ReachMessage | None
                match question:
                    case DialBack(ports=ports):
                        answer = await self._dial_back(lines, channel, ports)
                    case Locate(peer=wanted):
                        answer = await self._where(lines, PeerId(wanted), peer)
                    case _:
                        answer = await _release(lines, peer)
                if answer is not None:
                    await channel.send_frame(encode_reach(answer))
        except TimeoutError:
            pass  # the other end has given up, too
        finally:
            self._asking[peer] -= 1
            self._asking += Counter()  # keeps those that still ask, and no others

    async def _where(self, lines: Lines, wanted: PeerId, asker: PeerId) -> Located:
        """Of this node itself what it knows, of another what it says now; it is disconnected when silent."""
        if wanted == self._own:
            return Located(addresses=() if self._is_away() else (await lines.addresses())[:MAX_ADDRESSES])
        if wanted == asker or not is_peer_id(wanted) or not await lines.count_connections(wanted):
            return Located()
        addresses = await _ask_where(lines, wanted, wanted, ALIVE_TIMEOUT_S)
        if addresses is None:
            await lines.hang_up_dead(wanted, ALIVE_TIMEOUT_S)
        return Located(addresses=addresses or ())

    async def _dial_back(self, lines: Lines, channel: Channel, ports: Sequence[int]) -> DialedBack | None:
        now = time.monotonic()
        last = self._dialed_at.pop(channel.peer, None)
        self._dialed_at[channel.peer] = now
        while len(self._dialed_at) > MOST_REMEMBERED:
            del self._dialed_at[next(iter(self._dialed_at))]
        if self._dialing >= MOST_DIALS_AT_ONCE or (last is not None and now - last < DIAL_EVERY_S):
            return None
        seen = endpoint_of(channel.came_from)  # None through a relay
        if seen is None:
            return DialedBack(host="", relays=self._relays())
        self._dialing += 1
        try:
            tries = (
                _answers_at(lines, Endpoint(seen.family, seen.host, "tcp", port), channel.peer)
                for port in ports
            )
            found = await asyncio.gather(*tries)
        finally:
            self._dialing -= 1
        reached = tuple(port for port, answers in zip(ports, found, strict=True) if answers)
        return DialedBack(host=seen.host, reached=reached, relays=self._relays())


async def _answers_at(lines: Lines, endpoint: Endpoint, peer: PeerId) -> bool:
    """Whether that very peer answers at an endpoint. A probe comes first: it is cheap and leaves nothing."""
    if await probe([endpoint], DIAL_TIMEOUT_S) is not None:
        return False
    try:
        async with asyncio.timeout(DIAL_TIMEOUT_S):
            return await lines.whose_key(endpoint) == peer
    except (TimeoutError, NetworkError):
        return False


async def _release(lines: Lines, peer: PeerId) -> Noted | None:
    """libp2p may go on using the dead one of two connections, and closes only all that it has to a peer."""
    if await lines.count_connections(peer) <= 1:
        return Noted()
    await lines.hang_up(peer, 0.0)
    return None
