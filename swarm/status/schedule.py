"""The schedule of canaries: which models are looked at now, and which peers a canary exercises next.

Pure. Anyone can claim any number of models, of any size, so claims alone must not set the work. A model
that a canary went through comes first, then those that canaries have not yet tried in vain, and of these
the ones looked at longest ago. Within a model the peer that waited longest comes next, with its whole span;
what else its chain needs is taken from those that waited longest among the peers that work. Cost is bounded
by the time between two runs alone.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from swarm.client.router import missing_blocks
from swarm.network.admission import BLOCKS_PER_BUCKET
from swarm.session.plan import Numerics, PlannedHop
from swarm.values import Span
from swarm.wire.records import ModelRecord, PeerRecord, Snapshot

MAX_MODELS = 50
LOOK_UPS = 250  # in one crawl; a model takes one for each 32 of its blocks
EXPECTED_MS = 1000.0  # for a token at a hop; only sets how long a step may take


@dataclass(frozen=True, slots=True)
class Standing:
    """What is known of a model that is claimed."""

    proven: bool = False
    tried_in_vain: int = 0  # canary runs, of a model that none went through
    looked_at: float = 0.0  # Unix seconds; 0: never


def choose_models(claimed: Sequence[ModelRecord], standing: Callable[[str], Standing]) -> list[ModelRecord]:
    """The models to look at now, the surest first; `standing` is asked by digest."""

    def urgency(record: ModelRecord) -> tuple[bool, int, float, int, str]:
        known = standing(record.model)
        return not known.proven, known.tried_in_vain, known.looked_at, record.num_blocks, record.model

    chosen: list[ModelRecord] = []
    left = LOOK_UPS
    for record in sorted(claimed, key=urgency):
        left -= -(-record.num_blocks // BLOCKS_PER_BUCKET)
        if left < 0 or len(chosen) == MAX_MODELS:
            break
        chosen.append(record)
    return chosen


@dataclass(frozen=True, slots=True)
class ScheduledCanary:
    """A chain over all blocks, and the peers whose whole span it runs."""

    chain: tuple[PlannedHop, ...]
    exercised: frozenset[str]


def next_canary(
    snapshot: Snapshot, exercised_at: Mapping[str, float], failing: frozenset[str]
) -> ScheduledCanary | None:
    """The chain for the online peer that waited longest; None when a block has none.

    `exercised_at` says when a peer's whole span was last run. Peers in `failing` take their own
    turns, and serve in the chains of others only where nobody else has the blocks.
    """
    online = snapshot.online()
    if missing_blocks(online, Span(0, snapshot.num_blocks)):
        return None
    target = min(online, key=lambda record: (exercised_at.get(record.peer, 0.0), record.peer))
    chain = _chain(online, target, snapshot.num_blocks, exercised_at, failing)
    whole = {(record.peer, record.span) for record in online}
    return ScheduledCanary(chain, frozenset(hop.peer for hop in chain if (hop.peer, hop.span) in whole))


def _chain(
    online: Sequence[PeerRecord],
    target: PeerRecord,
    num_blocks: int,
    exercised_at: Mapping[str, float],
    failing: frozenset[str],
) -> tuple[PlannedHop, ...]:
    def rank(record: PeerRecord, block: int) -> tuple[bool, bool, float, str]:
        return record.peer in failing, record.start != block, exercised_at.get(record.peer, 0.0), record.peer

    hops: list[PlannedHop] = []
    block = 0
    while block < num_blocks:
        chosen = target
        if block != target.start:
            at_block = block
            holders = [r for r in online if block in r.span and r.peer != target.peer]
            chosen = min(holders, key=lambda record: rank(record, at_block))
        end = min(chosen.end, target.start if block < target.start else num_blocks)
        hops.append(_hop(chosen, Span(block, end)))
        block = end
    return tuple(hops)


def _hop(record: PeerRecord, span: Span) -> PlannedHop:
    return PlannedHop(record.peer_id, span, Numerics(record.dtype, record.quantization), EXPECTED_MS)
