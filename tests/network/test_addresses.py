"""Addresses as people write them."""

import pytest

from swarm.errors import UsageError
from swarm.network.addresses import parse_announce_address, parse_join_address, parse_listen_address
from swarm.security.identity import Identity

PEER = Identity(bytes(32)).peer_id
RELAY = Identity(bytes([1]) * 32).peer_id


@pytest.mark.parametrize(
    "route",
    [
        "/ip4/203.0.113.7/tcp/31337",
        "/ip6/2001:db8::1/tcp/31337",
        "/dns4/swarm.example.org/tcp/443",
        "/ip4/203.0.113.7/udp/31337/quic-v1",
        f"/ip4/203.0.113.7/tcp/31337/p2p/{RELAY}/p2p-circuit",
    ],
)
def test_join_address_is_a_route_and_a_peer(route: str) -> None:
    address = parse_join_address(f" {route}/p2p/{PEER}\n")
    assert (address.route, address.peer) == (route, PEER)
    assert str(address) == f"{route}/p2p/{PEER}"


@pytest.mark.parametrize(
    "text",
    [
        "",
        "203.0.113.7:31337",
        f"203.0.113.7:31337/p2p/{PEER}",
        "/ip4/203.0.113.7/tcp/31337",
        f"/p2p/{PEER}",
        f"/ip4/203.0.113.7/tcp/31337/p2p/{PEER[:-1]}",
        "/ip4/203.0.113.7/tcp/31337/p2p/QmYyQSo1c1Ym7orWxLYvCrM2EmxFTANf8wXmmE7DWjhx5N",
        f"/ip4/203.0.113.777/tcp/31337/p2p/{PEER}",
        f"/ip4/2001:db8::1/tcp/31337/p2p/{PEER}",
        f"/ip4/203.0.113.7/tcp/0/p2p/{PEER}",
        f"/ip4/203.0.113.7/tcp/65536/p2p/{PEER}",
        f"/ip4/203.0.113.7/udp/31337/p2p/{PEER}",
        f"/ip4/203.0.113.7/tcp/31337/p2p/nobody/p2p-circuit/p2p/{PEER}",
        f"/dns4/-swarm-/tcp/31337/p2p/{PEER}",
    ],
)
def test_malformed_join_address_is_named_with_the_right_form(text: str) -> None:
    with pytest.raises(UsageError, match="Copy the whole address") as caught:
        parse_join_address(text)
    assert repr(text) in str(caught.value)


@pytest.mark.parametrize(
    ("text", "multiaddress"),
    [
        ("127.0.0.1:0", "/ip4/127.0.0.1/tcp/0"),
        ("0.0.0.0:31337", "/ip4/0.0.0.0/tcp/31337"),
        ("[::1]:31337", "/ip6/::1/tcp/31337"),
        ("/ip4/0.0.0.0/tcp/31337", "/ip4/0.0.0.0/tcp/31337"),
        ("/ip4/0.0.0.0/udp/31337/quic-v1", "/ip4/0.0.0.0/udp/31337/quic-v1"),
    ],
)
def test_listen_address_is_host_and_port_or_a_multiaddress(text: str, multiaddress: str) -> None:
    assert str(parse_listen_address(text)) == multiaddress


@pytest.mark.parametrize("text", ["", "31337", "localhost:31337", "127.0.0.1", "127.0.0.1:99999", "/tcp/1"])
def test_malformed_listen_address_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="HOST:PORT"):
        parse_listen_address(text)


def test_announced_address_may_be_a_name() -> None:
    assert str(parse_announce_address("swarm.example.org:443")) == "/dns/swarm.example.org/tcp/443"
    assert str(parse_announce_address("peer_1:443")) == "/dns/peer_1/tcp/443"


@pytest.mark.parametrize("text", ["203.0.113.7:0", "/ip4/203.0.113.7/tcp/0", "a b:1", "a..b:1", "-a.b:1", ""])
def test_announced_address_needs_a_port_and_a_host(text: str) -> None:
    with pytest.raises(UsageError, match="from outside"):
        parse_announce_address(text)


def test_loopback_is_told_from_the_rest() -> None:
    assert parse_listen_address("127.0.0.1:1").is_loopback
    assert not parse_listen_address("0.0.0.0:1").is_loopback
    assert not parse_announce_address("localhost:1").is_loopback
