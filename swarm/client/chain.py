"""A link of a chain: a hop, and the ledger of all that is sent to it.

Making progress is always the same act: push what a hop has not seen of its ledger, and add what
comes out to the next ledger. A hop that takes over a span has seen nothing, so it is pushed
everything; that is all there is to a replay, and to keeping a spare.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from swarm.client.hop import Hop
from swarm.client.ledger import Ledger


@dataclass(slots=True, eq=False)
class Link:
    """A hop and what is sent to it."""

    hop: Hop
    ledger: Ledger


async def push(links: Sequence[Link], index: int, end: int, results_from: int) -> torch.Tensor | None:
    """One step of one hop, up to position `end`; what comes out and is not known yet is kept.

    The last hop has no ledger behind it: its rows from `results_from` on are returned
    [tokens, hidden], if there are any. Raises `HopLost`.
    """
    link, position = links[index], links[index].hop.position
    is_last = index == len(links) - 1
    known = results_from if is_last else links[index + 1].ledger.end
    reply_tokens = max(0, end - max(known, position))
    output = await link.hop.step(link.ledger.rows(position, end), reply_tokens)
    if not reply_tokens:
        return None
    if is_last:
        return output
    following = links[index + 1].ledger
    following.append(output)
    following.mark_step(following.end)  # the shape in which its rows were computed
    return None
