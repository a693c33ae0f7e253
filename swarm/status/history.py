"""What was: samples, incidents and contributors, in one SQLite file of bounded size.

Every state adds to one row each of three resolutions, so down-sampling is done while writing and old
rows are only ever deleted. Write-ahead log, one transaction a state: a crash loses that one at most.
Blocking; one thread at a time. Knows no event loop.
"""

import contextlib
import fcntl
import sqlite3
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Literal

from swarm.errors import ConfigurationError
from swarm.status.incidents import Incident, IncidentKey, ended, troubles
from swarm.status.snapshot import ModelStatus, PeerStatus, SwarmState
from swarm.values import parse_span

DEFAULT_LIMIT_BYTES = 256 * 2**20
MAX_INCIDENTS = 2000
CONTRIBUTOR_KEPT_S = 90 * 86400.0
PRUNE_EVERY = 360  # states
MAX_NEWLY_RESUMED = 1000  # of one peer between two states; who claims more is not believed
EVICTED_SHARE = 10  # one in so many rows, when the file is full
SCHEMA = 1

Range = Literal["24h", "7d", "90d"]


@dataclass(frozen=True, slots=True)
class Resolution:
    """How finely a range is kept, and in how many points it is told."""

    row_s: int
    kept_s: int
    point_s: int


RANGES: dict[Range, Resolution] = {
    "24h": Resolution(60, 86_400, 600),
    "7d": Resolution(900, 7 * 86_400, 3_600),
    "90d": Resolution(7_200, 90 * 86_400, 43_200),
}

_TABLES = """
CREATE TABLE IF NOT EXISTS samples (
    row_s INTEGER, model TEXT, at INTEGER,
    states INTEGER, known INTEGER, available INTEGER, replicas INTEGER, peers INTEGER,
    speeds INTEGER, speed_sum REAL, ttft_sum REAL, runs INTEGER, interrupted INTEGER, resumed INTEGER,
    PRIMARY KEY (row_s, model, at)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS contributors (
    peer TEXT PRIMARY KEY, name TEXT, block_s REAL, first_seen REAL, last_seen REAL
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS incidents (
    number INTEGER PRIMARY KEY AUTOINCREMENT,
    kind TEXT, model TEXT, model_name TEXT, peer TEXT, cause TEXT, began_at REAL, ended_at REAL
);
CREATE INDEX IF NOT EXISTS open_incidents ON incidents (ended_at) WHERE ended_at IS NULL;
"""
_ADD_SAMPLE = """
INSERT INTO samples VALUES (?, ?, ?, 1, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
ON CONFLICT DO UPDATE SET states = states + 1, known = known + excluded.known,
    available = available + excluded.available, replicas = min(replicas, excluded.replicas),
    peers = peers + excluded.peers, speeds = speeds + excluded.speeds,
    speed_sum = speed_sum + excluded.speed_sum, ttft_sum = ttft_sum + excluded.ttft_sum,
    runs = runs + excluded.runs, interrupted = interrupted + excluded.interrupted,
    resumed = resumed + excluded.resumed
"""
_ADD_CONTRIBUTION = """
INSERT INTO contributors VALUES (?, ?, ?, ?, ?)
ON CONFLICT DO UPDATE SET name = excluded.name, block_s = block_s + excluded.block_s,
    last_seen = excluded.last_seen
"""
_POINTS = """
SELECT at / :step * :step, sum(states), sum(known), sum(available), min(replicas), sum(peers),
    sum(speeds), sum(speed_sum), sum(ttft_sum), sum(runs), sum(interrupted), sum(resumed)
FROM samples WHERE row_s = :row_s AND model = :model AND at >= :since GROUP BY 1 ORDER BY 1
"""


@dataclass(frozen=True, slots=True)
class Point:
    """A stretch of the past. None where nothing was known or measured."""

    at: int  # Unix seconds, its beginning
    availability: float | None  # share of the known states in which the model worked
    replicas: int  # of the weakest block, at the worst
    peers: float
    tokens_per_s: float | None
    ttft_s: float | None
    canaries: int
    interrupted: int  # canaries that lost a hop on their way
    resumed: int  # sessions taken up on another peer, or again, as the peers count them


@dataclass(frozen=True, slots=True)
class Contributor:
    """Who hosted how much: blocks times hours, while online and not failing."""

    peer: str
    name: str
    block_hours: float
    last_seen: float


class History:
    """The file, of one page at a time. Writing raises `sqlite3.Error`.

    Raises `ConfigurationError` when it cannot be opened or another page uses it.
    """

    def __init__(self, path: Path, limit_bytes: int = DEFAULT_LIMIT_BYTES) -> None:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._lock = _claim(path)
            self._db = sqlite3.connect(path, isolation_level=None, check_same_thread=False, timeout=5.0)
            self._prepare(limit_bytes)
        except (OSError, sqlite3.Error) as error:
            raise ConfigurationError(
                f"The history {path} cannot be used: {error}",
                "Name another file with --database, or move it away.",
            ) from error
        self._counters: dict[str, tuple[int, int]] = {}  # runs and interruptions already counted
        self._resumed: dict[str, int] = {}  # by peer, already counted
        self._last_at: float | None = None
        self._writes = 0

    def close(self) -> None:
        """Close the file."""
        self._db.close()
        self._lock.close()

    def record(self, state: SwarmState) -> None:
        """Add a state. When the file is full, the oldest of everything makes room."""
        try:
            self._write(state)
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode != sqlite3.SQLITE_FULL:
                raise
            self._evict()
            self._write(state)
        self._counters = {
            model.manifest: (model.canary_runs, model.canary_interrupted) for model in state.models
        }
        self._resumed = {peer.peer: peer.sessions_resumed for model in state.models for peer in model.peers}
        self._last_at = state.at
        self._writes += 1
        if self._writes % PRUNE_EVERY == 1:
            self._prune(state.at)

    def points(self, model: str, range_: Range, now: float) -> list[Point]:
        """A model's past, oldest first; stretches without a sample are left out."""
        resolution = RANGES[range_]
        rows = self._db.execute(
            _POINTS,
            {
                "step": resolution.point_s,
                "row_s": resolution.row_s,
                "model": model,
                "since": int(now - resolution.kept_s),
            },
        )
        return [_point(row) for row in rows]

    def incidents(self, limit: int = 50, since: float = 0.0) -> list[Incident]:
        """The latest incidents, those still open first."""
        rows = self._db.execute(
            "SELECT number, kind, model, model_name, peer, cause, began_at, ended_at FROM incidents "
            "WHERE ended_at IS NULL OR ended_at >= ? ORDER BY ended_at IS NOT NULL, began_at DESC LIMIT ?",
            (since, limit),
        )
        return [Incident(*row) for row in rows]

    def contributors(self, limit: int = 20) -> list[Contributor]:
        """Who hosted most."""
        rows = self._db.execute(
            "SELECT peer, name, block_s / 3600, last_seen FROM contributors "
            "ORDER BY block_s DESC, peer LIMIT ?",
            (limit,),
        )
        return [Contributor(peer, name, round(hours, 3), seen) for peer, name, hours, seen in rows]

    def _prepare(self, limit_bytes: int) -> None:
        self._db.execute("PRAGMA journal_mode = WAL")
        self._db.execute("PRAGMA synchronous = NORMAL")
        self._db.execute(f"PRAGMA journal_size_limit = {min(limit_bytes, 4 * 2**20)}")
        page_bytes = self._db.execute("PRAGMA page_size").fetchone()[0]
        self._db.execute(f"PRAGMA max_page_count = {max(16, limit_bytes // page_bytes)}")
        version = self._db.execute("PRAGMA user_version").fetchone()[0]
        if version not in (0, SCHEMA):
            raise sqlite3.DatabaseError(f"it was written by another version of swarm (layout {version})")
        self._db.executescript(_TABLES)
        self._db.execute(f"PRAGMA user_version = {SCHEMA}")

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[None]:
        self._db.execute("BEGIN IMMEDIATE")
        try:
            yield
        except BaseException:
            if self._db.in_transaction:  # a full disk has rolled it back already
                self._db.execute("ROLLBACK")
            raise
        self._db.execute("COMMIT")

    def _write(self, state: SwarmState) -> None:
        with self._transaction():
            if not state.blind:
                self._db.executemany(_ADD_SAMPLE, self._samples(state))
                self._db.executemany(_ADD_CONTRIBUTION, self._contributions(state))
            self._update_incidents(state)

    def _samples(self, state: SwarmState) -> Iterator[tuple[Any, ...]]:
        for model in state.models:
            runs, interrupted = self._counters.get(model.manifest, (0, 0))
            values = (
                model.health != "unknown",
                model.health in ("healthy", "degraded"),
                model.replicas,
                sum(peer.state == "online" for peer in model.peers),
                model.tokens_per_s is not None,
                model.tokens_per_s or 0.0,
                model.ttft_s or 0.0,
                max(0, model.canary_runs - runs),
                max(0, model.canary_interrupted - interrupted),
                sum(self._newly_resumed(peer) for peer in model.peers),
            )
            for resolution in RANGES.values():
                start = int(state.at) // resolution.row_s * resolution.row_s
                yield (resolution.row_s, model.manifest, start, *values)

    def _newly_resumed(self, peer: PeerStatus) -> int:
        """Since the last state. What a peer counted before it was first seen is nobody's to date."""
        counted = self._resumed.get(peer.peer, peer.sessions_resumed)
        return min(MAX_NEWLY_RESUMED, max(0, peer.sessions_resumed - counted))

    def _contributions(self, state: SwarmState) -> Iterator[tuple[Any, ...]]:
        """Time since the last state counts when it was seen: a gap in the watching is nobody's service."""
        elapsed_s = min(60.0, max(0.0, state.at - self._last_at)) if self._last_at is not None else 0.0
        for model in state.models:
            for peer in _serving(model):
                blocks = len(parse_span(peer.blocks))
                yield peer.peer, peer.name, blocks * elapsed_s, state.at, state.at

    def _update_incidents(self, state: SwarmState) -> None:
        rows = self._db.execute("SELECT kind, model, peer, number FROM incidents WHERE ended_at IS NULL")
        open_now = {IncidentKey(kind, model, peer): number for kind, model, peer, number in rows}
        found = troubles(state)
        for number in ended(open_now, found, state):
            self._db.execute("UPDATE incidents SET ended_at = ? WHERE number = ?", (state.at, number))
        for key, trouble in found.items():
            if key not in open_now:
                self._db.execute(
                    "INSERT INTO incidents (kind, model, model_name, peer, cause, began_at) "
                    "VALUES (?, ?, ?, ?, ?, ?)",
                    (key.kind, key.model, trouble.model_name, key.peer, trouble.cause, state.at),
                )

    def _prune(self, now: float) -> None:
        with self._transaction():
            for resolution in RANGES.values():
                oldest = int(now) - resolution.kept_s - resolution.point_s
                self._db.execute("DELETE FROM samples WHERE row_s = ? AND at < ?", (resolution.row_s, oldest))
            self._db.execute("DELETE FROM contributors WHERE last_seen < ?", (now - CONTRIBUTOR_KEPT_S,))
            self._db.execute(
                "DELETE FROM incidents WHERE number <= (SELECT max(number) FROM incidents) - ?",
                (MAX_INCIDENTS,),
            )

    def _evict(self) -> None:
        """Deleting needs a few pages itself; SQLite finds them in the log, outside of the limit."""
        with self._transaction():
            for table, key in (("samples", "at"), ("contributors", "last_seen"), ("incidents", "number")):
                self._db.execute(
                    f"DELETE FROM {table} WHERE {key} <= (SELECT {key} FROM {table} ORDER BY {key} "  # noqa: S608
                    f"LIMIT 1 OFFSET (SELECT count(*) / {EVICTED_SHARE} FROM {table}))"
                )


def _claim(path: Path) -> IO[bytes]:
    """Hold a file beside the database for as long as it is open; two pages would mix two swarms."""
    lock = Path(f"{path}.lock").open("wb")  # noqa: SIM115 - closed with the history
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        lock.close()
        raise ConfigurationError(
            f"The history {path} is in use by another status page", "Name another file with --database."
        ) from None
    return lock


def _serving(model: ModelStatus) -> Iterable[Any]:
    return (peer for peer in model.peers if peer.state == "online" and peer.condition != "failing")


def _point(row: tuple[Any, ...]) -> Point:
    at, states, known, available, replicas, peers, speeds, speed_sum, ttft_sum, *counts = row
    return Point(
        at=at,
        availability=round(available / known, 4) if known else None,
        replicas=replicas,
        peers=round(peers / states, 2),
        tokens_per_s=round(speed_sum / speeds, 3) if speeds else None,
        ttft_s=round(ttft_sum / speeds, 4) if speeds else None,
        canaries=counts[0],
        interrupted=counts[1],
        resumed=counts[2],
    )
