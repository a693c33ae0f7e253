"""Watches over one session while it lives: keeps spares, and moves away from peers before they are lost.

Looks at every hop twice a second. A hop that announced its leave, or that has become much slower
than another would be, is followed by a replacement and swapped when that has caught up, so the
reader sees nothing. Decides by the policy; how a swap is done is `client/session`'s business.
"""

import asyncio
import contextlib
import logging
from collections.abc import Callable
from dataclasses import dataclass, field

from swarm.client.chain import Link
from swarm.client.session import Session
from swarm.client.spares import Policy, Spare, is_worth_it
from swarm.errors import HopLost, NetworkError, NoRoute, SwarmError

LOOK_EVERY_S = 0.5
RETRY_AFTER_S = 5.0  # when no replacement could be had
COMPARE_EVERY_S = 5.0
SLOW_FACTOR = 3.0  # so much slower than another peer would be,
SLOW_BY_S = 0.1  # and by at least so much a token
STEPS_TO_JUDGE = 12
CAUGHT_UP_TOKENS = 2

_logger = logging.getLogger(__name__)


@dataclass(slots=True)
class Guardian:
    """Guards one session. `now` is the wall clock, in Unix seconds, as records have it."""

    session: Session
    policy: Policy
    now: Callable[[], float]
    _not_before: dict[Link, float] = field(default_factory=dict)  # next try of a link, by the loop's clock
    _compared_at: float = 0.0
    _slow: set[Link] = field(default_factory=set)
    _task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin to watch; does nothing when it watches already."""
        if self._task is None:
            self._task = asyncio.create_task(self._watch())

    async def close(self) -> None:
        """Stop watching."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            self._task = None

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(LOOK_EVERY_S)
            self._compare()
            await self._keep_alive()
            with contextlib.suppress(SwarmError):  # an old snapshot serves on
                await self.session.recovery.routes.keep_fresh()
            for link in self.session.links:
                try:
                    await self._look(link)
                except SwarmError as error:  # a spare is a help, never a reason to fail
                    _logger.info("No spare for blocks %s: %s", link.hop.planned.span, error)
                    self._not_before[link] = _now() + RETRY_AFTER_S

    async def _keep_alive(self) -> None:
        followed = [link for spare in self.session.spares.values() for link in spare.links]
        for link in (*self.session.links, *followed):
            await link.hop.keep_alive()

    async def _look(self, link: Link) -> None:
        if link.hop.lost is not None:
            return  # the session is about to replace it
        spares, spare = self.session.spares, self.session.spares.get(link)
        must_move = link.hop.leaving_in_s is not None or link in self._slow or link.hop.is_late
        if spare is not None and spare.lost:
            del spares[link]
            await spare.close()
            raise HopLost(spare.links[0].hop.planned.peer, "broken", "it was a spare")
        if spare is None:
            is_whole = link.ledger.start == 0  # else a spare could never catch up
            if (
                is_whole
                and (must_move or self._wants_spare(link))
                and _now() >= self._not_before.get(link, 0.0)
            ):
                await self.session.follow(link, "active" if must_move else "spare")
        elif must_move:
            spare.max_lag = 1
            spare.wake()
            await self._move(link, spare)

    async def _move(self, link: Link, spare: Spare) -> None:
        """Let a spare that has caught up take the place of a hop that is to be left."""
        if link.hop.is_late:  # the session waits for that hop, and promotes the spare when it is lost
            if spare.lag == 0:
                link.hop.give_up("it answers far too late")
        elif spare.lag <= CAUGHT_UP_TOKENS:
            self._slow.discard(link)
            await self.session.swap(link, "leaving" if link.hop.leaving_in_s is not None else "slow")

    def _wants_spare(self, link: Link) -> bool:
        if self.policy != "auto" or self.session.position == 0:
            return self.policy == "always"
        record = self.session.recovery.routes.record(link.hop.planned.peer)
        losses = len(self.session.resumes)
        return record is not None and is_worth_it(record, self.session.position, losses, self.now())

    def _compare(self) -> None:
        """Find the hops that have become much slower than others would be."""
        if _now() - self._compared_at < COMPARE_EVERY_S:
            return
        self._compared_at = _now()
        routes = self.session.recovery.routes
        for link in self.session.links:
            hop = link.hop
            if hop.stats.steps < STEPS_TO_JUDGE or not hop.decode_s:
                continue
            routes.observed(hop.planned.peer, hop.planned.span, hop.decode_s)
            try:
                others = routes.plan_at_hand(
                    hop.planned.span, hop.planned.numerics, frozenset([hop.planned.peer])
                )
            except (NoRoute, NetworkError):
                continue
            expected_s = sum(other.expected_ms for other in others) / 1e3
            if hop.decode_s > max(SLOW_FACTOR * expected_s, expected_s + SLOW_BY_S):
                self._slow.add(link)


def _now() -> float:
    return asyncio.get_running_loop().time()
