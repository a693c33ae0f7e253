"""The rules of a session: what its owner wants, when a hop is worth a spare, and when it is slow. Pure."""

from dataclasses import dataclass
from typing import Literal

from swarm.session.plan import PLAIN_NUMERICS, Numerics
from swarm.values import Span
from swarm.wire.records import PeerRecord

Exactness = Literal["auto", "fast", "exact"]
SparePolicy = Literal["off", "auto", "always"]

LONGEST_EXACT_REPLAY_TOKENS = 512  # with "auto"; step by step, more would take too long

SETTLED_AFTER_S = 3600.0  # a peer up for this long is expected to stay as long again
YOUNGEST_S = 60.0
RELAY_FACTOR, BATTERY_FACTOR = 2.0, 3.0
HORIZON_S = 600.0  # a conversation is expected to go on for so long
WORTH_STALL_S = 0.5  # a spare is kept when it saves more than this over the horizon
SLOW_FACTOR = 3.0  # so much slower than another peer would be,
SLOW_BY_S = 0.1  # and by at least so much a token


@dataclass(frozen=True, slots=True)
class ChainRules:
    """How a chain behaves when peers are slow, lost or missing."""

    blocks: Span
    patience_s: float
    exactness: Exactness = "auto"
    spares: SparePolicy = "auto"

    def is_exact(self, tokens: int, numerics: Numerics | None) -> bool:
        """Whether to replay so many rows in the very steps that were sent, so that the bits are the same.

        In fp32, not quantised, no token hangs on the bits that a replay in chunks changes: never needed.
        """
        if self.exactness != "auto":
            return self.exactness == "exact"
        return numerics not in (None, PLAIN_NUMERICS) and tokens <= LONGEST_EXACT_REPLAY_TOKENS


def is_worth_a_spare(record: PeerRecord, history_tokens: int, losses: int, now: float) -> bool:
    """Whether the hazard of losing this peer times the cost of a replay is worth a spare.

    The hazard follows Lindy's law: a process that has lived for a while is expected to live as long
    again. `losses` are those of this conversation so far; `now` is in Unix seconds.
    """
    uptime_s = min(SETTLED_AFTER_S, max(YOUNGEST_S, now - record.started_at))
    hazard_per_s = (1 + losses) / uptime_s
    hazard_per_s *= RELAY_FACTOR if record.relayed else 1.0
    hazard_per_s *= BATTERY_FACTOR if record.on_battery else 1.0
    replay_s = history_tokens / max(1.0, record.prefill_tokens_per_s)
    return min(1.0, hazard_per_s * HORIZON_S) * replay_s > WORTH_STALL_S


def is_slow(decode_s: float, expected_s: float) -> bool:
    """Whether a hop takes so long for a token that moving to others, as fast as expected, is worth it."""
    return decode_s > max(SLOW_FACTOR * expected_s, expected_s + SLOW_BY_S)
