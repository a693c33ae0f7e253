"""Network addresses as people write them: multiaddresses, or HOST:PORT.

Pure. Text becomes a multiaddress that p2pd understands, or a `UsageError` that shows the right form.
Knows the transports a swarm uses (TCP, QUIC, and a relay in front) and no others.
"""

import ipaddress
import re
from collections.abc import Collection
from dataclasses import dataclass

from swarm.errors import UsageError
from swarm.security.identity import is_peer_id
from swarm.values import PeerId, parse_host_port

_JOIN_FIX = (
    "Copy the whole address a peer prints at its start, like /ip4/203.0.113.7/tcp/31337/p2p/12D3KooW..."
)
_LISTEN_FIX = "Write HOST:PORT or a multiaddress, for example 0.0.0.0:31337 or /ip4/0.0.0.0/tcp/31337."
_TRANSPORT = re.compile(r"/(ip4|ip6|dns|dns4|dns6)/([^/]+)/(tcp|udp)/(\d{1,5})((?:/quic(?:-v1)?)?)")
_LABEL = r"[A-Za-z0-9_](?:[A-Za-z0-9_-]{0,61}[A-Za-z0-9_])?"
_HOST_NAME = re.compile(rf"(?=.{{1,253}}$){_LABEL}(?:\.{_LABEL})*\.?")


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Where a node listens or is reached: one transport address."""

    family: str  # ip4, ip6, dns, dns4, dns6
    host: str
    transport: str  # tcp, udp
    port: int
    suffix: str = ""  # "/quic-v1" after udp

    def __str__(self) -> str:
        return f"/{self.family}/{self.host}/{self.transport}/{self.port}{self.suffix}"

    @property
    def is_loopback(self) -> bool:
        return self.family in ("ip4", "ip6") and ipaddress.ip_address(self.host).is_loopback


@dataclass(frozen=True, slots=True)
class JoinAddress:
    """A node to join through: who it is and the multiaddress that leads there."""

    peer: PeerId
    route: str  # without the /p2p/<peer id> at its end

    def __str__(self) -> str:
        return f"{self.route}/p2p/{self.peer}"


def parse_join_address(text: str) -> JoinAddress:
    """Read ``/ip4/1.2.3.4/tcp/31337/p2p/ID``, also through a relay (``.../p2p/RELAY/p2p-circuit/p2p/ID``)."""
    route, _, peer = text.strip().rpartition("/p2p/")
    if not is_peer_id(peer):
        raise UsageError(f"{text!r} is not an address to join: it does not end in /p2p/<peer id>", _JOIN_FIX)
    if not _is_route(route):
        raise UsageError(f"{text!r} is not an address to join: nothing leads to the peer", _JOIN_FIX)
    return JoinAddress(PeerId(peer), route)


def parse_listen_address(text: str) -> Endpoint:
    """Read an address of this machine; port 0 lets the system choose."""
    endpoint = _parse_endpoint(text)
    if endpoint is None or endpoint.family.startswith("dns"):
        raise UsageError(f"{text!r} is not an address to listen on", _LISTEN_FIX)
    return endpoint


def parse_announce_address(text: str) -> Endpoint:
    """Read an address that others reach this machine by: a name or an address, with its port."""
    endpoint = _parse_endpoint(text, 1)
    if endpoint is None:
        raise UsageError(
            f"{text!r} is not an address that others could reach",
            "Write HOST:PORT or a multiaddress as seen from outside, for example 203.0.113.7:31337.",
        )
    return endpoint


def endpoint_of(route: str) -> Endpoint | None:
    """The endpoint that a multiaddress leads to directly; None when it goes through a relay, or is none."""
    return _parse_endpoint(route, 1) if route.startswith("/") else None


def first_endpoint_of(route: str) -> Endpoint | None:
    """The same, but of a way through a relay the endpoint that leads to the relay."""
    return endpoint_of(route.rpartition("/p2p/")[0] if route.endswith("/p2p-circuit") else route)


def usable(addresses: Collection[str]) -> tuple[str, ...]:
    """Of a node's own addresses those that others can use: through a relay first, since it is needed where
    there is one, and loopback only when there is nothing else."""
    endpoints = {address: endpoint_of(address.rpartition("/p2p/")[0]) for address in addresses}
    relayed = tuple(address for address, endpoint in endpoints.items() if endpoint is None)
    others = tuple(address for address, each in endpoints.items() if each and not each.is_loopback)
    return relayed + others or tuple(addresses)


def _is_route(route: str) -> bool:
    if route.endswith("/p2p-circuit"):
        route, _, relay = route.removesuffix("/p2p-circuit").rpartition("/p2p/")
        if not is_peer_id(relay):
            return False
    return route.startswith("/") and _parse_endpoint(route, 1) is not None


def _parse_endpoint(text: str, lowest_port: int = 0) -> Endpoint | None:
    endpoint = (
        _from_multiaddress(text.strip()) if text.strip().startswith("/") else _from_host_port(text.strip())
    )
    if endpoint is None or not lowest_port <= endpoint.port <= 65535:
        return None
    return endpoint if _host_fits(endpoint.family, endpoint.host) else None


def _from_multiaddress(text: str) -> Endpoint | None:
    match = _TRANSPORT.fullmatch(text)
    if match is None or (match[3] == "udp") != bool(match[5]):
        return None
    return Endpoint(match[1], match[2], match[3], int(match[4]), match[5])


def _from_host_port(text: str) -> Endpoint | None:
    try:
        host, port = parse_host_port(text)
    except UsageError:
        return None
    try:
        family = f"ip{ipaddress.ip_address(host).version}"
    except ValueError:
        family = "dns"
    return Endpoint(family, host, "tcp", port)


def _host_fits(family: str, host: str) -> bool:
    if family.startswith("dns"):
        return _HOST_NAME.fullmatch(host) is not None
    try:
        return f"ip{ipaddress.ip_address(host).version}" == family
    except ValueError:
        return False
