"""How a lost span is covered again: the one place where a fault becomes a new chain.

Opening the first chain and replacing lost hops are the same act: plan, open all, and if any of it
fails, try again with what is left, until the patience ends. The replay itself needs no code here:
new hops start behind their ledger, and the session pushes them forward like any other.
"""

import asyncio
import contextlib
import random
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

import msgspec

from swarm.client.hop import Hop, HopSettings
from swarm.client.local import LOCAL, LocalBlocks
from swarm.client.remote_hop import open_hop
from swarm.client.router import Numerics, PlannedHop
from swarm.client.routes import DEFAULT_NUMERICS, Routes
from swarm.errors import (
    LossKind,
    NetworkError,
    NoRoute,
    PeerUnreachable,
    ProtocolError,
    SessionRefused,
    SwarmError,
)
from swarm.network.transport import Network
from swarm.security.session_key import SessionKey
from swarm.values import PeerId, Span
from swarm.wire.decoding import Digest
from swarm.wire.messages import NO_ROOM, Role
from swarm.wire.tensors import CODECS

FIRST_RETRY_S, LONGEST_RETRY_S = 0.05, 1.0
LATE_OPEN_S = 0.7  # a session opens in a round trip or two
EPOCHS_PER_TAKE = 1 << 12  # more than one process opens, so that a later one always outranks it
MAX_POSITION = 1 << 31


@dataclass(frozen=True, slots=True)
class Held:
    """What a peer still holds of a session for certain, if nobody has cut it since."""

    position: int
    rewinds: int


NOTHING_HELD = Held(0, 0)
_Place = tuple[PeerId, int]  # a peer, and the first block of what it serves of this session
Exactness = Literal["auto", "fast", "exact"]
LONGEST_EXACT_REPLAY_TOKENS = 512  # with "auto"; step by step, more would take too long


@dataclass(slots=True)
class Resume:
    """One loss and what it cost. `stall_s` is None until the conversation goes on."""

    at_token: int
    lost_peer: str
    kind: LossKind
    reason: str
    started_at: float
    replayed_tokens: int = 0
    exact: bool = False  # replayed step by step
    stall_s: float | None = None

    def end(self, now: float) -> None:
        """The conversation goes on."""
        if self.stall_s is None:
            self.stall_s = now - self.started_at


class SessionState(msgspec.Struct, frozen=True):
    """What a later process needs to find a session again on the peers that hold it."""

    key: Digest  # of the conversation: its secret seed
    epoch: int
    codec: str
    hops: tuple[PlannedHop, ...]
    rewinds: tuple[int, ...] = ()  # of the session on each hop: more, and it is not what it was


@dataclass(slots=True)
class Recovery:
    """Opens chains for one session. `on_wait` is told why it waits, each time it has to."""

    network: Network
    routes: Routes
    settings: HopSettings
    patience_s: float
    exactness: Exactness = "auto"
    local: LocalBlocks | None = None
    numerics: Numerics | None = None
    preferred: Numerics | None = None  # tried first: what an earlier process's chain computed in
    settled: bool = False  # the first chain stands; numerics and codec are fixed
    began_anew: bool = False  # with sessions of its own, since another process took the earlier ones over
    on_wait: Callable[[SwarmError], None] = lambda error: None
    jitter: random.Random = field(default_factory=random.Random)

    def is_exact(self, replay_tokens: int) -> bool:
        """Whether to replay so many rows in the very steps that were sent, so that the bits are the same.

        In fp32, not quantised, no token hangs on the bits that a replay in chunks changes: never needed.
        """
        if self.exactness != "auto":
            return self.exactness == "exact"
        plain = (self.numerics or DEFAULT_NUMERICS) == DEFAULT_NUMERICS
        return not plain and replay_tokens <= LONGEST_EXACT_REPLAY_TOKENS

    async def open_chain(self, span: Span) -> list[Hop]:
        """Open a first chain over `span`, and settle how hidden states travel.

        Raises `NoRoute` when patience ends.
        """
        return await self._cover(span, {})

    async def replace(self, lost: Sequence[Hop]) -> list[Hop]:
        """Open hops over the span of neighbouring lost ones; raises like `open_chain`.

        A lost peer that is found again may still hold the session; what it holds is used.
        """
        held = {(hop.planned.peer, hop.planned.span.start): Held(hop.position, hop.rewinds) for hop in lost}
        for hop in lost:
            await hop.drop()
            if hop.lost is not None and hop.lost.silent_s is not None:  # its connection may be dead, too
                await self.network.hang_up(hop.planned.peer, hop.lost.silent_s)
        span = Span(lost[0].planned.span.start, lost[-1].planned.span.end)
        return await self._cover(span, held, self._kernels_for(lost))

    async def open_beside(self, hop: Hop, role: Role) -> list[Hop]:
        """Open hops over the blocks of a living one, on other peers, without waiting. Raises `SwarmError`."""
        numerics = self.numerics or hop.planned.numerics
        others, kernels = frozenset([hop.planned.peer]), self._kernels_for([hop])
        planned = await self.routes.plan(hop.planned.span, numerics, others, kernels=kernels)
        return await self._open_all(planned, {}, role)

    async def reopen(self, state: SessionState) -> list[Hop]:
        """Take up the session of an earlier process on the very peers it was on. Raises `SwarmError`."""
        if self.local is None and any(hop.peer == LOCAL for hop in state.hops):
            raise NoRoute("Some blocks were run by that process itself", "Allow it with --local-fallback.")
        if self.numerics is not None and any(hop.numerics != self.numerics for hop in state.hops):
            raise NoRoute(f"The conversation was not held in {self.numerics.dtype}")
        self.preferred = _common(state.hops)
        self.settings = replace(
            self.settings,
            key=SessionKey(bytes.fromhex(state.key)),
            epoch=state.epoch + EPOCHS_PER_TAKE,
            codec=state.codec,
        )
        places = zip(state.hops, state.rewinds, strict=False)
        held = {(hop.peer, hop.span.start): Held(MAX_POSITION, rewinds) for hop, rewinds in places}
        hops = await self._open_all(state.hops, held)
        if tuple(hop.rewinds for hop in hops) != state.rewinds:
            await asyncio.gather(*(hop.close() for hop in hops))
            raise NoRoute("The session has been cut since, so it holds something else")
        self.numerics, self.settled = self.preferred, True
        return hops

    def _kernels_for(self, hops: Sequence[Hop]) -> str:
        """What others than these hops should compute with so that the bits are the same, if that matters."""
        kinds = {hop.planned.kernels for hop in hops}
        return kinds.pop() if self.is_exact(0) and len(kinds) == 1 else ""

    async def _cover(self, span: Span, held: Mapping[_Place, Held], kernels: str = "") -> list[Hop]:
        ends_at, wanted = _now() + self.patience_s, self.numerics
        for delay_s in _backoff(self.jitter):
            try:
                planned = await self._plan(span, kernels)
                self._prepare(planned)
                hops = await self._open_chain(planned, held)
            except (NoRoute, NetworkError, ProtocolError, SessionRefused) as error:
                if not self.settled:
                    self.numerics = wanted
                if _now() + delay_s > ends_at:
                    raise self.routes.explain(span, error) from error
                self.on_wait(self.routes.explain(span, error))
            else:
                self.settled, self.began_anew = True, False
                return hops
            await asyncio.sleep(delay_s)
        raise AssertionError("the backoff never ends")

    async def _plan(self, span: Span, kernels: str) -> tuple[PlannedHop, ...]:
        """A chain of peers, with blocks that nobody hosts run here if that is wanted and possible."""
        if self.preferred is not None and not self.settled:
            with contextlib.suppress(NoRoute):
                return await self.routes.plan(span, self.preferred)
        if self.local is not None:  # then nothing has to be hoped of peers that were lost
            with contextlib.suppress(NoRoute):
                return await self.routes.plan(span, self.numerics, with_lost=False, kernels=kernels)
            route = self.routes.plan_around(span, self.numerics, LOCAL)
            if all(self.local.fits(hop.span, hop.numerics) for hop in route if hop.peer == LOCAL):
                return route
        return await self.routes.plan(span, self.numerics, kernels=kernels)

    def _prepare(self, planned: Sequence[PlannedHop]) -> None:
        """Choose the numerics and the codec of the first chain; once that stands they never change."""
        if self.settled:
            return
        self.numerics = _common(planned)
        codec = self.numerics.dtype if self.numerics else "fp32"
        self.settings = replace(self.settings, codec=codec)

    async def _open_all(
        self, planned: Sequence[PlannedHop], held: Mapping[_Place, Held], role: Role = "active"
    ) -> list[Hop]:
        """Open every hop of a plan, or none."""
        self.settings = settings = replace(self.settings, epoch=self.settings.epoch + 1)
        return await _all_of([self._open_one(hop, settings, held, role) for hop in planned])

    async def _open_chain(self, planned: Sequence[PlannedHop], held: Mapping[_Place, Held]) -> list[Hop]:
        """As `_open_all`, but beside a hop that is late others are opened; what answers first is taken."""
        self.settings = settings = replace(self.settings, epoch=self.settings.epoch + 1)
        return await _all_of([self._open_in_time(hop, settings, held) for hop in planned])

    async def _open_in_time(
        self, planned: PlannedHop, settings: HopSettings, held: Mapping[_Place, Held]
    ) -> list[Hop]:
        if (planned.peer, planned.span.start) in held:  # what it still holds is worth waiting for
            return await self._open_one(planned, settings, held, "active")
        first = asyncio.create_task(self._open_one(planned, settings, held, "active"))
        tasks = [first]
        try:
            await asyncio.wait(tasks, timeout=LATE_OPEN_S)
            if not first.done() and (others := self._others(planned)):
                tasks.append(asyncio.create_task(self._open_all(others, {})))
            pending = set(tasks)
            while pending:
                done, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
                opened = next((task for task in done if task.exception() is None), None)
                if opened is None:
                    continue
                if opened is not first:
                    self.routes.lost(planned.peer, "late", f"Peer {planned.peer} opens no session")
                tasks.remove(opened)
                return opened.result()
            return first.result()
        finally:
            await _abandon(tasks)

    def _others(self, planned: PlannedHop) -> Sequence[PlannedHop]:
        """Who could take the place of a hop, by what is known already; nobody for blocks run here."""
        if planned.peer == LOCAL:
            return ()
        try:
            return self.routes.plan_at_hand(planned.span, planned.numerics, frozenset([planned.peer]))
        except (NoRoute, NetworkError):
            return ()

    async def _open_one(
        self, planned: PlannedHop, settings: HopSettings, places: Mapping[_Place, Held], role: Role
    ) -> list[Hop]:
        if self.local is not None and planned.peer == LOCAL:
            return [await self.local.open(planned, CODECS[settings.codec])]
        held = places.get((planned.peer, planned.span.start), NOTHING_HELD)
        bytes_per_s = self.routes.bytes_per_s(planned.peer)
        try:
            hop = await open_hop(
                self.network, planned, settings, role, bytes_per_s, may_wait=held != NOTHING_HELD
            )
        except (NetworkError, ProtocolError, SessionRefused) as error:
            if _is_fenced(error) and not self.began_anew:
                # another process has taken the conversation over: this one goes on with sessions of its own
                self.settings, self.began_anew = replace(self.settings, key=SessionKey.new()), True
            else:
                self.routes.lost(planned.peer, _kind_of(error), str(error))
            raise
        self.routes.heard(planned.peer, hop.rtt_s)
        # What the peer did after our last certain knowledge is void; all is, where another has cut it.
        hop.rewind(held.position if hop.rewinds == held.rewinds else 0)
        return [hop]


def _kind_of(error: SwarmError) -> LossKind:
    """Why a hop could not be opened."""
    if isinstance(error, PeerUnreachable):
        return "unreached"
    if isinstance(error, SessionRefused):
        return "full" if error.fault_code == NO_ROOM else "refused"
    return "nonsense" if isinstance(error, ProtocolError) else "broken"


def _is_fenced(error: SwarmError) -> bool:
    return isinstance(error, SessionRefused) and error.fault_code == "fenced"


def _common(planned: Sequence[PlannedHop]) -> Numerics | None:
    """What all of them compute in, if it is the same."""
    kinds = {hop.numerics for hop in planned}
    return kinds.pop() if len(kinds) == 1 else None


async def _all_of(openings: Sequence[Coroutine[None, None, list[Hop]]]) -> list[Hop]:
    """What all of them open, in order; what some have opened is closed again when one fails."""
    tasks = [asyncio.create_task(opening) for opening in openings]
    try:
        await asyncio.wait(tasks)
        errors = [error for task in tasks if (error := task.exception())]
        if not errors:
            return [hop for task in tasks for hop in task.result()]
    except asyncio.CancelledError:
        await _abandon(tasks)
        raise
    await _abandon(tasks)
    raise errors[0]


async def _abandon(tasks: Sequence[asyncio.Task[list[Hop]]]) -> None:
    """Close what was opened of a chain that did not come about; what a peer still held it keeps."""
    for task in tasks:
        task.cancel()
    results = await asyncio.gather(*tasks, return_exceptions=True)
    hops = [hop for result in results if not isinstance(result, BaseException) for hop in result]
    await asyncio.gather(*(hop.drop() if hop.position else hop.close() for hop in hops))


def _backoff(jitter: random.Random) -> Iterator[float]:
    """Seconds to wait before each next attempt: doubling, bounded, and spread by half."""
    delay_s = FIRST_RETRY_S
    while True:
        yield delay_s * jitter.uniform(0.5, 1.0)
        delay_s = min(LONGEST_RETRY_S, 2 * delay_s)


def _now() -> float:
    return asyncio.get_running_loop().time()
