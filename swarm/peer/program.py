"""The program `swarm peer`: join, choose a span, load it, serve, move where that helps, and leave.

The one place where a peer's parts meet the real network, disk and clock.
"""

import asyncio
import contextlib
import logging
import random
import time
from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from swarm.errors import ClockOff
from swarm.lifetime import Stopped, persist, unless_stopped, until_stopped
from swarm.memory import available_bytes
from swarm.model.cache import bytes_per_token
from swarm.model.compute import ComputeThread
from swarm.model.config import ModelConfig, read_config
from swarm.model.dtypes import dtype_name, parse_dtype
from swarm.model.files import StageProgress, ignore_progress
from swarm.model.linear.chooser import MeasuringChooser
from swarm.model.linear.layouts import Quantization
from swarm.model.parts import can_be_fetched, fetch, missing_of_span
from swarm.model.span import SpanModel
from swarm.model.store import ensure_manifest
from swarm.model.weights import check_files, load_span, span_size_bytes
from swarm.network.directory import Directory, OwnDirectory
from swarm.network.libp2p import Libp2pConfig, Libp2pNetwork
from swarm.network.manifests import MANIFEST_PROTOCOL, ManifestServer
from swarm.network.transport import Network, Reach
from swarm.peer.announcer import RECORD_LIFE_S, Announcer, Profile
from swarm.peer.metrics import PeerMetrics
from swarm.peer.monitor import Monitor
from swarm.peer.mover import Hosted, Mover
from swarm.peer.peer import Peer
from swarm.peer.placement.choice import Ability, Role, choose
from swarm.peer.placement.cover import Claims
from swarm.peer.placement.fit import blocks_that_fit, check_fits
from swarm.peer.sessions import SessionLimits
from swarm.peer.sleep import boot_clock, follow_sleep
from swarm.peer.throughput import Throughput, measure
from swarm.security.identity import Identity
from swarm.security.manifest import Manifest
from swarm.values import Span, format_size

CACHE_SHARE = 0.25  # of a peer's memory, for the caches of sessions
MEMORY_SHARE = 0.8  # of what is free, when no --memory is given
SETTLE_S = 1.0  # how long a joining peer waits to see whether another chose the same blocks
MAX_CHOICES = 5

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class PeerConfig:
    """What `swarm peer` is told."""

    model: str
    directory: Path
    store_root: Path
    network: Libp2pConfig
    span: Span | None = None  # None: those that fit and help most
    may_move: bool = True  # to other blocks, later; never from a span that was given
    memory_bytes: int | None = None
    dtype: str | None = None  # None: as the model is stored
    quantization: Quantization = "none"
    threads: int | None = None  # None: measured
    public_name: str = ""
    monitor_port: int = 0
    drain_s: float = 30.0


@dataclass(frozen=True, slots=True)
class PeerEvents:
    """Whom the program tells what happens, for a person or a script to see."""

    on_joined: Callable[[tuple[str, ...], int], None]  # addresses to join through, port of the monitor
    on_fetching: StageProgress  # bytes done, bytes in all
    on_loading: Callable[[Span, int, int], None]  # bytes done, bytes in all
    on_online: Callable[[Profile, Throughput], None]
    on_leaving: Callable[[float], None]  # seconds at most
    on_moving: Callable[[Span, Span], None]  # from, to
    on_role: Callable[[Role, str], None]  # whether clients use it, and why not
    on_reach: Callable[[Reach, tuple[str, ...], str], None]  # addresses to join through; why, if it is "no"


@dataclass(frozen=True, slots=True)
class _Plan:
    """A model's files, and how much of it this peer has room for."""

    config: ModelConfig
    manifest: Manifest
    dtype: str
    memory_bytes: int
    fitting_blocks: int

    @property
    def cache_bytes(self) -> int:
        return int(self.memory_bytes * CACHE_SHARE)


async def run_peer(config: PeerConfig, identity: Identity, events: PeerEvents, stop: asyncio.Event) -> None:
    """Run a peer until `stop` is set. Raises what keeps it from that."""
    with contextlib.suppress(Stopped):  # while it still fetches or loads
        await _run(config, identity, events, stop)


async def _run(config: PeerConfig, identity: Identity, events: PeerEvents, stop: asyncio.Event) -> None:
    def on_hashing(stage: str, done: int, total: int) -> None:
        if stop.is_set():
            raise Stopped
        events.on_fetching(stage, done, total)

    plan = await asyncio.to_thread(_make_plan, config, on_hashing)
    if config.span is not None:  # before the swarm hears of it
        await _fetch(config, plan, config.span, events, stop)
    async with AsyncExitStack() as stack:
        network = await Libp2pNetwork.start(config.network, identity)
        stack.push_async_callback(network.close)
        await network.serve(MANIFEST_PROTOCOL, ManifestServer(plan.manifest))
        directory = OwnDirectory(network, identity, time.time)
        announcer = Announcer(directory, _profile(config, plan, identity), time.time)
        announcer.reachable = lambda: "direct" if network.reach == "unknown" else network.reach
        instruments = PeerMetrics()
        monitor = Monitor(instruments.metrics, lambda: _reasons(announcer, network))
        stack.push_async_callback(monitor.close)
        port = await monitor.start("127.0.0.1", config.monitor_port)
        events.on_joined(network.addresses, port)
        stack.push_async_callback(_take_back, announcer)
        if config.span is None:
            await _choose_span(directory, announcer, plan, time.time)
        announcing = asyncio.create_task(persist("announcer", announcer.run))
        stack.callback(announcing.cancel)
        reaching = asyncio.create_task(_follow_reach(network, announcer, events))
        stack.callback(reaching.cancel)
        compute = ComputeThread()
        stack.callback(compute.close)
        loader = _SpanLoader(config, plan, announcer, events, stop, compute)
        model, throughput = await loader.load()
        limits = SessionLimits(plan.cache_bytes, plan.config.context_length)
        peer = Peer(model, announcer, limits, throughput, compute, instruments, boot_clock)
        stack.push_async_callback(peer.stop)
        await peer.serve(network)
        served = asyncio.create_task(_tell_online(network, announcer, throughput, events))
        stack.callback(served.cancel)
        following = asyncio.create_task(follow_sleep(peer.pause, peer.resume))
        stack.callback(following.cancel)
        moving = asyncio.create_task(_keep_moving(config, directory, network, peer, loader))
        stack.callback(moving.cancel)
        await until_stopped(stop, network, [announcing, reaching, served, following, moving, *peer.tasks])
        following.cancel()
        moving.cancel()
        with contextlib.suppress(OSError):  # a terminal that was closed cannot be written to
            events.on_leaving(config.drain_s)
        announcing.cancel()
        await peer.leave(config.drain_s)


def _make_plan(config: PeerConfig, on_hashing: StageProgress = ignore_progress) -> _Plan:
    """Raises what keeps this peer from hosting what it is asked to, before the swarm hears of it."""
    model = read_config(config.directory)
    dtype = parse_dtype(config.dtype or model.dtype)
    memory_bytes = _usable_bytes(config.memory_bytes)
    largest = span_size_bytes(model, Span(0, 1), dtype, config.quantization)  # all blocks are alike
    cache = bytes_per_token(model, 1, dtype)
    fitting = blocks_that_fit(int(memory_bytes * (1 - CACHE_SHARE)), largest, cache)
    wanted = config.span or Span(0, model.num_blocks)
    needed_bytes = int(len(wanted) * (largest + cache) / (1 - CACHE_SHARE))
    if config.span is not None:
        model.check_span(config.span)
        check_fits(config.span, fitting, memory_bytes, needed_bytes)
        if not can_be_fetched(config.directory):
            check_files(config.directory, model, config.span)
    elif not fitting:
        check_fits(wanted, fitting, memory_bytes, needed_bytes)
    manifest = ensure_manifest(config.directory, config.store_root, on_hashing)
    return _Plan(model, manifest, dtype_name(dtype), memory_bytes, fitting)


def _usable_bytes(wanted_bytes: int | None) -> int:
    """The memory for blocks and caches: what was given, or most of what is free, and never more than is."""
    free_bytes = available_bytes()
    if wanted_bytes is None:
        return int(free_bytes * MEMORY_SHARE)
    if wanted_bytes > free_bytes:
        _log.warning("%s are free, so --memory counts as that much", format_size(free_bytes))
    return min(wanted_bytes, free_bytes)


def _profile(config: PeerConfig, plan: _Plan, identity: Identity) -> Profile:
    model = plan.config
    return Profile(
        peer=identity.peer_id,
        manifest=plan.manifest.digest,
        model_name=Path(config.model).name,
        model_type=model.model_type,
        num_blocks=model.num_blocks,
        hidden_size=model.hidden_size,
        span=config.span or Span(0, model.num_blocks),
        dtype=plan.dtype,
        quantization=config.quantization,
        public_name=config.public_name,
        started_at=time.time(),
    )


async def _fetch(
    config: PeerConfig, plan: _Plan, span: Span, events: PeerEvents, stop: asyncio.Event
) -> None:
    """Bring here what holds the span and is not here. Raises `Stopped`, and what keeps it from that."""
    if absent := missing_of_span(config.directory, plan.config, span):
        try:
            await unless_stopped(stop, fetch(config.directory, absent, events.on_fetching))
        except Stopped:
            _log.warning("The download is not at its end: the next start goes on with what has arrived")
            raise


async def _choose_span(
    directory: Directory, announcer: Announcer, plan: _Plan, now: Callable[[], float]
) -> None:
    """Take the blocks where this peer helps most; look again until those that came with it are heard of."""
    chosen: Span | None = None
    announcer.profile = replace(announcer.profile, started_at=now())
    ability = Ability(announcer.profile.peer, plan.fitting_blocks, blocks_per_s=None)
    for _ in range(MAX_CHOICES):
        snapshot = await directory.snapshot(plan.manifest.digest, plan.config.num_blocks)
        best = choose(Claims.of(snapshot, now()), plan.config.num_blocks, ability).span
        if best == chosen:
            return
        chosen = best
        announcer.choose_span(chosen)
        await announcer.announce()
        await asyncio.sleep(SETTLE_S * random.uniform(0.5, 1.0))  # noqa: S311 - spreads, guards nothing


async def _take_back(announcer: Announcer) -> None:
    """Do not leave a promise in the directory that this peer could not keep."""
    if announcer.state != "draining" and announcer.announced_at is not None:
        await announcer.withdraw()


@dataclass(slots=True)
class _SpanLoader:
    """Brings here, loads and measures the blocks that the announcer names."""

    config: PeerConfig
    plan: _Plan
    announcer: Announcer
    events: PeerEvents
    stop: asyncio.Event
    compute: ComputeThread
    took_s: float = 0.0

    async def load(self) -> tuple[SpanModel, Throughput]:
        """Raises `Stopped` when told to stop before the end, and what keeps it from getting there."""
        begun = time.monotonic()
        await _fetch(self.config, self.plan, self.announcer.profile.span, self.events, self.stop)
        loaded = await self.compute.run(self._load)
        self.took_s = time.monotonic() - begun
        return loaded

    def _load(self) -> tuple[SpanModel, Throughput]:
        """Runs on the compute thread."""
        span = self.announcer.profile.span

        def on_progress(done: int, total: int) -> None:
            if self.stop.is_set():
                raise Stopped
            self.events.on_loading(span, done, total)

        if self.config.threads is not None:  # kernels are chosen for so many
            torch.set_num_threads(self.config.threads)
        model = load_span(
            self.config.directory,
            self.plan.config,
            span,
            dtype=parse_dtype(self.plan.dtype),
            quantization=self.config.quantization,
            chooser=MeasuringChooser(self.config.store_root),
            manifest=self.plan.manifest,
            on_progress=on_progress,
        )
        return model, measure(model, self.config.threads)


async def _keep_moving(
    config: PeerConfig, directory: Directory, network: Network, peer: Peer, loader: _SpanLoader
) -> None:
    """Move where this peer helps more, for ever; returns where it may not, or when told to stop meanwhile."""
    events, announcer = loader.events, peer.announcer
    if config.span is not None or not config.may_move:
        return
    hosted = peer.announcer.profile.span

    async def move(span: Span) -> None:
        nonlocal hosted
        if not can_be_fetched(config.directory):
            check_files(config.directory, loader.plan.config, span)
        events.on_moving(hosted, span)
        await peer.move(network, loader.load, config.drain_s)
        hosted = span
        events.on_online(announcer.profile, peer.throughput)

    def known() -> Hosted:
        return Hosted(loader.plan.fitting_blocks, peer.throughput.decode_tokens_per_s, loader.took_s)

    mover = Mover(directory, announcer, known, move, time.time, events.on_role)
    with contextlib.suppress(Stopped):
        await mover.run()


async def _follow_reach(network: Libp2pNetwork, announcer: Announcer, events: PeerEvents) -> None:
    """Announce this peer at once when others can or cannot dial it, and when it is back after a cut."""
    told: Reach | None = None
    while True:
        await network.wait_changed()
        if network.reach is not None and network.reach != told:
            told = network.reach
            events.on_reach(told, network.addresses, network.why_unreachable)
        await announcer.announce()


async def _tell_online(
    network: Libp2pNetwork, announcer: Announcer, throughput: Throughput, events: PeerEvents
) -> None:
    """A peer is online when somebody else can dial it, and not before."""
    await network.wait_reachable()
    events.on_online(announcer.profile, throughput)


def _reasons(announcer: Announcer, network: Network) -> list[str]:
    """Why the peer is not ready; empty when it is."""
    reasons = [network.why_unreachable] if network.why_unreachable else []
    if network.behind_s:
        reasons.append(str(ClockOff(network.behind_s)))
    if announcer.state != "online":
        reasons.append(f"the peer is {announcer.state}")
    if announcer.announced_at is None:
        reasons.append("the directory has not taken the record")
    elif announcer.record_age_s >= RECORD_LIFE_S:
        age_s = announcer.record_age_s
        reasons.append(f"the record has expired: the one that the directory took last is {age_s:.0f} s old")
    return reasons
