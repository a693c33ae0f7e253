"""The libp2p daemon `p2pd` as a child process that never outlives us, whatever ends this process.

A small shell guards it: it holds the read end of a pipe whose write end only this process has, and
kills the daemon when the pipe closes. Both are a session of their own, so that a Ctrl-C in the
terminal lets this process drain first. Their sockets live in a private directory (0700).
Knows nothing of hivemind's code, only where its wheel puts the binary.
"""

import asyncio
import contextlib
import errno
import importlib.util
import logging
import os
import shutil
import signal
import socket
import tempfile
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from swarm.errors import ConfigurationError, PortInUse
from swarm.network.addresses import Endpoint, JoinAddress, parse_listen_address
from swarm.security.identity import Identity

# $1 is the private directory, the rest the daemon's command. The daemon has the only copy of stdout,
# so that the end of stdout is the end of the daemon.
_GUARD = """
trap '' HUP INT TERM
directory=$1; shift
"$@" </dev/null & daemon=$!
exec >/dev/null 2>&1
read -r _
kill -KILL "$daemon"; wait "$daemon"
rm -rf "$directory"
"""
_READY_LINE = b"Peer ID:"
_STOP_TIMEOUT_S = 2.0

# What a node lends to those that it relays for. A cut of a relayed connection costs its sessions a new
# dial, so it comes rarely; a buffer of p2pd's own 16 MiB for each direction would fill a small machine.
_RELAY_LIMITS = (
    "-relayTimeLimit=24h",
    f"-relayDataLimit={64 * 2**30}",
    f"-relayBufferSize={128 * 2**10}",
    "-relayMaxReservations=256",
    "-relayMaxCircuits=64",
)

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class DaemonOptions:
    """How p2pd is started. No endpoint has port 0, so that a restart takes the same one."""

    listen: tuple[Endpoint, ...]
    announce: tuple[Endpoint, ...]
    relays: tuple[JoinAddress, ...]  # whom to ask for a relayed address; empty: none
    relays_for_others: bool
    reachability: Literal["public", "private"] | None
    client: bool  # uses the DHT without serving it
    startup_timeout_s: float


class Daemon:
    """A running p2pd with its guard."""

    def __init__(self, process: asyncio.subprocess.Process, directory: Path) -> None:
        self._process = process
        self._directory = directory
        self._ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._output = asyncio.create_task(self._read_output(), name="p2pd output")

    @classmethod
    async def start(cls, options: DaemonOptions, identity: Identity) -> "Daemon":
        """Start p2pd and wait until it listens. Raises `PortInUse` or `ConfigurationError`."""
        binary = find_daemon()
        _check_ports(options.listen)
        directory = Path(tempfile.mkdtemp(prefix="swarm-"))  # mode 0700
        key_file = directory / "identity"
        try:
            key_file.touch(mode=0o600)
            key_file.write_bytes(identity.to_bytes())
            process = await _spawn(
                directory, binary, f"-id={key_file}", f"-listen=/unix{directory}/p2pd.sock", *_flags(options)
            )
        except BaseException:
            shutil.rmtree(directory, ignore_errors=True)
            raise
        daemon = cls(process, directory)
        try:
            await daemon._wait_ready(options.startup_timeout_s)
        except BaseException:
            await daemon.stop()
            raise
        key_file.unlink()
        return daemon

    @property
    def control_socket(self) -> Path:
        """Where p2pd takes requests."""
        return self._directory / "p2pd.sock"

    @property
    def callback_socket(self) -> Path:
        """Where p2pd brings incoming streams."""
        return self._directory / "streams.sock"

    async def wait_gone(self) -> None:
        """Return when p2pd has ended, for whatever reason."""
        await asyncio.wait([self._output])

    async def stop(self) -> None:
        """End p2pd and its guard. Safe to call twice."""
        self._ready.cancel()
        if self._process.stdin is not None:
            self._process.stdin.close()  # the guard's signal
        try:
            async with asyncio.timeout(_STOP_TIMEOUT_S):
                await self._process.wait()
        except TimeoutError:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            await self._process.wait()
        await asyncio.wait([self._output])
        shutil.rmtree(self._directory, ignore_errors=True)

    async def _wait_ready(self, timeout_s: float) -> None:
        try:
            async with asyncio.timeout(timeout_s):
                await self._ready
        except TimeoutError:
            raise ConfigurationError(
                f"The network daemon p2pd did not start within {timeout_s:.0f} s",
                "This machine may be overloaded; try again.",
            ) from None

    async def _read_output(self) -> None:
        output = self._process.stdout
        last_line = b""
        while output is not None and (line := await output.readline()):
            last_line = line.strip()
            _log.debug("p2pd: %s", last_line.decode(errors="replace"))
            if line.startswith(_READY_LINE) and not self._ready.done():
                self._ready.set_result(None)
        if not self._ready.done():
            self._ready.set_exception(_start_error(last_line.decode(errors="replace")))


async def _spawn(directory: Path, *command: str | Path) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        "/bin/sh", "-c", _GUARD, "swarm-guard", directory, *command,
        stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
        env={**os.environ, "GOLOG_LOG_LEVEL": "error"},
        start_new_session=True,
    )  # fmt: skip


def choose_ports(endpoints: tuple[Endpoint, ...]) -> tuple[Endpoint, ...]:
    """The same endpoints with every port 0 replaced by one that is free now: one for both families of
    addresses, where that can be."""
    chosen: list[Endpoint] = []
    for endpoint in endpoints:
        if endpoint.port == 0:
            alike = [each.port for each in chosen if each.transport == endpoint.transport]
            endpoint = replace(endpoint, port=_free_port(endpoint, alike))
        chosen.append(endpoint)
    return tuple(chosen)


def listenable(addresses: Collection[str]) -> tuple[str, ...]:
    """Of some addresses, as text, those of a family that this machine has."""
    return tuple(text for text in addresses if still_here((parse_listen_address(text),)))


def still_here(endpoints: tuple[Endpoint, ...]) -> tuple[Endpoint, ...]:
    """Those whose address this machine has."""
    found = []
    for endpoint in endpoints:
        try:
            _bind(replace(endpoint, port=0))
        except ConfigurationError:
            continue
        found.append(endpoint)
    return tuple(found)


def _free_port(endpoint: Endpoint, wanted: Sequence[int]) -> int:
    for port in wanted:
        with contextlib.suppress(PortInUse):
            return _bind(replace(endpoint, port=port))
    return _bind(endpoint)


def _bind(endpoint: Endpoint) -> int:
    """Bind an endpoint for an instant; the port that it got. Raises `PortInUse` or `ConfigurationError`."""
    family = socket.AF_INET6 if endpoint.family == "ip6" else socket.AF_INET
    kind = socket.SOCK_STREAM if endpoint.transport == "tcp" else socket.SOCK_DGRAM
    try:
        with socket.socket(family, kind) as probe:
            if family == socket.AF_INET6:
                probe.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)  # as p2pd; IPv4 has its own
            if endpoint.transport == "tcp":
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # past connections do not count
            probe.bind((endpoint.host, endpoint.port))
            return int(probe.getsockname()[1])
    except OSError as error:
        raise _bind_error(endpoint, error) from error


def _check_ports(endpoints: tuple[Endpoint, ...]) -> None:
    # libp2p shares ports (SO_REUSEPORT): without this two nodes would split one port between them.
    for endpoint in endpoints:
        _bind(endpoint)


def _bind_error(endpoint: Endpoint, error: OSError) -> ConfigurationError:
    if error.errno == errno.EADDRINUSE:
        return PortInUse(
            f"Port {endpoint.port} of {endpoint.host} is in use by another program",
            "Choose another port with --listen, or stop that program.",
        )
    return ConfigurationError(
        f"This machine cannot listen on {endpoint}: {error.strerror}",
        "Choose an address of this machine with --listen, for example 0.0.0.0:31337.",
    )


def _start_error(last_line: str) -> ConfigurationError:
    if "address already in use" in last_line:
        return PortInUse(
            f"A port to listen on is in use: {last_line}",
            "Choose another with --listen, or stop that program.",
        )
    return ConfigurationError(
        f"The network daemon p2pd ended at its start: {last_line or 'it said nothing'}",
        "Run: swarm doctor",
    )


def find_daemon() -> Path:
    """The p2pd that hivemind brings. Raises `ConfigurationError` where there is none that may be run."""
    package = importlib.util.find_spec("hivemind")  # finds it without importing it
    if package is not None and package.origin is not None:
        binary = Path(package.origin).parent / "hivemind_cli" / "p2pd"
        if os.access(binary, os.X_OK):
            return binary
    raise ConfigurationError(
        "The network daemon p2pd is missing or not executable: hivemind has it for Linux and macOS only",
        "Reinstall hivemind; on Windows use WSL or Docker.",
    )


def _flags(options: DaemonOptions) -> list[str]:
    flags = [
        "-dhtClient" if options.client else "-dhtServer",
        "-b=0",  # joining is ours: p2pd would exit when no bootstrap answers
        "-autonat",
        "-connManager",
        "-relay=1",  # to dial through relays and to be dialled; serving as one is another flag
        f"-relayService={int(options.relays_for_others)}",
        *(_RELAY_LIMITS if options.relays_for_others else ()),
        f"-autoRelay={int(bool(options.relays))}",
        # Else p2pd waits three minutes for four candidates, though it is told whom to take.
        "-relayDiscovery=0",
        f"-natPortMap={int(any(not endpoint.is_loopback for endpoint in options.listen))}",
        # Without trusted relays p2pd would fall back to public nodes of another network.
        *([f"-trustedRelays={_joined(options.relays)}"] if options.relays else []),
        *([f"-hostAddrs={_joined(options.listen)}"] if options.listen else ["-noListenAddrs"]),
        *([f"-announceAddrs={_joined(options.announce)}"] if options.announce else []),
    ]
    reachability = "private" if options.relays or not options.listen else options.reachability
    if reachability is not None:
        flags.append(f"-forceReachability{reachability.capitalize()}")
    return flags


def _joined(addresses: tuple[Endpoint, ...] | tuple[JoinAddress, ...]) -> str:
    return ",".join(str(address) for address in addresses)
