"""A session: one conversation's hidden states on their way through a chain of hops.

In front of every hop stands a `Ledger` of all rows sent to it; progress, replay and spares are all
the same push (`client/chain`). Losses are raised as `HopLost` below and handled in one place,
`Session._advance`, by a spare where there is one and by `client/recovery` where there is none.
"""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from swarm.client.chain import Link, push
from swarm.client.hop import Hop
from swarm.client.ledger import CHUNK_TOKENS, Ledger
from swarm.client.recovery import Recovery, Resume, SessionState
from swarm.client.spares import Spare
from swarm.errors import HopLost
from swarm.values import Span
from swarm.wire.tensors import CODECS

CLOSE_WAIT_S = 1.0  # for peers to free a conversation that ends


@dataclass(slots=True)
class _Lost:
    """A link whose hop is gone."""

    link: Link
    error: HopLost


class Session:
    """The chain of one conversation. `extend` adds rows and gives the last one's result.

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
        self._result: torch.Tensor | None = None
        self._progress = asyncio.Condition()
        self._turn = asyncio.Lock()

    @property
    def position(self) -> int:
        """How many tokens the conversation holds."""
        return self._links[0].ledger.end if self._links else 0

    @property
    def links(self) -> Sequence[Link]:
        """The chain as it is now."""
        return tuple(self._links)

    @property
    def hops(self) -> tuple[Hop, ...]:
        """The hops of the chain as it is now."""
        return tuple(link.hop for link in self._links)

    async def extend(self, rows: torch.Tensor) -> torch.Tensor:
        """Push rows [tokens, hidden] through all blocks; gives the last row's hidden state [1, hidden].

        Survives the loss of any hops. Raises `NoRoute` when some blocks are on no live peer for
        longer than the patience; the rows are kept, and the conversation can go on later.
        """
        async with self._turn:
            if not self._links:
                await self._open()
            self._links[0].ledger.append(rows)
            await self._advance()
            if self._result is None:
                raise ValueError("A session must be extended by at least one row before it has a result.")
            return self._result

    async def rewind(self, position: int) -> None:
        """Forget everything from `position` on."""
        async with self._turn:
            for link in self._links:
                link.ledger.truncate(position)
                await link.hop.rewind(position)
            for spare in self.spares.values():
                await spare.rewind(position)
            self._result = None

    async def swap(self, link: Link, reason: str) -> None:
        """Let the link's spare take its place while nothing is lost: a planned leave, or a slow peer."""
        async with self._turn:
            if link in self._links and link in self.spares:
                self.resumes.append(Resume(self.position, link.hop.planned.peer, reason, _now()))
                await self._promote(link)
                self.resumes[-1].end(_now())

    def export(self) -> SessionState | None:
        """Where the session stands, for `take_up` by a later process; None before there is a chain."""
        if not self._links:
            return None
        settings = self.recovery.settings
        return SessionState(
            session=settings.session,
            epoch=settings.epoch,
            codec=settings.codec,
            hops=tuple(link.hop.planned for link in self._links),
        )

    async def take_up(self, state: SessionState, end: int) -> int:
        """Find again what peers still hold of an earlier process's session, up to position `end`.

        Gives the position from which on rows have to be sent. Raises what `Recovery.reopen` raises.
        """
        async with self._turn:
            hops = await self.recovery.reopen(state)
            held = min(end, *(hop.position for hop in hops))
            for hop in hops:
                await hop.rewind(held)
            self._links = [Link(hop, self._new_ledger(held)) for hop in hops]
            self._links[0].ledger = self._new_ledger()
            self._links[0].ledger.recall(self._recall(held))
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
        """Bring every hop to the end of the conversation, replacing those that are lost on the way."""
        started_at = _now()
        self._result = None
        while lost := await self._push_all():
            for entry in lost:
                self._note_loss(entry, started_at)
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
        is_last = index == len(self._links) - 1
        exact = self._is_exact(link)
        while link.hop.position < self.position and not lost:
            if link.ledger.end == link.hop.position:
                async with self._progress:
                    await self._progress.wait()
                continue
            end = link.ledger.next_end(link.hop.position, exact)
            try:
                result = await push(self._links, index, end, results_from=self.position - 1)
            except HopLost as error:
                lost.append(_Lost(link, error))
            else:
                link.ledger.mark_step(end)
                self._result = result if is_last else self._result
            async with self._progress:
                self._progress.notify_all()

    def _note_loss(self, lost: _Lost, started_at: float) -> None:
        self.resumes.append(Resume(self.position, lost.error.peer, lost.error.reason, started_at))
        self.recovery.routes.lost(lost.link.hop.planned.peer, str(lost.error))

    async def _promote(self, link: Link) -> bool:
        """Put the link's spare in its place, if it has one that lives."""
        spare = self.spares.pop(link, None)
        if spare is None:
            return False
        if spare.lost:
            await spare.close()
            return False
        index = self._links.index(link)
        exact = spare.exact and self.recovery.is_exact(spare.lag)
        self._note_replay(link, spare.lag, exact)
        promoted = await spare.promote()
        answered = self._answered_by(index)  # a spare is not asked for what comes out
        await promoted[-1].hop.rewind(promoted[-1].ledger.step_start(answered) if exact else answered)
        self._links[index : index + 1] = promoted
        await link.hop.close()
        return True

    def _answered_by(self, index: int) -> int:
        """Up to which position the results of a link are known."""
        if index + 1 < len(self._links):
            return self._links[index + 1].ledger.end
        return self.position if self._result is not None else self.position - 1

    async def _replace(self, old: Sequence[Link]) -> None:
        """Put new hops where a run of neighbouring ones was lost."""
        hops = await self.recovery.replace([link.hop for link in old])
        first = self._links.index(old[0])
        new = [Link(hop, self._new_ledger()) for hop in hops]
        new[0].ledger = old[0].ledger
        self._links[first : first + len(old)] = new
        if hops[0].position < old[0].ledger.start:
            await self._begin_again()
        for link in old:
            tokens = self.position - min(hop.position for hop in hops)
            self._note_replay(link, tokens, all(self._is_exact(each) for each in new))

    async def _begin_again(self) -> None:
        """Rebuild every ledger from the tokens: what a new hop needs was kept by nobody."""
        end = self.position
        for link in self._links:
            link.ledger = self._new_ledger()
            await link.hop.rewind(0)
        self._links[0].ledger.recall(self._recall(end))

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
