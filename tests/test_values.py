"""Small words for people."""

from swarm.values import duration, listed


def test_durations_and_lists_read_well():
    assert [duration(s) for s in (4, 90, 7200, 200_000)] == ["4 s", "2 min", "2 h", "2 d"]
    assert listed(["a", "b", "c", "d", "e", "f"]) == "a, b, c, d and 2 more"
