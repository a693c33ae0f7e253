"""The past survives crashes, a full disk and time, and stays within its bounds."""

import resource
import signal
import sqlite3
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest
from status_values import DIGEST, NOW, proof, record, shown, state

from swarm.errors import ConfigurationError
from swarm.status.history import History

WHOLE = (record("a", 0, 3, public_name="Ann"), record("b", 3, 6))
START = NOW // 7200 * 7200


@pytest.fixture
def path(tmp_path) -> Path:
    return tmp_path / "deep" / "status.sqlite"


@pytest.fixture
def history(path):
    opened = History(path)
    yield opened
    opened.close()


def test_a_state_becomes_a_point_of_every_range(history):
    history.record(state(*WHOLE))
    for name in ("24h", "7d", "90d"):
        [point] = history.points(DIGEST, name, NOW)
        assert (point.availability, point.replicas, point.peers) == (1.0, 1, 2.0)
        assert (point.tokens_per_s, point.ttft_s, point.canaries) == (15.0, 0.2, 3)


def test_points_average_what_varies_and_keep_the_worst_of_replicas(history):
    history.record(state(*WHOLE, at=START))
    history.record(state(*WHOLE, record("c", 0, 6), at=START + 10))
    history.record(state(WHOLE[0], at=START + 20))
    [point] = history.points(DIGEST, "24h", START + 30)
    assert (point.peers, point.replicas) == (2.0, 0)
    assert point.availability == pytest.approx(2 / 3, abs=1e-4)


def test_what_is_not_known_counts_neither_as_working_nor_as_an_outage(history):
    history.record(state(*WHOLE, shown_by=proof(passed_ago_s=None, tokens_per_s=None)))
    [point] = history.points(DIGEST, "24h", NOW)
    assert (point.availability, point.tokens_per_s) == (None, None)


def test_canaries_are_counted_once_each(history):
    history.record(state(*WHOLE, at=START, shown_by=proof(runs=3)))
    history.record(state(*WHOLE, at=START + 10, shown_by=proof(runs=5, interrupted=1)))
    [point] = history.points(DIGEST, "24h", START + 20)
    assert (point.canaries, point.interrupted) == (5, 1)


def test_a_day_is_told_in_at_most_145_points(history):
    for minute in range(0, 86_400, 300):
        history.record(state(*WHOLE, at=START + minute))
    assert 143 <= len(history.points(DIGEST, "24h", START + 86_400)) <= 145


def test_what_is_older_than_its_range_is_deleted(history, path):
    history.record(state(*WHOLE, at=START - 100 * 86_400))
    for second in range(0, 361 * 10, 10):
        history.record(state(*WHOLE, at=START + second))
    oldest = sqlite3.connect(path).execute("SELECT row_s, min(at) FROM samples GROUP BY row_s").fetchall()
    assert all(at >= START for _, at in oldest)


def test_service_is_counted_in_blocks_times_hours_and_not_while_failing(history):
    failing = proof({"b": shown("failed")})
    for second in range(0, 3601, 30):
        history.record(state(*WHOLE, record("c", 3, 6), at=START + second, shown_by=failing))
    told = {one.peer: (one.name, one.block_hours) for one in history.contributors()}
    assert told == {"a": ("Ann", 3.0), "c": ("", 3.0)}


def test_time_in_which_the_page_did_not_look_is_nobodys_service(history):
    history.record(state(*WHOLE, at=START))
    history.record(state(*WHOLE, at=START + 7200))
    assert history.contributors()[0].block_hours == pytest.approx(3 / 60)


def test_an_incident_has_a_beginning_an_end_and_a_cause_also_across_a_restart(path):
    first = History(path)
    first.record(state(WHOLE[0], at=START))
    first.close()
    second = History(path)
    second.record(state(WHOLE[0], at=START + 60))
    [incident] = second.incidents()
    assert (incident.cause, incident.began_at, incident.ended_at) == ("No peer hosts blocks 3:6", START, None)
    second.record(state(*WHOLE, at=START + 120))
    [incident] = second.incidents()
    assert incident.ended_at == START + 120
    second.close()


def test_a_full_file_makes_room_by_giving_up_the_oldest(path):
    history = History(path, limit_bytes=200_000)
    for minute in range(3000):
        peers = [record(f"{minute}-{n}", 0, 6) for n in range(3)]
        history.record(state(*WHOLE, *peers, at=START + 60 * minute))
    assert path.stat().st_size <= 200_000
    newest = history.points(DIGEST, "24h", START + 60 * 3000)[-1]
    assert newest.at + 600 >= START + 60 * 2999
    history.close()


def test_a_full_disk_is_an_error_of_writing_and_the_next_write_goes_on(path):
    history = History(path)
    history.record(state(*WHOLE, at=START))
    limit = resource.getrlimit(resource.RLIMIT_FSIZE)
    before = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (Path(f"{path}-wal").stat().st_size, limit[1]))
    try:
        with pytest.raises(sqlite3.Error):
            history.record(state(*WHOLE, at=START + 7200))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limit)
        signal.signal(signal.SIGXFSZ, before)
    history.record(state(*WHOLE, at=START + 14_400))
    assert [point.at for point in history.points(DIGEST, "24h", START + 14_400)] == [START, START + 14_400]
    history.close()


# Tells each sample once it is written. A millisecond apart, so that no disk is fast enough to fill a day.
WRITER = """
    import sys
    sys.path.insert(0, sys.argv[2])
    from pathlib import Path
    from status_values import record, state
    from swarm.status.history import History
    history = History(Path(sys.argv[1]))
    at = float(sys.argv[3])
    while True:
        history.record(state(record("a", 0, 3), record("b", 3, 6), at=at))
        print("written", flush=True)
        at += 0.001
"""


def test_kill_9_in_the_middle_of_writes_loses_at_most_one_sample_twenty_times(path):
    for round_ in range(20):
        at = START + round_ * 3600
        writer = subprocess.Popen(
            [sys.executable, "-c", textwrap.dedent(WRITER), str(path), str(Path(__file__).parent), str(at)],
            stdout=subprocess.PIPE,
            text=True,
        )
        written = [writer.stdout.readline() for _ in range(3)]
        time.sleep(round_ / 2000)  # at another point of a write each time; what is right depends on none
        writer.kill()
        written += writer.stdout.readlines()
        writer.wait()
        History(path).close()
        database = sqlite3.connect(path)
        assert database.execute("PRAGMA integrity_check").fetchone() == ("ok",)
        kept = "SELECT sum(states) FROM samples WHERE row_s = 60 AND at >= ?"
        # the last one may have been written and not told
        assert database.execute(kept, (at,)).fetchone()[0] - len(written) in (0, 1)
        database.close()


def test_a_file_that_is_no_database_is_refused_by_name(path):
    path.parent.mkdir()
    path.write_text("not a database, but a letter to a friend " * 100)
    with pytest.raises(ConfigurationError, match=r"status\.sqlite cannot be used.*--database"):
        History(path)


def test_two_pages_do_not_share_a_file(path, history):
    with pytest.raises(ConfigurationError, match="in use by another status page"):
        History(path)


def test_a_file_of_another_layout_is_refused(path):
    History(path).close()
    sqlite3.connect(path).execute("PRAGMA user_version = 99")
    with pytest.raises(ConfigurationError, match="another version of swarm"):
        History(path)
