"""A session: one conversation's hidden states on their way through a chain of hops.

In front of every hop stands a `Ledger` of all rows sent to it; progress, replay and spares are all
the same push (`client/chain`). Losses are raised as `HopLost` below and handled in one place,
`Session._advance`, by a spare where there is one and by `client/recovery` where there is none.
"""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import torch

from swarm.client.chain import Link, push
from swarm.client.hop import Hop
from swarm.client.ledger import CHUNK_TOKENS, Ledger
from swarm.client.recovery import Recovery, Resume, SessionState
from swarm.client.spares import Spare
from swarm.errors import HopLost
from swarm.values import Span
from swarm.wire.messages import Role
from swarm.wire.tensors import CODECS

CLOSE_WAIT_S = 1.0  # for peers to free a conversation that ends


@dataclass(slots=True)
class _Lost:
    """A link whose hop is gone."""

    link: Link
    error: HopLost


class Session:
    """The chain of one conversation. `extend` adds rows and gives the results of the last ones.

    Rows are [tokens, hidden]. Calls wait for each other. Cancelling a call leaves the session whole.
    `recall` gives the rows from position 0 to another again, for the case that peers lose what only
    they still held.
    """

    def __init__(self, recovery: Recovery, blocks: Span, recall: Callable[[int], torch.Tensor]) -> None:
        self.recovery = recovery
        self.resumes: list[Resume] = []
        self.spares: dict[Link, Spare] = {}
        self._blocks = blocks
        self._recall = recall
        self._links: list[Link] = []
        self._results = self._new_ledger()  # of the last hop, from where they are wanted
        self._progress = asyncio.Condition()
        self._turn = asyncio.Lock()
        self._openings: set[asyncio.Task[list[Hop]]] = set()  # of spares
        self._furthest: dict[int, int] = {}  # by first block: how far any hop of it has come in this advance
        self._stuck_since: float | None = None  # the first loss since any hop got further

    @property
    def position(self) -> int:
        """How many tokens the conversation holds."""
        return self._links[0].ledger.end if self._links else 0

    @property
    def held(self) -> int:
        """How many tokens every hop holds for certain."""
        return min((link.hop.position for link in self._links), default=0)

    @property
    def links(self) -> Sequence[Link]:
        """The chain as it is now."""
        return tuple(self._links)

    @property
    def hops(self) -> tuple[Hop, ...]:
        """The hops of the chain as it is now."""
        return tuple(link.hop for link in self._links)

    async def extend(self, rows: torch.Tensor, reply_tokens: int = 1) -> torch.Tensor:
        """Push rows [tokens, hidden] through all blocks; gives the hidden states of the last `reply_tokens`.

        Survives the loss of any hops. Raises `NoRoute` when some blocks are on no live peer for
        longer than the patience; the rows are kept, and the conversation can go on later.
        """
        if not 1 <= reply_tokens <= len(rows):
            raise ValueError(f"{len(rows)} rows have no {reply_tokens} results")
        async with self._turn:
            if not self._links:
                await self._open()
            self._links[0].ledger.append(rows)
            self._results = self._new_ledger(self.position - reply_tokens)
            await self._advance()
            return self._results.rows(self._results.start, self.position)

    async def rewind(self, position: int) -> None:
        """Forget everything from `position` on."""
        async with self._turn:
            while following := [spare for spare in self.spares.values() if spare.follows]:
                for spare in following:
                    await spare.pause()
            # From here on nothing waits: all is cut or, when this was cancelled before, nothing.
            for link in self._links:
                link.ledger.truncate(position)
                link.hop.rewind(position)
            for spare in self.spares.values():
                spare.rewind(position)
            self._results.truncate(position)

    async def swap(self, link: Link, kind: Literal["slow", "leaving"]) -> None:
        """Let the link's spare take its place while nothing is lost: a planned leave, or a slow peer."""
        async with self._turn:
            if link in self._links and link in self.spares:
                resume = Resume(self.position, link.hop.planned.peer, kind, f"it is {kind}", _now())
                self.resumes.append(resume)
                if await self._promote(link):
                    resume.end(_now())
                else:
                    self.resumes.remove(resume)

    async def follow(self, link: Link, role: Role) -> None:
        """Let a spare follow the link. Raises `SwarmError`.

        Gives up when a loss has to be made good meanwhile: two takes of one session must not meet on a peer.
        """
        opening = asyncio.create_task(self.recovery.open_beside(link.hop, role))
        self._openings.add(opening)
        try:
            await asyncio.wait({opening})
        finally:
            self._openings.discard(opening)
            opening.cancel()
            await asyncio.gather(opening, return_exceptions=True)
        if opening.cancelled():
            return
        hops = opening.result()
        if link not in self._links or link.hop.lost is not None:
            await asyncio.gather(*(hop.close() for hop in hops))
            return
        self.spares[link] = Spare(hops, link.ledger, self.recovery.is_exact)
        self.spares[link].wake()

    def export(self) -> SessionState | None:
        """Where the session stands, for `take_up` by a later process; None before there is a chain."""
        if not self._links:
            return None
        settings = self.recovery.settings
        return SessionState(
            key=settings.key.seed.hex(),
            epoch=settings.epoch,
            codec=settings.codec,
            hops=tuple(link.hop.planned for link in self._links),
            rewinds=tuple(link.hop.rewinds for link in self._links),
        )

    async def take_up(self, state: SessionState, end: int) -> int:
        """Find again what peers still hold of an earlier process's session, up to position `end`.

        Gives the position from which on rows have to be sent. Raises what `Recovery.reopen` raises.
        """
        async with self._turn:
            hops = await self.recovery.reopen(state)
            held = min(end, *(hop.position for hop in hops))
            for hop in hops:
                hop.rewind(held)
            ledgers = [self._new_ledger(), *(self._new_ledger(held) for _ in hops[1:])]
            ledgers[0].recall(self._recall(held))  # so that the first hop can have a spare
            self._links = [Link(hop, ledger) for hop, ledger in zip(hops, ledgers, strict=True)]
            self._results = self._new_ledger(held)
            return held

    async def close(self) -> None:
        """Free the session on every peer."""
        links, self._links = self._links, []
        spares, self.spares = self.spares, {}
        of_links = (link.hop.close(CLOSE_WAIT_S) for link in links)
        await asyncio.gather(*of_links, *(spare.close(CLOSE_WAIT_S) for spare in spares.values()))

    async def leave(self) -> None:
        """End the streams only: the peers keep the session for a while, for `take_up`."""
        links, self._links = self._links, []
        spares, self.spares = self.spares, {}
        await asyncio.gather(
            *(link.hop.drop() for link in links), *(spare.close() for spare in spares.values())
        )

    async def _open(self) -> None:
        hops = await self.recovery.open_chain(self._blocks)
        self._links = [Link(hop, self._new_ledger()) for hop in hops]

    def _new_ledger(self, start: int = 0) -> Ledger:
        settings = self.recovery.settings
        return Ledger(settings.hidden_size, CODECS[settings.codec], start)

    async def _advance(self) -> None:
        """Bring every hop to the end of the conversation, replacing those that are lost on the way.

        Raises `NoRoute` when what takes the place of lost hops gets no further for as long as the patience
        lasts. How long a loss went unnoticed does not count.
        """
        started_at, self._stuck_since = _now(), None
        self._furthest.clear()
        while lost := await self._push_all():
            for entry in lost:
                self._note_loss(entry, started_at)
            self._stuck_since = self._stuck_since or _now()
            if _now() > self._stuck_since + self.recovery.patience_s:
                span = lost[0].link.hop.planned.span
                raise self.recovery.routes.explain(span, lost[0].error) from lost[0].error
            rest = [entry for entry in lost if not await self._promote(entry.link)]
            for run in self._runs(rest):
                await self._replace(run)
        for resume in self.resumes:
            resume.end(_now())
        for spare in self.spares.values():
            spare.wake()

    async def _push_all(self) -> list[_Lost]:
        """Push every hop forward; gives those that were lost. Long runs go through all hops at once."""
        lost: list[_Lost] = []
        behind = self.position - min(link.hop.position for link in self._links)
        if behind <= CHUNK_TOKENS:
            for index in range(len(self._links)):
                await self._push(index, lost)
        else:
            async with asyncio.TaskGroup() as group:
                for index in range(len(self._links)):
                    group.create_task(self._push(index, lost))
        return lost

    async def _push(self, index: int, lost: list[_Lost]) -> None:
        """Push one hop to the end of the conversation, as fast as its ledger fills."""
        link = self._links[index]
        exact = self._is_exact(link)
        while link.hop.position < self.position and not lost:
            if link.ledger.end == link.hop.position:
                async with self._progress:
                    await self._progress.wait()
                continue
            end = link.ledger.next_end(link.hop.position, exact)
            try:
                await push(self._links, index, end, self._results)
            except HopLost as error:
                lost.append(_Lost(link, error))
            else:
                link.ledger.mark_step(end)
                self._note_step(link.hop)
            async with self._progress:
                self._progress.notify_all()

    def _note_step(self, hop: Hop) -> None:
        self.recovery.routes.served(hop.planned.peer, hop.bytes_per_s)
        start = hop.planned.span.start
        if hop.position > self._furthest.get(start, -1):
            self._furthest[start], self._stuck_since = hop.position, None

    def _note_loss(self, lost: _Lost, started_at: float) -> None:
        hop = lost.link.hop
        self.resumes.append(
            Resume(self.position, lost.error.peer, lost.error.kind, lost.error.reason, started_at)
        )
        self.recovery.routes.lost(hop.planned.peer, lost.error.kind, str(lost.error), hop.bytes_per_s)

    async def _promote(self, link: Link) -> bool:
        """Put the link's spare in its place, if it has one that lives."""
        spare = self.spares.get(link)
        if spare is None:
            return False
        if spare.lost:
            del self.spares[link]
            await spare.close()
            return False
        lag, exact = spare.lag, spare.exact and self.recovery.is_exact(spare.lag)
        promoted = await spare.promote()  # cancelled here, it is still the link's spare
        del self.spares[link]
        index = self._links.index(link)
        self._links[index : index + 1] = promoted
        self._take_back_unanswered()  # a spare is not asked for what comes out
        self._note_replay(link, lag, exact)
        await link.hop.close()
        return True

    def _take_back_unanswered(self) -> None:
        """Rewind every hop to where its results are known: a hop that is new may know more, or less."""
        for index, link in reversed(list(enumerate(self._links))):
            answered = min(self._answered_by(index), link.ledger.end)
            if link.hop.position > answered:
                exact = self.recovery.is_exact(self.position - answered)
                link.hop.rewind(link.ledger.step_start(answered) if exact else answered)

    def _answered_by(self, index: int) -> int:
        """Up to which position the results of a link are known."""
        if index + 1 < len(self._links):
            return self._links[index + 1].ledger.end
        return self._results.end

    async def _replace(self, old: Sequence[Link]) -> None:
        """Put new hops where a run of neighbouring ones was lost."""
        for opening in self._openings:
            opening.cancel()
        hops = await self.recovery.replace([link.hop for link in old])
        ledgers = {link.hop.planned.span.start: link.ledger for link in old}
        new = [Link(hop, ledgers.get(hop.planned.span.start) or self._new_ledger()) for hop in hops]
        first = self._links.index(old[0])
        self._links[first : first + len(old)] = new
        spares = [self.spares.pop(link) for link in old if link in self.spares]
        self._take_back_unanswered()
        if any(link.hop.position < link.ledger.start for link in self._links):
            spares += self._begin_again()
        for link in old:
            tokens = self.position - min(hop.position for hop in hops)
            self._note_replay(link, tokens, all(self._is_exact(each) for each in new))
        await asyncio.gather(*(spare.close() for spare in spares))

    def _begin_again(self) -> list[Spare]:
        """Rebuild every ledger from the tokens, because what a new hop needs was kept by nobody.

        Gives the spares, which follow the old ledgers and are to be closed.
        """
        end = self.position
        spares, self.spares = list(self.spares.values()), {}
        for link in self._links:
            link.ledger = self._new_ledger()
            link.hop.rewind(0)
        self._links[0].ledger.recall(self._recall(end))
        return spares

    def _is_exact(self, link: Link) -> bool:
        """Whether what the link's hop has not seen is sent in the steps it was sent in at first."""
        lag = self.position - link.hop.position
        return self.recovery.is_exact(lag) and link.ledger.knows_steps_since(link.hop.position)

    def _note_replay(self, link: Link, tokens: int, exact: bool) -> None:
        for resume in self.resumes:
            if resume.lost_peer == link.hop.planned.peer and resume.stall_s is None:
                resume.replayed_tokens = tokens
                resume.exact = exact

    def _runs(self, lost: Sequence[_Lost]) -> list[list[Link]]:
        """The lost links, in runs that stand side by side in the chain."""
        gone = {entry.link for entry in lost}
        runs: list[list[Link]] = []
        previous: Link | None = None
        for link in self._links:
            if link in gone:
                if previous in gone:
                    runs[-1].append(link)
                else:
                    runs.append([link])
            previous = link
        return runs


def _now() -> float:
    return asyncio.get_running_loop().time()
