"""Which models to look at now, when more are claimed than can be.

Pure. Anyone can claim any number of models, of any size, so claims alone must not set the work. A model
that a canary went through comes first, then those that canaries have not yet tried in vain, and of these
the ones whose turn was longest ago.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from swarm.network.admission import BLOCKS_PER_BUCKET
from swarm.wire.records import ModelRecord

MAX_MODELS = 50
LOOK_UPS = 250  # in one crawl; a model takes one for each 32 of its blocks


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
