"""A session: one conversation's hidden states on their way through a chain of hops.

In front of every hop stands a `Ledger` of all rows sent to it. Making progress is always the same
act: push what a hop has not seen of its ledger, and add what comes out to the next ledger. A new
hop that takes over a span has seen nothing, so it is pushed everything; that is all there is to a
replay. Losses are raised as `HopLost` below and handled in one place, `Session._advance`, by
`client/recovery`.
"""

import asyncio
from dataclasses import dataclass, field

import torch

from swarm.client.hop import Hop
from swarm.client.ledger import Ledger
from swarm.client.recovery import Recovery, Resume
from swarm.errors import HopLost
from swarm.values import Span
from swarm.wire.tensors import CODECS

CHUNK_TOKENS = 128  # of a prompt or a replay, per step: small enough to keep several hops busy at once


@dataclass(slots=True)
class _Link:
    """A hop and the ledger of what is sent to it."""

    hop: Hop
    ledger: Ledger


@dataclass(slots=True)
class _Lost:
    """A place in the chain whose hop is gone."""

    index: int
    error: HopLost


@dataclass(slots=True)
class Session:
    """The chain of one conversation. `extend` adds rows and gives the last one's result.

    One call at a time. Cancelling a call leaves the session whole. Rows are [tokens, hidden].
    """

    recovery: Recovery
    blocks: Span
    resumes: list[Resume] = field(default_factory=list)
    _links: list[_Link] = field(default_factory=list)
    _result: torch.Tensor | None = None
    _progress: asyncio.Condition = field(default_factory=asyncio.Condition)

    @property
    def position(self) -> int:
        """How many tokens the conversation holds."""
        return self._links[0].ledger.end if self._links else 0

    @property
    def hops(self) -> tuple[Hop, ...]:
        """The chain as it is now."""
        return tuple(link.hop for link in self._links)

    async def open(self) -> None:
        """Find and open a chain over all blocks. Raises `NoRoute` when patience ends."""
        hops = await self.recovery.open_chain(self.blocks)
        self._links = [_Link(hop, self._new_ledger()) for hop in hops]

    async def extend(self, rows: torch.Tensor) -> torch.Tensor:
        """Push rows [tokens, hidden] through all blocks; gives the last row's hidden state [1, hidden].

        Survives the loss of any hops. Raises `NoRoute` when some blocks are on no live peer for
        longer than the patience; the call can then be repeated with no rows.
        """
        if not self._links:
            await self.open()
        self._links[0].ledger.append(rows)
        await self._advance()
        if self._result is None:
            raise ValueError("A session must be extended by at least one row before it has a result.")
        return self._result

    async def rewind(self, position: int) -> None:
        """Forget everything from `position` on."""
        for link in self._links:
            link.ledger.truncate(position)
            await link.hop.rewind(position)
        self._result = None

    async def close(self) -> None:
        """Free the session on every peer."""
        links, self._links = self._links, []
        await asyncio.gather(*(link.hop.close() for link in links))

    def _new_ledger(self) -> Ledger:
        settings = self.recovery.settings
        return Ledger(settings.hidden_size, CODECS[settings.codec])

    async def _advance(self) -> None:
        """Bring every hop to the end of the conversation, replacing those that are lost on the way."""
        started_at = _now()
        while lost := await self._push_all():
            for group in reversed(_neighbours(lost)):
                await self._replace(group, started_at)
        self._finish_resumes()

    async def _push_all(self) -> list[_Lost]:
        """Push every hop forward; gives those that were lost. Long runs go through all hops at once."""
        lost: list[_Lost] = []
        behind = self.position - min(link.hop.position for link in self._links)
        if behind <= CHUNK_TOKENS:
            for index in range(len(self._links)):
                await self._push(index, lost)
                if lost:
                    break
        else:
            async with asyncio.TaskGroup() as group:
                for index in range(len(self._links)):
                    group.create_task(self._push(index, lost))
        return lost

    async def _push(self, index: int, lost: list[_Lost]) -> None:
        """Push one hop to the end of the conversation, as fast as its ledger fills."""
        link = self._links[index]
        while link.hop.position < self.position and not lost:
            if link.ledger.end == link.hop.position:
                async with self._progress:
                    await self._progress.wait()
                continue
            try:
                await self._step(index)
            except HopLost as error:
                lost.append(_Lost(index, error))
            async with self._progress:
                self._progress.notify_all()

    async def _step(self, index: int) -> None:
        """One step of one hop: send what comes next, keep of the answer what is not known yet."""
        link, position = self._links[index], self._links[index].hop.position
        end = self.recovery.step_end(link.ledger, position, CHUNK_TOKENS)
        is_last = index == len(self._links) - 1
        known = self.position - 1 if is_last else self._links[index + 1].ledger.end
        reply_tokens = max(0, end - max(known, position))
        output = await link.hop.step(link.ledger.rows(position, end), reply_tokens)
        link.ledger.mark_step(end)
        if not reply_tokens:
            return
        if is_last:
            self._result = output
        else:
            self._links[index + 1].ledger.append(output)

    async def _replace(self, group: list[_Lost], started_at: float) -> None:
        """Put new hops where a run of neighbouring ones was lost."""
        first, last = group[0].index, group[-1].index
        old = self._links[first : last + 1]
        hops = await self.recovery.replace([link.hop for link in old])
        links = [_Link(hop, self._new_ledger()) for hop in hops]
        links[0].ledger = old[0].ledger
        self._links[first : last + 1] = links
        for lost in group:
            self.resumes.append(
                Resume(
                    at_token=self.position,
                    lost_peer=lost.error.peer,
                    reason=lost.error.reason,
                    replayed_tokens=self.position - min(hop.position for hop in hops),
                    started_at=started_at,
                )
            )

    def _finish_resumes(self) -> None:
        for resume in self.resumes:
            if resume.stall_s is None:
                resume.stall_s = _now() - resume.started_at


def _neighbours(lost: list[_Lost]) -> list[list[_Lost]]:
    """Runs of losses that stand side by side in the chain, first to last."""
    runs: list[list[_Lost]] = []
    for entry in sorted(lost, key=lambda entry: entry.index):
        if runs and runs[-1][-1].index + 1 == entry.index:
            runs[-1].append(entry)
        else:
            runs.append([entry])
    return runs


def _now() -> float:
    return asyncio.get_running_loop().time()
