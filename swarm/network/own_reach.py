"""Keeps this node reachable: finds out whether others can dial it, takes a relay where they cannot.

A node that forwards a port without saying so announces it; one that nobody can dial is started again
behind a relay, if it may and if a neighbor relays; later a relay is given up where it is not needed any
more and nothing is under way. What came of it is told through `changed`.
"""

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Collection
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

from swarm.errors import UsageError
from swarm.network.addresses import Endpoint, JoinAddress, endpoint_of, parse_join_address
from swarm.network.daemon import DaemonOptions
from swarm.network.links import interfaces
from swarm.network.reachability import Verdict, ask_to_dial_back, judge
from swarm.network.transport import Reach
from swarm.values import PeerId

if TYPE_CHECKING:
    from swarm.network.node import Node

RelayUse = Literal["auto", "always", "never"]

LOOK_AGAIN_S: dict[Reach, float] = {"unknown": 5.0, "direct": 300.0, "relayed": 300.0, "no": 20.0}
CONFIRM_S = 5.0  # after the first word that a node which could be dialled no longer can
RESERVATION_TIMEOUT_S = 3.0  # from p2pd's start to its relayed address; it takes a third of a second
GRANT_S = 1.0  # what a relay that answers takes
RESERVATION_POLL_S = 0.1
ASK_RELAYS_AGAIN_S = 60.0
MOST_RELAY_ADDRESSES = 16
CIRCUIT = "/p2p-circuit"

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Hooks:
    """What is used of network/libp2p."""

    node: Callable[[], Awaitable["Node"]]  # raises `NetworkError` when this node has left
    options: Callable[[], DaemonOptions]
    restart: Callable[[DaemonOptions], Awaitable[None]]  # p2pd, with other options
    is_busy: Callable[[], bool]  # somebody is being served
    changed: Callable[[], Awaitable[None]]


class OwnReach:
    """`run` until cancelled. `reach` is what is known now, `why` says in a sentence why it is "no"."""

    def __init__(
        self,
        hooks: Hooks,
        configured: tuple[JoinAddress, ...],
        announce: tuple[Endpoint, ...],
        relay_use: RelayUse,
    ) -> None:
        """`announce` is what the owner says to announce."""
        self.reach: Reach | None = None  # until it is found out for the first time
        self.why = ""
        self.reachable = asyncio.Event()  # set unless nobody can dial this node
        self._hooks = hooks
        self._configured = configured
        self._announce = announce
        self._relay_use = relay_use
        self._relays: dict[PeerId, tuple[JoinAddress, ...]] = {}
        self._refusing: set[PeerId] = set()  # neighbors that said that they do not relay
        self._asked_relays_at = 0.0
        self._is_settled = False  # where this node stands now
        self._is_unsure = False  # nobody could be asked of late
        self._again = asyncio.Event()

    def look_again(self) -> None:
        """This node was cut off and is back, perhaps elsewhere: find out anew, now."""
        self._is_settled = False
        self._again.set()

    def relayed(self, options: DaemonOptions) -> DaemonOptions:
        """The same behind a relay, if there may be one: for a machine that has just moved behind a router."""
        relays = () if self._relay_use == "never" else self._known_relays()
        return replace(options, announce=self._announce, relays=relays) if relays else options

    async def run(self) -> None:
        """Find out, and again now and then, and at once when told so."""
        while True:
            self._again.clear()
            try:
                await self._settle(await self._find_out())
            except Exception as error:  # p2pd has just died, or nothing that others say may end this node
                _log.info("Whether others can connect to this node is not known: %s", error)
            look_again_s = LOOK_AGAIN_S["unknown" if self._is_unsure else self.reach or "unknown"]
            try:
                async with asyncio.timeout(look_again_s):
                    await self._again.wait()
            except TimeoutError:
                continue

    async def _find_out(self) -> Reach:
        node = await self._hooks.node()
        options = self._hooks.options()
        if self._relay_use != "always" and options.listen:
            verdicts = await self._ask(node)
            can_be_dialed = judge(verdicts)
            self._is_unsure = can_be_dialed is None
            if self._is_unsure:
                return await self._as_before(node)
            if can_be_dialed:
                return await self._take_direct_way(node, verdicts)
            if self.reach == "direct" and self._is_settled:
                await asyncio.sleep(CONFIRM_S)
                if judge(await self._ask(await self._hooks.node())):
                    return "direct"
        return await self._take_relay()

    async def _as_before(self, node: "Node") -> Reach:
        """What holds while nobody can tell; a relay is seen without being told."""
        if await self.has_circuit(0.0):
            return "relayed"
        if self.reach == "relayed" and await node.connections():  # else it is cut off, and no worse than that
            return await self._take_relay()
        return self.reach or "unknown"

    async def _settle(self, reach: Reach) -> None:
        self._is_settled = True
        if reach == self.reach:
            return
        self.reach = reach
        self.why = self._explain() if reach == "no" else ""
        await self._hooks.changed()
        if reach == "no":
            self.reachable.clear()
        else:
            self.reachable.set()

    async def _ask(self, node: "Node") -> list[Verdict]:
        connected = await node.connections()
        serving = [peer for peer in node.neighbors() if peer in connected]
        configured = {address.peer for address in self._configured}
        serving.sort(key=lambda peer: peer not in configured)
        hosts = [(peer, endpoint.host) for peer in serving if (endpoint := endpoint_of(connected[peer]))]
        ports = await self._ports(node)
        verdicts = await ask_to_dial_back(node, hosts, ports, interfaces())
        for verdict in verdicts:
            self._relays.pop(verdict.neighbor, None)
            if verdict.relays:
                self._refusing.discard(verdict.neighbor)
                self._relays[verdict.neighbor] = _direct(await node.addresses_of(verdict.neighbor))
            else:
                self._refusing.add(verdict.neighbor)
        return verdicts

    async def _ports(self, node: "Node") -> Collection[int]:
        """Where others may dial: what is listened at, announced, or opened by the router for us."""
        options = self._hooks.options()
        told = [endpoint_of(address.rpartition("/p2p/")[0]) for address in await node.addresses()]
        found = [*options.announce, *options.listen, *(each for each in told if each is not None)]
        return dict.fromkeys(endpoint.port for endpoint in found if endpoint.transport == "tcp")

    async def _take_direct_way(self, node: "Node", verdicts: list[Verdict]) -> Reach:
        options = self._hooks.options()
        announce = self._announce or await self._forwarded(node, verdicts)
        if (announce, ()) == (options.announce, options.relays):
            return "direct"
        if options.relays and self._hooks.is_busy():
            return "relayed"  # as before; the next look may find a better moment
        await self._hooks.restart(replace(options, announce=announce, relays=()))
        return "direct"

    async def _forwarded(self, node: "Node", verdicts: list[Verdict]) -> tuple[Endpoint, ...]:
        """What to announce where a port of the router leads here that libp2p does not know of."""
        options, own = self._hooks.options(), interfaces()
        hosts = {str(interface.ip) for interface in own}
        outside = [
            Endpoint(_family(verdict.host), verdict.host, "tcp", port)
            for verdict in verdicts
            if verdict.host not in hosts and not verdict.is_on_link
            for port in verdict.reached
        ]
        if options.announce and {*outside} == {each for each in options.announce if each.host not in hosts}:
            return options.announce
        told = [endpoint_of(address.rpartition("/p2p/")[0]) for address in await node.addresses()]
        if all(each in told for each in outside):
            return ()
        ports = [each.port for each in options.listen if each.transport == "tcp"]
        inside = [Endpoint(_family(host), host, "tcp", port) for host in sorted(hosts) for port in ports]
        return tuple(dict.fromkeys([*outside, *inside]))

    async def _take_relay(self) -> Reach:
        relays = self._known_relays()
        options = self._hooks.options()
        if self._relay_use == "never" or not relays:
            return "no"
        # one that was just started again has asked for an address, and may not have it yet
        if await self.has_circuit(GRANT_S if options.relays else 0.0):
            return "relayed"
        # p2pd does not ask a relay again within the hour, so it is started again, but not all the time
        asked_lately = relays == options.relays and _now() - self._asked_relays_at < ASK_RELAYS_AGAIN_S
        if asked_lately and self._is_settled:
            return "no"
        self._asked_relays_at = _now()
        await self._hooks.restart(replace(options, announce=self._announce, relays=relays))
        return "relayed" if await self.has_circuit(RESERVATION_TIMEOUT_S) else "no"

    def _known_relays(self) -> tuple[JoinAddress, ...]:
        configured = [address for address in self._configured if address.peer not in self._refusing]
        met = [address for addresses in self._relays.values() for address in addresses]
        return tuple(dict.fromkeys([*configured, *met]))[:MOST_RELAY_ADDRESSES]

    async def has_circuit(self, timeout_s: float) -> bool:
        """Whether a relay has granted an address, now or within that time."""
        node = await self._hooks.node()
        ends_at = asyncio.get_running_loop().time() + timeout_s
        while not any(CIRCUIT in address for address in await node.addresses()):
            if asyncio.get_running_loop().time() >= ends_at:
                return False
            await asyncio.sleep(RESERVATION_POLL_S)
        return True

    def _explain(self) -> str:
        ports = [each.port for each in self._hooks.options().listen if each.transport == "tcp"]
        port = f"TCP port {ports[0]}" if ports else "a TCP port"
        if self._relay_use == "never":
            relay = "or let it take a relay"
        else:
            relay = "or name a --join node that relays (swarm bootstrap, or one with --relay-for-others)"
        return (
            "Nobody can connect to this node: its router or firewall lets nobody in, and no node relays "
            f"for it. Forward {port} to this machine, {relay}."
        )


def _family(host: str) -> str:
    return "ip6" if ":" in host else "ip4"


def _direct(addresses: Collection[str]) -> tuple[JoinAddress, ...]:
    """Those that lead to a node without a relay."""
    found = []
    for text in addresses:
        with contextlib.suppress(UsageError):
            address = parse_join_address(text)
            if (endpoint := endpoint_of(address.route)) is not None and not endpoint.is_loopback:
                found.append(address)
    return tuple(found)


def _now() -> float:
    return asyncio.get_running_loop().time()
