"""Whom to try, in which order, how long to wait, and the list on disk."""

import errno
import os
from pathlib import Path

import pytest

from swarm.network.addresses import JoinAddress, parse_join_address
from swarm.network.rejoin import (
    MAX_AGE_S,
    MAX_CANDIDATES,
    MAX_KNOWN_PEERS,
    MAX_SHARED_LISTS,
    Backoff,
    KnownPeer,
    candidates,
    load_peer_list,
    remember,
    save_peer_list,
    shared_peer_list,
)
from swarm.security.identity import Identity

NOW = 1_000_000_000.0
PEERS = [Identity(bytes([index]) * 32).peer_id for index in range(MAX_KNOWN_PEERS + 8)]
OWN = Identity(b"\xff" * 32).peer_id


def address_of(index: int) -> str:
    return f"/ip4/203.0.113.7/tcp/{index + 1}/p2p/{PEERS[index]}"


def known(index: int, last_seen: float = NOW) -> KnownPeer:
    return KnownPeer(PEERS[index], (address_of(index),), last_seen)


def joins(*indices: int) -> tuple[JoinAddress, ...]:
    return tuple(parse_join_address(address_of(index)) for index in indices)


def test_waits_double_up_to_their_limit() -> None:
    backoff = Backoff(first_s=1.0, factor=2.0, limit_s=10.0)
    assert [backoff.delay_s(attempt, 1.0) for attempt in range(6)] == [1, 2, 4, 8, 10, 10]
    assert backoff.delay_s(10_000, 1.0) == 10


def test_chance_spreads_a_wait_over_its_upper_half() -> None:
    assert Backoff(first_s=4.0).delay_s(0, 0.0) == 2.0
    assert Backoff(first_s=4.0).delay_s(0, 0.5) == 3.0


def test_configured_addresses_come_first_and_the_recently_seen_next() -> None:
    peers = remember((), [known(1, NOW - 50), known(2, NOW - 10)])
    assert candidates(joins(3), peers, OWN, NOW) == joins(3, 2, 1)


def test_who_is_reached_through_this_node_only_is_not_tried() -> None:
    direct, *relayed = (
        address_of(1),
        f"/ip4/203.0.113.9/tcp/1/p2p/{OWN}/p2p-circuit/p2p/{PEERS[1]}",
        f"/ip4/203.0.113.9/tcp/1/p2p/{PEERS[2]}/p2p-circuit/p2p/{PEERS[1]}",
    )
    peers = (KnownPeer(PEERS[1], (relayed[0], direct, relayed[1]), NOW),)
    assert [str(each) for each in candidates((), peers, OWN, NOW)] == [direct, relayed[1]]


def test_address_that_is_configured_and_known_is_tried_once() -> None:
    assert candidates(joins(1), (known(1),), OWN, NOW) == joins(1)


def test_node_does_not_join_itself() -> None:
    assert candidates(joins(1), (known(1), known(2)), PEERS[1], NOW) == joins(2)


def test_peers_not_seen_for_two_weeks_are_not_tried() -> None:
    assert candidates((), (known(1, NOW - MAX_AGE_S - 1), known(2)), OWN, NOW) == joins(2)


def test_only_so_many_are_tried() -> None:
    assert len(candidates((), tuple(known(index) for index in range(60)), OWN, NOW)) == MAX_CANDIDATES


@pytest.mark.parametrize("address", ["nonsense", address_of(2), "/ip4/127.0.0.1/tcp/1"])
def test_address_on_the_list_that_does_not_lead_to_its_peer_is_skipped(address: str) -> None:
    assert candidates((), (KnownPeer(PEERS[1], (address,), NOW),), OWN, NOW) == ()


def test_newer_sighting_replaces_an_older_one() -> None:
    moved = KnownPeer(PEERS[1], (address_of(1).replace("203.0.113.7", "203.0.113.8"),), NOW)
    assert remember((known(1, NOW - 5),), [moved]) == (moved,)
    assert remember((moved,), [known(1, NOW - 5)]) == (moved,)


def test_sighting_without_an_address_is_not_remembered() -> None:
    assert remember((known(1),), [KnownPeer(PEERS[1], (), NOW + 1)]) == (known(1),)


def test_oldest_fall_off_the_end() -> None:
    peers = remember((), [known(index, NOW - index) for index in range(MAX_KNOWN_PEERS + 8)])
    assert len(peers) == MAX_KNOWN_PEERS
    assert peers[-1].last_seen == NOW - (MAX_KNOWN_PEERS - 1)


def test_list_comes_back_from_disk(tmp_path: Path) -> None:
    path = tmp_path / "state" / "peers.json"
    save_peer_list(path, joins(9), (known(1), known(2)))
    assert load_peer_list(path, joins(9)) == (known(1), known(2))
    assert [file.name for file in path.parent.iterdir()] == ["peers.json"]


@pytest.mark.parametrize("content", [b"", b"{", b'{"peers": 1}', b'[{"peer": 1}]', b"\xff"])
def test_damaged_list_is_an_empty_one(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "peers.json"
    path.write_bytes(content)
    assert load_peer_list(path, joins(9)) == ()


def test_list_of_another_swarm_is_not_used(tmp_path: Path) -> None:
    path = tmp_path / "peers.json"
    save_peer_list(path, joins(8, 9), (known(1),))
    assert load_peer_list(path, joins(9, 8)) == (known(1),)
    assert load_peer_list(path, joins(7)) == ()
    assert load_peer_list(path, ()) == ()


def test_list_on_a_disk_that_can_only_be_read_is_no_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    monkeypatch.setattr(Path, "write_bytes", refuse)
    monkeypatch.setattr(Path, "unlink", refuse)
    save_peer_list(tmp_path / "peers.json", joins(9), (known(1),))
    assert "Read-only file system" in caplog.text


def test_missing_list_is_an_empty_one(tmp_path: Path) -> None:
    assert load_peer_list(tmp_path / "peers.json", joins(9)) == ()


def test_list_that_cannot_be_written_is_no_error(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "peers.json").mkdir()
    save_peer_list(tmp_path / "peers.json", joins(9), (known(1),))
    assert "cannot be written" in caplog.text
    assert [file.name for file in tmp_path.iterdir()] == ["peers.json"]


def test_clients_of_one_swarm_share_a_list_and_old_ones_are_removed(tmp_path: Path) -> None:
    lists = [shared_peer_list(tmp_path, [f"/ip4/192.0.2.1/tcp/{port}"]) for port in range(20)]
    assert shared_peer_list(tmp_path, ["b", "a"]) == shared_peer_list(tmp_path, ["a", "b"])
    for age, path in enumerate(reversed(lists)):
        path.write_text("{}")
        os.utime(path, (1e9 - age, 1e9 - age))
    own = shared_peer_list(tmp_path, ["/ip4/192.0.2.1/tcp/0"])
    assert own == lists[0]
    assert {*tmp_path.iterdir()} == {own, *lists[-(MAX_SHARED_LISTS - 1) :]}
