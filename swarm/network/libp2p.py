"""The real network: a libp2p node in our own event loop that survives its daemon and its bootstrap.

`Libp2pNetwork` keeps the contract of network/transport while p2pd may die (it is started again with
the same identity, port, handlers and DHT content) and while the nodes it joined through may vanish
(it rejoins through whom it met before). Importing this imports neither hivemind nor torch.
"""

import asyncio
import contextlib
import importlib
import logging
import random
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Literal, TypeVar

from swarm.errors import ClockSkew, JoinFailed, NetworkError, PeerUnreachable, SwarmError
from swarm.network.addresses import (
    JoinAddress,
    parse_announce_address,
    parse_join_address,
    parse_listen_address,
    usable,
)
from swarm.network.channel import Channel
from swarm.network.daemon import Daemon, DaemonOptions, choose_ports, still_here
from swarm.network.handlers import HandlerTasks
from swarm.network.own_reach import CIRCUIT, GRANT_S, Hooks, OwnReach, RelayUse
from swarm.network.reachability import ReachServer
from swarm.network.rejoin import (
    Backoff,
    KnownPeer,
    PeerList,
    candidates,
    load_peer_list,
    remember,
    save_peer_list,
)
from swarm.network.storage import RecordStorage
from swarm.network.transport import Handler, Reach
from swarm.network.watch import Watch, WatchHooks
from swarm.security.identity import Identity
from swarm.values import PeerId
from swarm.wire.reach import REACH_PROTOCOL
from swarm.wire.records import LookUp

if TYPE_CHECKING:
    from swarm.network.node import Node, OwnConnection

_JOIN_TIMEOUT_S = 8.0
_JOIN_GRACE_S = 1.0  # for the slower addresses once one has answered
_REJOIN_GRACE_S = 0.2  # the same, while a reply may wait for this node to be back
_DHT_TIMEOUT_S = 15.0
_STEADY_S = 60.0  # a daemon that lived this long starts a new count of failures
_MAX_RESTARTS = 8

_log = logging.getLogger(__name__)
_Result = TypeVar("_Result")


@dataclass(frozen=True, slots=True)
class Libp2pConfig:
    """How a node takes part. Addresses as text, HOST:PORT or multiaddresses."""

    listen: tuple[str, ...] = ("127.0.0.1:0",)  # empty: reached through a relay only
    announce: tuple[str, ...] = ()  # what others are told instead of the addresses listened on
    join: tuple[str, ...] = ()  # empty: this node is the first
    peer_list: Path | None = None  # where to remember other nodes across restarts
    client: bool = False  # uses the DHT without keeping anything for others
    relay: RelayUse = "auto"  # be reached through a relay: when nobody can dial this node, always, or never
    relays_for_others: bool = False
    reachability: Literal["public", "private"] | None = None  # overrides what libp2p finds out
    startup_timeout_s: float = 30.0
    watch_interval_s: float = 10.0


@asynccontextmanager
async def open_libp2p(config: Libp2pConfig, identity: Identity) -> AsyncIterator["Libp2pNetwork"]:
    """A node that has joined, closed at the end of the block. Raises what `Libp2pNetwork.start` raises."""
    network = await Libp2pNetwork.start(config, identity)
    try:
        yield network
    finally:
        await network.close()


class Libp2pNetwork:
    """A libp2p node; see network/transport.Network for the contract of each method."""

    def __init__(self, config: Libp2pConfig, identity: Identity) -> None:
        self._identity = identity
        self._configured = tuple(parse_join_address(text) for text in config.join)
        self._options = DaemonOptions(
            listen=choose_ports(tuple(parse_listen_address(text) for text in config.listen)),
            announce=tuple(parse_announce_address(text) for text in config.announce),
            relays=self._configured if config.relay == "always" else (),
            relays_for_others=config.relays_for_others,
            # only who is reached from everywhere can relay: whoever offers to says so
            reachability=config.reachability or ("public" if config.relays_for_others else None),
            client=config.client,
            startup_timeout_s=config.startup_timeout_s,
        )
        self._is_restart_wanted = self._is_restarted = self._is_cut_off = False
        self._peer_list = config.peer_list
        self._known: PeerList = load_peer_list(config.peer_list, self._configured) if config.peer_list else ()
        self._handlers: dict[str, Handler] = {}
        self._tasks = HandlerTasks()
        self._background: list[asyncio.Task[None]] = []
        self._addresses: tuple[str, ...] = ()
        self._storage = RecordStorage()  # outlives p2pd
        self._node: Node | None = None
        self._up = asyncio.Event()
        self._failed: asyncio.Future[SwarmError] = asyncio.get_running_loop().create_future()
        self._closed = False
        self._random = random.Random()  # noqa: S311 - spreads retries, guards nothing
        self._changed = asyncio.Event()
        self._reach = OwnReach(
            Hooks(
                node=self._running_node,
                options=lambda: self._options,
                restart=self._restart_with,
                is_busy=lambda: bool(self._tasks),
                changed=self._reach_changed,
            ),
            self._configured,
            self._options.announce,
            config.relay,
        )
        self._watch = Watch(
            WatchHooks(
                node=self._running_node,
                return_to=self._return_to,
                restart=self._restart_after_cut,
                candidates=self._candidates,
                configured=self._configured,
                is_relayed=lambda: bool(self._options.relays),
                saw=self._saw,
                came_back=self._came_back,
            ),
            self.peer_id,
            config.watch_interval_s,
            self._random,
        )
        if not config.client:
            self._handlers[REACH_PROTOCOL] = ReachServer(
                self.peer_id,
                lines=lambda: self._node,
                is_away=lambda: self._watch.is_away,
                relays=lambda: config.relays_for_others and self.reach not in ("relayed", "no"),
            )

    @classmethod
    async def start(cls, config: Libp2pConfig, identity: Identity) -> "Libp2pNetwork":
        """Start a node and join. Raises `UsageError` (a malformed address), `PortInUse`, `ClockSkew`,
        `JoinFailed` (no node answers) or `ConfigurationError` (p2pd does not start)."""
        network = cls(config, identity)
        try:
            await network._join_at_start(await network._start_node())
            network._up.set()
        except BaseException:
            await network.close()
            raise
        network._background = [
            asyncio.create_task(network._supervise(), name="libp2p supervisor"),
            asyncio.create_task(network._watch.run(), name="libp2p watchdog"),
        ]
        if not config.client:
            network._background.append(asyncio.create_task(network._reach.run(), name="reachability check"))
        for task in network._background:
            task.add_done_callback(network._background_ended)
        return network

    @property
    def peer_id(self) -> PeerId:
        return self._identity.peer_id

    @property
    def addresses(self) -> tuple[str, ...]:
        return self._addresses

    @property
    def reach(self) -> Reach | None:
        """Whether others can dial this node; "unknown" with nobody to ask, None before that is found out."""
        return self._reach.reach

    @property
    def why_unreachable(self) -> str:
        """What its owner should know and do when `reach` is "no"; else empty."""
        return self._reach.why

    async def wait_reachable(self) -> None:
        """Return when others can dial this node, as far as anybody can tell."""
        await self._reach.reachable.wait()

    async def wait_changed(self) -> None:
        """Return when the reach of this node has changed, or it is back after it was cut off."""
        await self._changed.wait()
        self._changed.clear()

    async def hang_up(self, peer: PeerId, silent_s: float) -> None:
        if self._node is not None and not self._closed:
            await self._node.hang_up(peer, silent_s)

    @property
    def behind_s(self) -> float:
        return self._node.behind_s if self._node is not None else 0.0

    async def open_channel(self, peer: PeerId, protocol: str, timeout_s: float) -> Channel:
        try:
            async with asyncio.timeout(timeout_s):
                node = await self._running_node()
                return await node.open_channel(peer, protocol)
        except TimeoutError:
            await self.hang_up(peer, timeout_s)
            raise PeerUnreachable(f"Peer {peer} did not answer within {timeout_s:g} s") from None

    async def serve(self, protocol: str, handler: Handler) -> None:
        node = await self._running_node()
        self._handlers[protocol] = handler
        try:
            await self._serve_on(node, protocol, handler)
        except NetworkError:
            if node is self._node and self._up.is_set():
                raise
            # p2pd ended meanwhile; the next one is given all handlers at its start

    async def store(self, key: str, sealed: bytes) -> bool:
        return await self._on_dht(lambda node: node.store(key, sealed), f"keep a record under {key}")

    async def fetch(self, key: str) -> LookUp:
        return await self._on_dht(lambda node: node.fetch(key), f"look up {key}")

    async def wait_failed(self) -> SwarmError:
        return await asyncio.shield(self._failed)

    async def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        self._up.set()  # whoever waits for the node is to see that it is closed
        for task in self._background:
            task.cancel()
        if self._background:
            await asyncio.wait(self._background)
        await self._tasks.close()
        if self._node is not None:
            await self._node.close()

    async def _running_node(self) -> "Node":
        await self._up.wait()
        if self._closed or self._failed.done() or self._node is None:
            raise PeerUnreachable("This node has left the network")
        return self._node

    async def _on_dht(self, ask: "Callable[[Node], Awaitable[_Result]]", what: str) -> _Result:
        try:
            async with asyncio.timeout(_DHT_TIMEOUT_S):
                return await ask(await self._running_node())
        except TimeoutError:
            raise NetworkError(f"The swarm's directory did not answer in time to {what}") from None

    async def _start_node(self) -> "Node":
        """Start p2pd and, meanwhile, load hivemind (seconds, in a thread). The node is not `_up` yet."""
        loading = asyncio.create_task(asyncio.to_thread(importlib.import_module, "swarm.network.node"))
        options = self._options
        if self._is_restarted:  # an address that this machine no longer has must not keep it from coming back
            options = replace(options, listen=still_here(options.listen))
        try:
            daemon = await Daemon.start(options, self._identity)
        except BaseException:
            loading.cancel()
            raise
        try:
            module = await loading
            node: Node = await module.Node.start(daemon, self._storage, self._options.client)
        except BaseException:
            await daemon.stop()
            raise
        try:
            for protocol, handler in self._handlers.items():
                await self._serve_on(node, protocol, handler)
            self._addresses = usable(await node.addresses())
        except BaseException:
            await node.close()
            raise
        self._node = node
        return node

    async def _serve_on(self, node: "Node", protocol: str, handler: Handler) -> None:
        async def on_channel(channel: Channel) -> None:
            await asyncio.wait([self._tasks.start(handler, channel)])

        await node.serve(protocol, on_channel)

    def _candidates(self) -> tuple[JoinAddress, ...]:
        return candidates(self._configured, self._known, self.peer_id, time.time())

    async def _join_at_start(self, node: "Node") -> None:
        addresses = self._candidates()
        refusals = await self._join(node, addresses)
        if not self._configured or len(refusals) < len(addresses):
            await node.explore()
            return
        for error in refusals.values():
            if isinstance(error, ClockSkew):
                raise error
        reasons = "; ".join(str(refusals[address]).rstrip(".") for address in self._configured)
        raise JoinFailed(
            f"No node of the swarm answers: {reasons}",
            "Is that node running, is the address right, and does a firewall let it through?",
        )

    async def _join(
        self,
        node: "Node",
        addresses: Iterable[JoinAddress],
        grace_s: float = _JOIN_GRACE_S,
        meet: Callable[[JoinAddress], Awaitable[None]] | None = None,
    ) -> dict[JoinAddress, SwarmError]:
        """Try all addresses at once; those that failed, and why. `meet` is `node.join` or more than that."""
        meet = meet or node.join
        tries = {asyncio.create_task(_join_through(meet, address)): address for address in addresses}
        waiting = set(tries)
        joined = False
        try:
            while waiting:
                done, waiting = await asyncio.wait(
                    waiting, timeout=grace_s if joined else None, return_when=asyncio.FIRST_COMPLETED
                )
                if joined and not done:
                    break
                joined = joined or any(task.result() is None for task in done)
        finally:
            for task in waiting:
                task.cancel()
        refusals = {}
        for task, address in tries.items():
            refusal = None if task in waiting else task.result()
            if refusal is not None:
                refusals[address] = refusal
        return refusals

    async def _supervise(self) -> None:
        """Start p2pd again whenever it ends; give up when it died several times in a row."""
        loop = asyncio.get_running_loop()
        backoff, attempt, started = Backoff(first_s=0.2, limit_s=15.0), 0, loop.time()
        while attempt < _MAX_RESTARTS:
            if self._node is not None:
                await self._node.daemon.wait_gone()
                self._up.clear()
                if not self._is_restart_wanted:
                    _log.warning("The network daemon p2pd has died; it is started again")
                dead, self._node = self._node, None
                await dead.close()
            if loop.time() - started > _STEADY_S:
                attempt = 0
            if self._is_restart_wanted:
                self._is_restart_wanted = False
            else:
                await asyncio.sleep(backoff.delay_s(attempt, self._random.random()))
                attempt += 1
            started, self._is_restarted = loop.time(), True
            await self._restart()
        if not self._failed.done():
            self._failed.set_result(NetworkError(f"The network daemon p2pd died {attempt} times in a row"))
        self._up.set()

    async def _restart_with(self, options: DaemonOptions) -> None:
        """End p2pd on purpose and return when another runs, with these options, and has tried to join."""
        node = await self._running_node()
        self._options, self._is_restart_wanted = options, True
        self._up.clear()
        await node.daemon.stop()
        await self._running_node()

    async def _restart_after_cut(self, is_behind_router: bool) -> bool:
        """A new p2pd, on another network perhaps; whether it has joined."""
        options = self._reach.relayed(self._options) if is_behind_router else self._options
        self._is_cut_off = True
        try:
            await self._restart_with(options)
        finally:
            self._is_cut_off = False
        node = await self._running_node()
        if node.was_hung_up_on and options.relays:  # they have dropped what they had granted it, too
            await self._restart_with(options)
            node = await self._running_node()
        if options.relays:  # who dialled it before would be refused, and not dial again for seconds
            await self._reach.has_circuit(GRANT_S)
        return bool(node.neighbors())

    async def _reach_changed(self) -> None:
        self._addresses = usable(await (await self._running_node()).addresses())
        self._changed.set()

    def _came_back(self) -> None:
        self._reach.look_again()
        self._changed.set()

    def _background_ended(self, task: "asyncio.Task[None]") -> None:
        error = None if task.cancelled() else task.exception()
        if error is not None and not self._failed.done():
            _log.error("The %s has failed", task.get_name(), exc_info=error)
            self._failed.set_result(NetworkError(f"The {task.get_name()} has failed: {error}"))
            self._up.set()  # whoever waits for the node is to see it

    async def _restart(self) -> None:
        try:
            node = await self._start_node()
        except (SwarmError, OSError) as error:  # the latter: no process, no file or no room for one
            _log.warning("The network daemon p2pd could not be started again: %s", error)
            return
        try:
            meet = partial(node.return_to, own_connection="none") if self._is_cut_off else node.join
            await self._join(node, self._candidates(), _REJOIN_GRACE_S, meet)
        finally:
            self._up.set()  # not before: whom it has joined it can find
        with contextlib.suppress(NetworkError):
            await node.explore()

    async def _return_to(
        self, node: "Node", addresses: tuple[JoinAddress, ...], own_connection: "OwnConnection"
    ) -> bool:
        meet = partial(node.return_to, own_connection=own_connection)
        return len(await self._join(node, addresses, _REJOIN_GRACE_S, meet)) < len(addresses)

    async def _saw(self, node: "Node", seen: list[KnownPeer]) -> None:
        """Neighbors answered: remember where, across restarts, too."""
        self._addresses = usable(await node.addresses())
        if self.reach == "relayed" and not any(CIRCUIT in address for address in self._addresses):
            self._reach.look_again()  # the relay is gone
        if not seen:
            return
        self._known = remember(self._known, seen)
        if self._peer_list is not None:
            await asyncio.to_thread(save_peer_list, self._peer_list, self._configured, self._known)


async def _join_through(
    meet: Callable[[JoinAddress], Awaitable[None]], address: JoinAddress
) -> SwarmError | None:
    """None when it worked, else why not."""
    try:
        async with asyncio.timeout(_JOIN_TIMEOUT_S):
            await meet(address)
    except TimeoutError:
        return PeerUnreachable(f"{address} did not answer within {_JOIN_TIMEOUT_S:.0f} s")
    except (NetworkError, ClockSkew) as error:
        return error
    return None
