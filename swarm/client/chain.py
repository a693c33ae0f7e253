"""A link of a chain: a hop, and the ledger of all that is sent to it.

Making progress is always the same act: push what a hop has not seen of its ledger, and add what
comes out to the next ledger. A hop that takes over a span has seen nothing, so it is pushed
everything; that is all there is to a replay, and to keeping a spare.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from swarm.client.hop import Hop
from swarm.client.ledger import Ledger


@dataclass(slots=True, eq=False)
class Link:
    """A hop and what is sent to it."""

    hop: Hop
    ledger: Ledger


async def push(links: Sequence[Link], index: int, end: int, results: Ledger | None) -> None:
    """One step of one hop, up to position `end`; what comes out and is not known yet is kept.

    Behind the last hop stand the `results`, which begin where they are wanted; None: they are not.
    Raises `HopLost`.
    """
    link, position = links[index], links[index].hop.position
    following = results if index == len(links) - 1 else links[index + 1].ledger
    reply_tokens = max(0, end - max(following.end, position)) if following is not None else 0
    output = await link.hop.step(link.ledger.rows(position, end), reply_tokens)
    if following is not None and reply_tokens:
        following.append(output)
        following.mark_step(following.end)  # the shape in which its rows were computed
