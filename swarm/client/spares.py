"""Spares: peers that follow a session, so that a loss or a leave costs only what they lag behind.

A `Spare` is a second chain over one link's blocks, mostly of one hop, fed from the same ledger at
low priority. `is_worth_it` is the policy, pure arithmetic over what is known of a peer.
"""

import asyncio
from collections.abc import Callable, Sequence
from typing import Literal

from swarm.client.chain import Link, push
from swarm.client.hop import Hop
from swarm.client.ledger import Ledger
from swarm.errors import HopLost
from swarm.wire.records import PeerRecord

Policy = Literal["off", "auto", "always"]

MAX_LAG_TOKENS = 8  # a spare is fed when it is so far behind
SETTLED_AFTER_S = 3600.0  # a peer up for this long is expected to stay as long again
YOUNGEST_S = 60.0
RELAY_FACTOR, BATTERY_FACTOR = 2.0, 3.0
HORIZON_S = 600.0  # a conversation is expected to go on for so long
WORTH_STALL_S = 0.5  # a spare is kept when it saves more than this over the horizon


def is_worth_it(record: PeerRecord, history_tokens: int, losses: int, now: float) -> bool:
    """Whether the hazard of losing this peer times the cost of a replay is worth a spare.

    The hazard follows Lindy's law: a process that has lived for a while is expected to live as long
    again. `losses` are those of this conversation so far.
    """
    uptime_s = min(SETTLED_AFTER_S, max(YOUNGEST_S, now - record.started_at))
    hazard_per_s = (1 + losses) / uptime_s
    hazard_per_s *= RELAY_FACTOR if record.relayed else 1.0
    hazard_per_s *= BATTERY_FACTOR if record.on_battery else 1.0
    replay_s = history_tokens / max(1.0, record.prefill_tokens_per_s)
    return min(1.0, hazard_per_s * HORIZON_S) * replay_s > WORTH_STALL_S


class Spare:
    """Follows one link's ledger over hops of its own, in a task of its own.

    `is_exact` tells whether to repeat so many rows in the steps that were sent first; `exact` whether
    all were, so that its caches are those of the link to the bit.
    """

    def __init__(self, hops: Sequence[Hop], ledger: Ledger, is_exact: Callable[[int], bool]) -> None:
        ledgers = [ledger, *(Ledger(ledger.hidden_size, ledger.dtype) for _ in hops[1:])]
        self.links = [Link(hop, each) for hop, each in zip(hops, ledgers, strict=True)]
        self.max_lag = MAX_LAG_TOKENS
        self.exact = ledger.knows_steps_since(0)
        self._is_exact = is_exact
        self._grown = asyncio.Event()
        self._following: asyncio.Task[None] | None = None

    @property
    def lost(self) -> bool:
        """Whether a hop of it is gone, so that it is of no use."""
        return any(link.hop.lost is not None for link in self.links)

    @property
    def lag(self) -> int:
        """How many rows the slowest hop of it has not seen."""
        return self.links[0].ledger.end - min(link.hop.position for link in self.links)

    def wake(self) -> None:
        """The ledger has grown."""
        self._grown.set()
        if self._following is None and not self.lost:
            self._following = asyncio.create_task(self._follow())

    async def pause(self) -> None:
        """Stop feeding; `wake` goes on. What was under way is taken back."""
        following, self._following = self._following, None
        if following is not None:
            following.cancel()
            await asyncio.gather(following, return_exceptions=True)

    @property
    def follows(self) -> bool:
        """Whether it is being fed."""
        return self._following is not None

    def rewind(self, position: int) -> None:
        """Forget everything from `position` on, while paused. The shared ledger is the session's to cut."""
        for link in self.links:
            if link is not self.links[0]:
                link.ledger.truncate(position)
            link.hop.rewind(position)

    async def promote(self) -> list[Link]:
        """Hand the links over to the session; they are active from now on."""
        await self.pause()
        for link in self.links:
            await link.hop.promote()
        return self.links

    async def close(self, wait_s: float = 0.0) -> None:
        """Free it on its peers; see `Hop.close`."""
        await self.pause()
        await asyncio.gather(*(link.hop.close(wait_s) for link in self.links))

    async def _follow(self) -> None:
        try:
            while True:
                self._grown.clear()
                if self.lag < self.max_lag:
                    await self._grown.wait()
                    continue
                await self._catch_up()
        except HopLost:
            self._following = None  # `lost` says so

    async def _catch_up(self) -> None:
        """Push every hop of it to the end of the ledger as it is now. Raises `HopLost`."""
        exact = self._is_exact(self.lag)
        self.exact = self.exact and exact
        for index, link in enumerate(self.links):
            while link.hop.position < link.ledger.end:
                end = link.ledger.next_end(link.hop.position, exact)
                await push(self.links, index, end, results=None)
