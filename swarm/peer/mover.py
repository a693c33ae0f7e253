"""Looks now and then whether this peer would help more elsewhere, and has it move when it would.

The rules are in `peer/placement/moves`; here they meet the directory and the clock. A move is a leave of
the old blocks: the directory hears of it first, then a second look makes sure that the others hold what
is left behind, and only then are the sessions asked to go.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from itertools import count

from swarm.errors import NetworkError
from swarm.network.directory import Directory
from swarm.peer.announcer import Announcer
from swarm.peer.placement.choice import Ability, Role, role_of
from swarm.peer.placement.cover import Claims
from swarm.peer.placement.moves import PresentPlace, better_place, may_go, next_look_s
from swarm.values import Span

SETTLE_S = 2.0  # for the directory to hear of a move, before this peer looks again and lets go

_logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Hosted:
    """What the peer can do, and what it took to load what it hosts."""

    fitting_blocks: int
    decode_tokens_per_s: float  # through its span
    load_s: float


@dataclass(slots=True)
class Mover:
    """Moves one peer. `run` until cancelled. `now` is the wall clock, in Unix seconds."""

    directory: Directory
    announcer: Announcer
    hosted: Callable[[], Hosted]
    move: Callable[[Span], Awaitable[None]]  # host these blocks, which the announcer names already
    now: Callable[[], float]
    on_role: Callable[[Role, str], None] = lambda role, why: None  # when clients' use of the peer changes
    _role: Role = "serve"

    async def run(self) -> None:
        """Look for ever, the rarer the more peers there are."""
        peers = 0
        for looks in count():
            await asyncio.sleep(next_look_s(peers, self.announcer.profile.peer, looks))
            if self.announcer.state != "online":
                continue
            try:
                claims = await self._claims()
            except NetworkError as error:
                _logger.info("Not looked for better blocks: %s", error)
                continue
            peers = len(claims)
            await self._consider(claims)

    async def _consider(self, claims: Claims) -> None:
        profile, hosted = self.announcer.profile, self.hosted()
        blocks_per_s = hosted.decode_tokens_per_s * len(profile.span)
        ability = Ability(profile.peer, hosted.fitting_blocks, blocks_per_s)
        standing = PresentPlace(profile.span, self.now() - profile.started_at, hosted.load_s)
        better = better_place(claims, profile.num_blocks, ability, standing)
        if better is not None:
            await self._go(better.span)
            return
        role, why = role_of(claims.without(profile.peer), ability, profile.span)
        if role != self._role:
            self._role = role
            self.on_role(role, why)

    async def _go(self, span: Span) -> None:
        """Say where this peer goes, and go there unless that would leave a block without a peer."""
        old = self.announcer.profile.span
        self.announcer.choose_span(span)
        await self.announcer.move_to("joining")
        await asyncio.sleep(SETTLE_S)
        if not await self._is_free_to_go(old):
            _logger.info("Stays with blocks %s: others that hosted them have gone", old)
            self.announcer.choose_span(old)
            await self.announcer.move_to("online")
            return
        _logger.info("Moves from blocks %s to %s, where it is needed more", old, span)
        await self.move(span)

    async def _is_free_to_go(self, old: Span) -> bool:
        profile = self.announcer.profile
        try:
            return may_go(await self._claims(), profile.num_blocks, profile.peer, old)
        except NetworkError:
            return False

    async def _claims(self) -> Claims:
        profile = self.announcer.profile
        return Claims.of(await self.directory.snapshot(profile.manifest, profile.num_blocks), self.now())
