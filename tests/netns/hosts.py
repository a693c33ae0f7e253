"""Separate hosts on one machine: network namespaces, switches between them, and routers that let nobody in.

Needs root, `ip netns` and, for routers and cut ways, `nft`. Nothing of it reaches the machine's own network.
"""

import asyncio
import ctypes
import os
import secrets
import shutil
import subprocess
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from urllib.request import urlopen

NAT = """
table inet nat {
    chain out { type nat hook postrouting priority 100; oifname "wan" masquerade; }
    chain in {
        type filter hook forward priority 0; policy accept;
        iifname "wan" ct state established,related accept
        iifname "wan" drop
    }
    chain own { type filter hook input priority 0; iifname "wan" ct state new reject with tcp reset; }
}
"""


def ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, capture_output=True, text=True)


def why_not(*, routers: bool = False) -> str:
    """Why no namespace can be made here; empty when one can."""
    if os.geteuid() != 0:
        return "network namespaces need root"
    for command in ("ip", "nft") if routers else ("ip",):
        if shutil.which(command) is None:
            return f"there is no {command} command"
    name = f"swp{secrets.token_hex(3)}"
    try:
        ip("netns", "add", name)
        try:
            ip("-n", name, "link", "add", "probe", "type", "bridge")
            if routers:
                in_namespace(name, "nft", "-f", "-", input=NAT)
        finally:
            ip("netns", "del", name)
    except subprocess.CalledProcessError as error:
        return f"namespaces, bridges or routers cannot be made here: {error.stderr.strip()}"
    return ""


def in_namespace(name: str, *command: str, input: str | None = None) -> str:  # noqa: A002 - as subprocess has it
    done = subprocess.run(
        ["ip", "netns", "exec", name, *command], check=True, capture_output=True, text=True, input=input
    )
    return done.stdout


@dataclass(frozen=True)
class Switch:
    """A network that hosts are plugged into: a bridge in a namespace, and the addresses it hands out."""

    namespace: str
    bridge: str
    prefixes: dict[int, str]  # by version of IP: what comes before the host's number
    gateway: int | None = None  # the number of the router on it


@dataclass
class Hosts:
    """Hosts and routers. `close` takes everything down, whatever was made."""

    prefix: str = field(default_factory=lambda: f"sw{secrets.token_hex(3)}")
    count: int = 0
    versions: dict[int, tuple[int, ...]] = field(default_factory=dict)
    places: dict[int, tuple[Switch, int]] = field(default_factory=dict)
    routers: dict[str, int] = field(default_factory=dict)
    namespaces: list[str] = field(default_factory=list)

    def open(self) -> None:
        # addresses that libp2p takes for public ones; they exist in here only
        self.internet = self._add_switch(
            self._namespace(self.prefix), "internet", {4: "11.77.0.", 6: "2a00:77::"}
        )

    def add(self, at: Switch | None = None, versions: tuple[int, ...] = (4,)) -> int:
        """A new host, on the internet or behind a router; gives its number."""
        self.count += 1
        number = self.count
        self.versions[number] = versions
        self._namespace(self.name(number))
        self.inside(number, "ip", "link", "set", "lo", "up")
        self.plug(number, at or self.internet, number)
        return number

    def add_router(self, at: Switch | None = None) -> Switch:
        """A new network behind a masquerading router that lets nobody in, itself at `at`."""
        outside = at or self.internet
        number = self.add(outside, versions=tuple(outside.prefixes))
        self.inside(number, "ip", "link", "set", "eth0", "down")
        self.inside(number, "ip", "link", "set", "eth0", "name", "wan")
        self._address(number, outside, number, "wan")
        self.inside(number, "nft", "-f", "-", input=NAT)
        for switch in ("net.ipv4.ip_forward", "net.ipv6.conf.all.forwarding"):
            self.inside(number, "sysctl", "-q", "-w", f"{switch}=1")
        lan = self._add_switch(self.name(number), "lan", {4: f"192.168.{number}."}, gateway=254)
        self.inside(number, "ip", "address", "add", f"{lan.prefixes[4]}254/24", "dev", "lan")
        self.routers[lan.namespace] = number
        return lan

    def outside(self, lan: Switch) -> str:
        """The address of a network's router on its outer side."""
        return self.address(self.routers[lan.namespace])

    def forward(self, lan: Switch, port: int, number: int) -> None:
        """Have the router of a network pass a TCP port on to a host in it."""
        rules = f"""
            table inet forwarded {{
                chain in {{
                    type nat hook prerouting priority -100;
                    iifname "wan" tcp dport {port} dnat ip to {self.address(number)}
                }}
            }}
            insert rule inet nat in iifname "wan" ct status dnat accept
        """
        in_namespace(lan.namespace, "nft", "-f", "-", input=rules)

    def plug(self, number: int, switch: Switch, place: int) -> None:
        """Put the host's only cable into a switch, under an address of that place."""
        if number in self.places:
            self.unplug(number)
        self.places[number] = switch, place
        name = self.name(number)
        ip("-n", name, "link", "add", "eth0", "type", "veth", "peer", "name", self._port(number))
        ip("-n", name, "link", "set", self._port(number), "netns", switch.namespace)
        ip("-n", switch.namespace, "link", "set", self._port(number), "master", switch.bridge, "up")
        self._address(number, switch, place, "eth0")

    def unplug(self, number: int) -> None:
        self.inside(number, "ip", "link", "del", "eth0")

    def name(self, number: int) -> str:
        return f"{self.prefix}-{number}"

    def address(self, number: int, version: int = 4) -> str:
        switch, place = self.places[number]
        return f"{switch.prefixes[version]}{place}"

    def command(self, number: int, *arguments: str) -> list[str]:
        """A command line that runs on that host."""
        return ["ip", "netns", "exec", self.name(number), *arguments]

    def inside(self, number: int, *command: str, input: str | None = None) -> str:  # noqa: A002
        return in_namespace(self.name(number), *command, input=input)

    async def fetch(self, number: int, url: str) -> bytes:
        """A page of that host's own loopback."""
        with ThreadPoolExecutor(1) as thread:  # of its own: it stays in the other namespace
            return await asyncio.get_running_loop().run_in_executor(thread, _fetch_in, self.name(number), url)

    def set_link(self, number: int, state: str) -> None:
        """Take the host's cable out ("down") or put it back ("up")."""
        ip("-n", self.places[number][0].namespace, "link", "set", self._port(number), state)

    def limit_rate(self, number: int, device: str, bits_per_s: int) -> None:
        """Send no faster than this from one of the host's devices, and lose what waits longer than 0.4 s."""
        queue = ["root", "tbf", "rate", f"{bits_per_s}bit", "burst", "16kb", "latency", "400ms"]
        self.inside(number, "tc", "qdisc", "add", "dev", device, *queue)

    def close_way(self, number: int, source: int) -> None:
        """Lose everything on its way from host `source` to host `number`, and nothing on its way back."""
        sources = "".join(
            f"{'ip' if version == 4 else 'ip6'} saddr {self.address(source, version)} drop;"
            for version in self.versions[source]
        )
        rules = f"table inet way {{\nchain in {{\ntype filter hook input priority -10; {sources}\n}}\n}}\n"
        self.inside(number, "nft", "-f", "-", input=rules)

    def open_way(self, number: int) -> None:
        self.inside(number, "nft", "delete", "table", "inet", "way")

    def traffic_bytes(self, number: int) -> tuple[int, int]:
        """What the host has received and sent so far."""
        path = "/sys/class/net/eth0/statistics"
        read = [self.inside(number, "cat", f"{path}/{way}_bytes") for way in ("rx", "tx")]
        return int(read[0]), int(read[1])

    def close(self) -> None:
        for name in reversed(self.namespaces):
            subprocess.run(["ip", "netns", "del", name], check=False, capture_output=True)

    def _namespace(self, name: str) -> str:
        ip("netns", "add", name)
        self.namespaces.append(name)
        return name

    def _add_switch(
        self, namespace: str, bridge: str, prefixes: dict[int, str], gateway: int | None = None
    ) -> Switch:
        ip("-n", namespace, "link", "add", bridge, "type", "bridge")
        ip("-n", namespace, "link", "set", bridge, "up")
        return Switch(namespace, bridge, prefixes, gateway)

    def _address(self, number: int, switch: Switch, place: int, device: str) -> None:
        for version in self.versions[number]:
            if version in switch.prefixes:
                address = f"{switch.prefixes[version]}{place}/{24 if version == 4 else 64}"
                flags = ["nodad"] if version == 6 else []
                ip("-n", self.name(number), "address", "replace", address, "dev", device, *flags)
        ip("-n", self.name(number), "link", "set", device, "up")
        if switch.gateway is not None:
            gateway = f"{switch.prefixes[4]}{switch.gateway}"
            ip("-n", self.name(number), "route", "replace", "default", "via", gateway)

    def _port(self, number: int) -> str:
        return f"port{number}"


def _fetch_in(namespace: str, url: str) -> bytes:
    handle = os.open(f"/run/netns/{namespace}", os.O_RDONLY)
    try:
        if ctypes.CDLL(None, use_errno=True).setns(handle, 0) != 0:
            raise OSError(ctypes.get_errno(), "setns failed")
    finally:
        os.close(handle)
    with urlopen(url, timeout=10) as response:  # noqa: S310 - our own peer
        return response.read()
