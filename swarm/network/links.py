"""This machine's links: which addresses it has now, and when that changes.

On Linux the kernel tells of every change (netlink, man 7 rtnetlink); elsewhere the addresses are read
every two seconds. Knows nothing of peers: what to do about a change is network/libp2p's.
"""

import asyncio
import contextlib
import ipaddress
import socket
import sys
from collections.abc import AsyncGenerator
from contextlib import aclosing

import psutil

POLL_EVERY_S = 2.0
SETTLE_S = 0.1  # a link that comes up is told of in several messages

_NETLINK_ROUTE = 0
_LINK, _IPV4_ADDRESS, _IPV6_ADDRESS = 0x1, 0x10, 0x100  # RTMGRP_*
_FAMILIES = (socket.AF_INET, socket.AF_INET6)

Interface = ipaddress.IPv4Interface | ipaddress.IPv6Interface


def interfaces() -> frozenset[Interface]:
    """The addresses, with their networks, of all links that are up; no loopback, no link-local ones."""
    stats = psutil.net_if_stats()
    found = set()
    for name, addresses in psutil.net_if_addrs().items():
        if name in stats and not stats[name].isup:
            continue
        for address in addresses:
            if address.family in _FAMILIES:
                interface = _interface(address.address, address.netmask)
                if interface is not None:
                    found.add(interface)
    return frozenset(found)


def is_on_link(host: str, own: frozenset[Interface]) -> bool:
    """Whether a host is this machine or on one of its own networks: no router is in between."""
    try:
        address = ipaddress.ip_address(host)
    except ValueError:  # a name
        return False
    return address.is_loopback or any(address in interface.network for interface in own)


def has_public(own: frozenset[Interface]) -> bool:
    """Whether one of the addresses is one of the internet's own; without one there is a router in between."""
    return any(interface.ip.is_global for interface in own)


async def changes() -> AsyncGenerator[frozenset[Interface], None]:
    """The addresses, each time after they have changed."""
    known = interfaces()
    async with aclosing(_news()) as news:
        async for _ in news:
            now = interfaces()
            if now != known:
                known = now
                yield now


def _interface(address: str, netmask: str | None) -> Interface | None:
    host = address.partition("%")[0]
    try:
        bits = bin(int(ipaddress.ip_address(netmask))).count("1") if netmask else None
        interface = ipaddress.ip_interface(host if bits is None else f"{host}/{bits}")
    except ValueError:
        return None
    return None if interface.is_loopback or interface.is_link_local else interface


async def _news() -> AsyncGenerator[None, None]:
    """Comes whenever something may have changed."""
    try:
        listening = _listen()
    except OSError:  # not Linux, or a sandbox that grants no netlink
        while True:
            await asyncio.sleep(POLL_EVERY_S)
            yield
    loop, heard = asyncio.get_running_loop(), asyncio.Event()
    loop.add_reader(listening.fileno(), _drain, listening, heard)
    try:
        while True:
            await heard.wait()
            await asyncio.sleep(SETTLE_S)
            heard.clear()
            yield
    finally:
        loop.remove_reader(listening.fileno())
        listening.close()


def _listen() -> socket.socket:
    if sys.platform != "linux":
        raise OSError("no netlink")
    listening = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_NONBLOCK, _NETLINK_ROUTE)
    try:
        listening.bind((0, _LINK | _IPV4_ADDRESS | _IPV6_ADDRESS))
    except OSError:
        listening.close()
        raise
    return listening


def _drain(listening: socket.socket, heard: asyncio.Event) -> None:
    # What the messages say is read from the system afterwards; ENOBUFS says that some were lost.
    with contextlib.suppress(OSError):
        while listening.recv(65536):
            heard.set()
    heard.set()
