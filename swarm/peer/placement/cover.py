"""What stands behind every block of a model: how many peers, how fast, and how likely all of them go.

`Claims` are the peers' records as columns, so that ten thousand of them are added up in well under a
millisecond; `Cover` is their sum, block by block. A record's word is taken for its span and speed; how
long its peer will stay is guessed from how long it has been there (Lindy's law), within bounds that a
liar cannot leave.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt

from swarm.values import PeerId, Span
from swarm.wire.records import Snapshot

Floats: TypeAlias = npt.NDArray[np.float64]
Integers: TypeAlias = npt.NDArray[np.int64]
Flags: TypeAlias = npt.NDArray[np.bool_]

REPLACE_S = 120.0  # until a loss is noticed in the directory, and another peer has loaded the blocks
SETTLED_AFTER_S = 4 * 3600.0  # a peer up for this long is expected to stay as long again
YOUNGEST_S = 600.0
CHOOSING_S = 5.0  # a peer that began less long ago may still change its mind
RELAY_FACTOR, BATTERY_FACTOR = 2.0, 3.0  # times likelier to go
JOINING_ODDS = 0.3  # that a peer that says it loads its blocks never serves them


@dataclass(frozen=True, slots=True)
class Claims:
    """What each peer says it hosts. Leaving peers, and those that nobody can dial, are not among them."""

    peers: Sequence[str]
    starts: Integers
    ends: Integers
    rates_tokens_per_s: Floats  # through the whole span; 0 when it has not measured itself
    going_odds: Floats  # that it is gone within `REPLACE_S`
    online: Flags  # it serves already; else it is joining
    choosing: Flags  # it has only just come, and may still choose other blocks

    @classmethod
    def of(cls, snapshot: Snapshot, now: float) -> "Claims":
        """The claims of a snapshot."""
        records = [each for each in snapshot.peers if each.state != "draining" and each.reachable != "no"]
        joining = [each.state == "joining" for each in records]
        hazards = [
            (RELAY_FACTOR if each.relayed else 1.0) * (BATTERY_FACTOR if each.on_battery else 1.0)
            for each in records
        ]
        uptimes_s = np.array([now - each.started_at for each in records], dtype=float)
        return cls(
            [each.peer for each in records],
            np.array([each.start for each in records], dtype=int),
            np.array([min(each.end, snapshot.num_blocks) for each in records], dtype=int),
            np.array([each.decode_tokens_per_s for each in records], dtype=float),
            going_odds(uptimes_s, np.array(hazards, dtype=float), np.array(joining, dtype=bool)),
            ~np.array(joining, dtype=bool),
            np.array(joining, dtype=bool) & (uptimes_s < CHOOSING_S),
        )

    def __len__(self) -> int:
        return len(self.peers)

    def only(self, kept: Flags) -> "Claims":
        """Those of some peers."""
        peers = [peer for peer, keep in zip(self.peers, kept, strict=True) if keep]
        return Claims(
            peers,
            self.starts[kept],
            self.ends[kept],
            self.rates_tokens_per_s[kept],
            self.going_odds[kept],
            self.online[kept],
            self.choosing[kept],
        )

    def without(self, peer: PeerId) -> "Claims":
        """Those of all others."""
        return self.only(np.array([other != peer for other in self.peers], dtype=bool))


def going_odds(uptimes_s: Floats, hazard_factors: Floats, joining: Flags) -> Floats:
    """How likely each peer is gone within `REPLACE_S`: one that has lived long lives as long again."""
    hazards_per_s = hazard_factors / np.clip(uptimes_s, YOUNGEST_S, SETTLED_AFTER_S)
    odds = -np.expm1(-hazards_per_s * REPLACE_S)
    return np.where(joining, np.maximum(odds, JOINING_ODDS), odds)


@dataclass(frozen=True, slots=True)
class Cover:
    """The sum of claims over the blocks of a model."""

    num_blocks: int
    claimed: Integers  # [blocks], peers that serve it or will
    online: Integers  # [blocks], peers that serve it
    rates_tokens_per_s: Floats  # [blocks], what its peers can bear when each shares evenly over its span
    hole_odds: Floats  # [blocks], that all of its peers are gone within `REPLACE_S`; 1 when there are none
    edges: Flags  # [blocks + 1], some span begins or ends there

    @classmethod
    def of(cls, claims: Claims, num_blocks: int) -> "Cover":
        """Add up claims."""
        unknown = claims.rates_tokens_per_s <= 0
        rates = np.where(unknown, typical_rate(claims), claims.rates_tokens_per_s)
        log_odds = _over_blocks(claims, np.log(np.maximum(claims.going_odds, 1e-9)), num_blocks)
        claimed = _over_blocks(claims, np.ones(len(claims), dtype=int), num_blocks)
        return cls(
            num_blocks,
            claimed,
            _over_blocks(claims, claims.online.astype(int), num_blocks),
            np.where(claimed > 0, _over_blocks(claims, rates, num_blocks), 0.0),
            np.where(claimed > 0, np.exp(np.minimum(0.0, log_odds)), 1.0),
            _edges(np.concatenate((claims.starts, claims.ends)), num_blocks),
        )

    def joined_by(self, span: Span, rate_tokens_per_s: float, odds: float) -> "Cover":
        """With one more claim, of a peer that does not serve yet."""
        claimed, rates, hole_odds = self.claimed.copy(), self.rates_tokens_per_s.copy(), self.hole_odds.copy()
        own = slice(span.start, span.end)
        claimed[own] += 1
        rates[own] += rate_tokens_per_s
        hole_odds[own] *= odds
        edges = self.edges.copy()
        edges[[span.start, span.end]] = True
        return Cover(self.num_blocks, claimed, self.online, rates, hole_odds, edges)


def typical_rate(claims: Claims) -> float:
    """Tokens per second through its span of the median peer that has measured itself; 1 when none has."""
    known = claims.rates_tokens_per_s[claims.rates_tokens_per_s > 0]
    return float(np.median(known)) if len(known) else 1.0


def _edges(places: Integers, num_blocks: int) -> Flags:
    edges = np.zeros(num_blocks + 1, dtype=bool)
    edges[[0, num_blocks]] = True
    edges[places] = True
    return edges


Amount = TypeVar("Amount", np.float64, np.int64)


def _over_blocks(claims: Claims, amounts: npt.NDArray[Amount], num_blocks: int) -> npt.NDArray[Amount]:
    """For each block, the sum of the amounts of the peers that claim it."""
    changes = np.zeros(num_blocks + 1, dtype=amounts.dtype)
    np.add.at(changes, claims.starts, amounts)
    np.subtract.at(changes, claims.ends, amounts)
    return np.cumsum(changes[:-1])
