"""Who makes room when an HTTP server has all the connections it can serve."""

import pytest

from swarm.connections import FIRST_HEAD_S, NEXT_HEAD_S, STALLED_S, ConnectionTable, owner_of


def full(limit, *owners):
    """A table with one connection for each owner, one after the other."""
    table = ConnectionTable(limit)
    for number, owner in enumerate(owners):
        assert table.arrive(number, owner, float(number)) is None
    return table


def test_who_has_the_most_gives_up_the_one_that_was_idle_longest():
    table = full(6, "1.1.1.1", "2.2.2.2", "1.1.1.1", "1.1.1.1", "3.3.3.3", "2.2.2.2")
    assert table.arrive("new", "4.4.4.4", 9.0) == 0
    assert len(table) == 6


def test_one_address_has_half_of_them_and_no_more():
    table = full(8, *["1.1.1.1"] * 4)
    assert table.arrive("more", "1.1.1.1", 9.0) == 0
    assert table.arrive("other", "2.2.2.2", 9.0) is None


def test_a_busy_connection_is_never_given_up():
    table = full(4, "1.1.1.1", "1.1.1.1", "2.2.2.2", "2.2.2.2")
    for connection in range(4):
        table.busy(connection)
    assert table.arrive("new", "3.3.3.3", 9.0) == "new"
    table.idle(2, 9.0)
    assert table.arrive("new", "3.3.3.3", 9.0) == 2
    assert table.arrive("next", "3.3.3.3", 9.0) == "new"


def test_the_first_head_has_less_time_than_the_next():
    table = full(4, "1.1.1.1", "1.1.1.1")
    table.busy(1)
    table.idle(1, 1.0)
    assert table.overdue(FIRST_HEAD_S) == []
    assert table.overdue(FIRST_HEAD_S + 2) == [0]
    assert table.overdue(NEXT_HEAD_S + 2) == [0, 1]
    table.leave(0)
    table.busy(1)
    assert table.overdue(1e9) == []


def test_a_reader_is_stalled_when_it_takes_nothing_and_not_when_it_is_slow():
    table = full(4, "1.1.1.1", "1.1.1.1")
    for step in range(10):
        now = step * STALLED_S * 0.9
        assert not table.stalled(0, 1000 - step, now)  # takes a byte each time
    assert not table.stalled(0, 991, now + STALLED_S - 1)
    assert table.stalled(0, 991, now + STALLED_S + 1)
    table.taken(0)
    assert not table.stalled(0, 2000, now + 9 * STALLED_S)
    assert not table.stalled(1, 10, 1e9)
    assert not table.stalled("never seen", 10, 1e9)


def test_what_is_left_is_forgotten():
    table = full(2, "1.1.1.1", "2.2.2.2")
    for connection in (0, 0, 1, "never seen"):
        table.leave(connection)
        table.busy(connection)
        table.idle(connection, 1.0)
    assert len(table) == 0
    assert table.overdue(1e9) == []


@pytest.mark.parametrize(
    ("address", "owner"),
    [
        ("192.0.2.7", "192.0.2.7"),
        ("::ffff:192.0.2.7", "192.0.2.7"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"),
        ("fe80::1%eth0", "fe80::/64"),
        ("", ""),
    ],
)
def test_addresses_that_one_host_can_take_count_together(address, owner):
    assert owner_of(address) == owner
