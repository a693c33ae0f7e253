"""Separate hosts on one machine: network namespaces joined by a bridge. Needs root and `ip netns`."""

import asyncio
import ctypes
import os
import secrets
import shutil
import subprocess
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from urllib.request import urlopen

import pytest


def ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, capture_output=True, text=True)


def why_not() -> str:
    """Why no namespace can be made here; empty when one can."""
    if os.geteuid() != 0:
        return "network namespaces need root"
    if shutil.which("ip") is None:
        return "there is no ip command"
    name = f"swp{secrets.token_hex(3)}"
    try:
        ip("netns", "add", name)
        ip("netns", "del", name)
        ip("link", "add", name, "type", "bridge")
        ip("link", "del", name)
    except subprocess.CalledProcessError as error:
        return f"namespaces or bridges cannot be made here: {error.stderr.strip()}"
    return ""


@dataclass
class Hosts:
    """Hosts `10.211.77.N` on one switch. `close` takes everything down, whatever was made."""

    prefix: str = field(default_factory=lambda: f"sw{secrets.token_hex(3)}")
    count: int = 0

    def open(self) -> None:
        ip("netns", "add", self.prefix)  # the switch is in a namespace of its own
        self.at_switch("link", "add", "switch", "type", "bridge")
        self.at_switch("link", "set", "switch", "up")

    def add(self) -> int:
        """A new host; gives its number."""
        self.count += 1
        number, name = self.count, self.name(self.count)
        ip("netns", "add", name)
        ip(
            "-n",
            name,
            "link",
            "add",
            "eth0",
            "type",
            "veth",
            "peer",
            "name",
            f"port{number}",
            "netns",
            self.prefix,
        )
        self.at_switch("link", "set", f"port{number}", "master", "switch", "up")
        ip("-n", name, "address", "add", f"{self.address(number)}/24", "dev", "eth0")
        ip("-n", name, "link", "set", "eth0", "up")
        ip("-n", name, "link", "set", "lo", "up")
        return number

    def name(self, number: int) -> str:
        return f"{self.prefix}-{number}"

    def address(self, number: int) -> str:
        return f"10.211.77.{number}"

    def command(self, number: int, *arguments: str) -> list[str]:
        """A command line that runs on that host."""
        return ["ip", "netns", "exec", self.name(number), *arguments]

    async def fetch(self, number: int, url: str) -> bytes:
        """A page of that host's own loopback."""
        with ThreadPoolExecutor(1) as thread:  # of its own: it stays in the other namespace
            return await asyncio.get_running_loop().run_in_executor(thread, _fetch_in, self.name(number), url)

    def set_link(self, number: int, state: str) -> None:
        """Take the host's cable out ("down") or put it back ("up")."""
        self.at_switch("link", "set", f"port{number}", state)

    def at_switch(self, *arguments: str) -> None:
        ip("-n", self.prefix, *arguments)

    def close(self) -> None:
        for name in [*(self.name(number) for number in range(1, self.count + 1)), self.prefix]:
            subprocess.run(["ip", "netns", "del", name], check=False, capture_output=True)


def _fetch_in(namespace: str, url: str) -> bytes:
    handle = os.open(f"/run/netns/{namespace}", os.O_RDONLY)
    try:
        if ctypes.CDLL(None, use_errno=True).setns(handle, 0) != 0:
            raise OSError(ctypes.get_errno(), "setns failed")
    finally:
        os.close(handle)
    with urlopen(url, timeout=10) as response:  # noqa: S310 - our own peer
        return response.read()


@pytest.fixture
def hosts():
    if reason := why_not():
        pytest.skip(reason)
    hosts = Hosts()
    try:
        hosts.open()
        yield hosts
    finally:
        hosts.close()
