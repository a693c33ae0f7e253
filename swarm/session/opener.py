"""Opens hops: plans a chain over some blocks and opens a session on each of its peers, all or none.

One try each time; whether there is another is decided in `session/chain`. The first chain settles in
which numbers the session is computed and how hidden states travel.
"""

import asyncio
import contextlib
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, replace

import msgspec

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
from swarm.session.hop import Hop, HopSettings
from swarm.session.local import LOCAL, LocalBlocks
from swarm.session.plan import Numerics, PlannedHop, Planner, common_numerics
from swarm.session.remote_hop import open_hop
from swarm.session.rules import ChainRules
from swarm.values import PeerId, Span
from swarm.wire.decoding import Digest
from swarm.wire.messages import NO_ROOM, Role
from swarm.wire.tensors import CODECS

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


class SessionState(msgspec.Struct, frozen=True):
    """What a later process needs to find a session again on the peers that hold it."""

    key: Digest  # of the conversation: its secret seed
    epoch: int
    codec: str
    hops: tuple[PlannedHop, ...]
    rewinds: tuple[int, ...] = ()  # of the session on each hop: more, and it is not what it was


@dataclass(slots=True)
class Opener:
    """Opens hops for one session. `on_wait` is told why it waits, each time it has to."""

    network: Network
    planner: Planner
    settings: HopSettings
    rules: ChainRules
    local: LocalBlocks | None = None
    numerics: Numerics | None = None
    preferred: Numerics | None = None  # tried first: what an earlier process's chain computed in
    settled: bool = False  # the first chain stands; numerics and codec are fixed
    began_anew: bool = False  # with sessions of its own, since another process took the earlier ones over
    on_wait: Callable[[SwarmError], None] = lambda error: None

    async def open_chain(self, span: Span, lost: Mapping[Hop, int] | None = None) -> list[Hop]:
        """Open hops over `span`, in place of neighbouring ones that are lost, which held so many tokens.

        A lost peer that is found again may still hold the session; what it holds is used. Raises `NoRoute`,
        `NetworkError`, `ProtocolError` or `SessionRefused`, which another try may not meet.
        """
        lost = lost or {}
        held = {
            (hop.planned.peer, hop.planned.span.start): Held(position, hop.rewinds)
            for hop, position in lost.items()
        }
        wanted = self.numerics
        try:
            planned = await self._plan(span, self._kernels_for([hop.planned for hop in lost]))
            self._prepare(planned)
            hops = await self._open_hedged(planned, held)
        except (NoRoute, NetworkError, ProtocolError, SessionRefused):
            if not self.settled:
                self.numerics = wanted
            raise
        self.settled, self.began_anew = True, False
        return hops

    async def let_go(self, lost: Hop) -> None:
        """End what there is of a lost hop, so that its peer can be asked anew."""
        await lost.drop()
        if lost.lost is not None and lost.lost.silent_s is not None:  # its connection may be dead, too
            await self.network.hang_up(lost.planned.peer, lost.lost.silent_s)

    async def open_beside(self, hop: PlannedHop, role: Role) -> list[Hop]:
        """Open hops over the blocks of a living one, on other peers. Raises `SwarmError`."""
        numerics, others = self.numerics or hop.numerics, frozenset([hop.peer])
        planned = await self.planner.plan(hop.span, numerics, others, kernels=self._kernels_for([hop]))
        return await self._open_all(planned, {}, role)

    def tell_waiting(self, span: Span, error: SwarmError) -> None:
        """Say that the session waits for a span, and why."""
        self.on_wait(self.planner.explain(span, error))

    async def reopen(self, state: SessionState) -> list[Hop]:
        """Take up the session of an earlier process on the very peers it was on. Raises `SwarmError`."""
        if self.local is None and any(hop.peer == LOCAL for hop in state.hops):
            raise NoRoute("Some blocks were run by that process itself", "Allow it with --local-fallback.")
        if self.numerics is not None and any(hop.numerics != self.numerics for hop in state.hops):
            raise NoRoute(f"The conversation was not held in {self.numerics.dtype}")
        self.preferred = common_numerics(state.hops)
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

    def _kernels_for(self, hops: Sequence[PlannedHop]) -> str:
        """What others than these hops should compute with so that the bits are the same, if that matters."""
        kinds = {hop.kernels for hop in hops}
        return kinds.pop() if len(kinds) == 1 and self.rules.is_exact(0, self.numerics) else ""

    async def _plan(self, span: Span, kernels: str) -> tuple[PlannedHop, ...]:
        """A chain of peers, with blocks that nobody hosts run here if that is wanted and possible."""
        if self.preferred is not None and not self.settled:
            with contextlib.suppress(NoRoute):
                return await self.planner.plan(span, self.preferred)
        if self.local is not None:  # then nothing has to be hoped of peers that were lost
            with contextlib.suppress(NoRoute):
                return await self.planner.plan(span, self.numerics, with_lost=False, kernels=kernels)
            route = self.planner.plan_around(span, self.numerics, LOCAL)
            if all(self.local.fits(hop.span, hop.numerics) for hop in route if hop.peer == LOCAL):
                return route
        return await self.planner.plan(span, self.numerics, kernels=kernels)

    def _prepare(self, planned: Sequence[PlannedHop]) -> None:
        """Choose the numerics and the codec of the first chain; once that stands they never change."""
        if self.settled:
            return
        self.numerics = common_numerics(planned)
        codec = self.numerics.dtype if self.numerics else "fp32"
        self.settings = replace(self.settings, codec=codec)

    async def _open_all(
        self, planned: Sequence[PlannedHop], held: Mapping[_Place, Held], role: Role = "active"
    ) -> list[Hop]:
        """Open every hop of a plan, or none."""
        self.settings = settings = replace(self.settings, epoch=self.settings.epoch + 1)
        return await _all_of([self._open_one(hop, settings, held, role) for hop in planned])

    async def _open_hedged(self, planned: Sequence[PlannedHop], held: Mapping[_Place, Held]) -> list[Hop]:
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
                    self.planner.lost(planned.peer, "late", f"Peer {planned.peer} opens no session")
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
            return self.planner.plan_at_hand(planned.span, planned.numerics, frozenset([planned.peer]))
        except (NoRoute, NetworkError):
            return ()

    async def _open_one(
        self, planned: PlannedHop, settings: HopSettings, places: Mapping[_Place, Held], role: Role
    ) -> list[Hop]:
        if self.local is not None and planned.peer == LOCAL:
            return [await self.local.open(planned, CODECS[settings.codec])]
        held = places.get((planned.peer, planned.span.start), NOTHING_HELD)
        bytes_per_s = self.planner.bytes_per_s(planned.peer)
        try:
            hop = await open_hop(
                self.network, planned, settings, role, bytes_per_s, may_wait=held != NOTHING_HELD
            )
        except (NetworkError, ProtocolError, SessionRefused) as error:
            if _is_fenced(error) and not self.began_anew:
                # another process has taken the conversation over: this one goes on with sessions of its own
                self.settings, self.began_anew = replace(self.settings, key=SessionKey.new()), True
            else:
                self.planner.lost(planned.peer, _kind_of(error), str(error))
            raise
        self.planner.heard(planned.peer, hop.rtt_s)
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
