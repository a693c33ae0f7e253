"""How far a model is from being whole, and when it may be.

Pure: snapshots and the clock are arguments. The estimate rests on how long peers took to load that
were seen to do so; where nobody is loading the missing blocks there is none, and none is made up.
"""

from dataclasses import dataclass, field

from swarm.values import PeerId, Span, spans_of
from swarm.wire.records import Snapshot

FIRST_LOADING_S = 30.0  # before any peer has been seen to load
SHORTEST_ESTIMATE_S = 2.0
_SMOOTHING = 0.3


@dataclass(frozen=True, slots=True)
class Coverage:
    """The state of a model. `estimate_s` is None when whole, and when nobody loads what is missing."""

    num_blocks: int
    online_blocks: int
    missing: tuple[Span, ...]
    loading: tuple[Span, ...]  # of the missing ones
    replicas: int  # online peers of the weakest block
    estimate_s: float | None

    @property
    def whole(self) -> bool:
        """Whether every block is online."""
        return not self.missing


@dataclass(slots=True)
class LoadingWatch:
    """Remembers who is loading since when."""

    typical_s: float = FIRST_LOADING_S
    _since: dict[PeerId, float] = field(default_factory=dict)

    def observe(self, snapshot: Snapshot, now: float) -> Coverage:
        """Take a snapshot in; gives what it means."""
        joining = {record.peer_id: record.span for record in snapshot.peers if record.state == "joining"}
        online = {record.peer_id for record in snapshot.online()}
        for peer, since in self._since.items():
            if peer in online:
                self.typical_s += _SMOOTHING * (now - since - self.typical_s)
        self._since = {peer: self._since.get(peer, now) for peer in joining}
        counts = snapshot.coverage()
        missing = {block for block, count in enumerate(counts) if not count}
        loading = {block for span in joining.values() for block in span} & missing
        return Coverage(
            num_blocks=snapshot.num_blocks,
            online_blocks=snapshot.num_blocks - len(missing),
            missing=tuple(spans_of(missing)),
            loading=tuple(spans_of(loading)),
            replicas=min(counts),
            estimate_s=self._estimate_s(now) if missing and loading == missing else None,
        )

    def _estimate_s(self, now: float) -> float:
        latest = max(self._since.values())
        return max(SHORTEST_ESTIMATE_S, self.typical_s - (now - latest))
