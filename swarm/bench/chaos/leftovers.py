"""What a scenario left behind: processes, sockets, sessions, streams, tasks, memory.

Looked for after the scenario's client has closed and the harness is whole again, and given a few
seconds to go. A session that a peer keeps for a client it lost (`linger`) is no leftover where that
peer was disturbed: it cannot know that nobody comes back.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

import psutil

from swarm.bench.chaos.harness import Harness, HarnessPeer

SETTLE_S = 6.0
MEMORY_SLACK_BYTES = 64 * 2**20
SPARE_FILES = 4  # files that libraries open for good at their first use
_CLIENT_FOLDERS = ("client", "session", "network")
_SWARM = Path(__file__).parents[2]


@dataclass(frozen=True, slots=True)
class Baseline:
    """How things were before."""

    children: frozenset[int]  # pids: of whoever runs the scenario, besides
    listening: int
    files: int
    memory: dict[int, int]  # pid -> resident bytes
    sessions: dict[HarnessPeer, int]  # kept still for clients that peers lost earlier

    @classmethod
    async def take(cls, harness: Harness) -> "Baseline":
        """As things are now."""
        return cls(
            children=frozenset(child.pid for child in psutil.Process().children()),
            listening=_listening(),
            files=_files(harness),
            memory={pid: _memory(pid) for pid in harness.expected_pids},
            sessions={peer: int((await peer.metrics())["swarm_sessions"]) for peer in harness.peers},
        )


async def left_behind(harness: Harness, before: Baseline, disturbed: Iterable[HarnessPeer]) -> list[str]:
    """One sentence for everything that should have gone and has not."""
    spoiled = set(disturbed)
    checks: list[Callable[[], Awaitable[list[str]]]] = [
        lambda: _processes(harness, before),
        lambda: _sessions(harness, before, spoiled),
        lambda: _own(harness, before),
    ]
    found: list[str] = []
    ends_at = asyncio.get_running_loop().time() + SETTLE_S
    while True:
        found = [line for check in checks for line in await check()]
        if not found or asyncio.get_running_loop().time() > ends_at:
            return [*found, *_grown(before)]
        await asyncio.sleep(0.2)


async def _processes(harness: Harness, before: Baseline) -> list[str]:
    lines = []
    for peer in harness.everybody:
        for past in peer.past[:-1]:
            lines += [f"{name} of an ended {peer.name} still runs" for name in past.alive()]
            if past.socket_directory.exists():
                lines.append(f"the socket directory of an ended {peer.name} is still there")
    own = psutil.Process().children()
    expected = harness.expected_pids | before.children
    strangers = [child for child in own if child.pid not in expected]
    return lines + [f"process {child.pid} ({child.name()}) of the client still runs" for child in strangers]


async def _sessions(harness: Harness, before: Baseline, disturbed: set[HarnessPeer]) -> list[str]:
    lines = []
    for peer in harness.everybody:
        try:
            metrics = await peer.metrics()
        except OSError as error:
            lines.append(f"{peer.name} does not answer: {error}")
            continue
        if streams := metrics["swarm_session_streams"]:
            lines.append(f"{peer.name} has {streams:.0f} open streams")
        sessions = int(metrics["swarm_sessions"]) - before.sessions.get(peer, 0)
        if sessions > 0 and peer not in disturbed:
            lines.append(f"{peer.name} holds {sessions} sessions")
    return lines


async def _own(harness: Harness, before: Baseline) -> list[str]:
    lines = [f"the client's task {name} still runs" for name in client_tasks()]
    if (files := _files(harness)) > before.files + SPARE_FILES:
        lines.append(f"the client has {files - before.files} more open files than before")
    if (listening := _listening()) != before.listening:
        lines.append(f"the client listens on {listening} ports instead of {before.listening}")
    return lines


def client_tasks() -> list[str]:
    """Tasks of this process that run code of a client or of its node."""
    names = []
    for task in asyncio.all_tasks():
        code = getattr(task.get_coro(), "cr_code", None)
        path = Path(code.co_filename) if code else Path()
        if path.is_relative_to(_SWARM) and path.relative_to(_SWARM).parts[0] in _CLIENT_FOLDERS:
            names.append(f"{path.stem}.{code.co_qualname}" if code else task.get_name())
    return names


def _grown(before: Baseline) -> list[str]:
    grown = {pid: _memory(pid) - size for pid, size in before.memory.items()}
    return [
        f"process {pid} has grown by {size / 2**20:.0f} MiB"
        for pid, size in grown.items()
        if size > MEMORY_SLACK_BYTES
    ]


def _memory(pid: int) -> int:
    try:
        return int(psutil.Process(pid).memory_info().rss)
    except psutil.NoSuchProcess:
        return 0


def _listening() -> int:
    connections = psutil.Process().net_connections(kind="inet")
    return sum(connection.status == psutil.CONN_LISTEN for connection in connections)


def _files(harness: Harness) -> int:
    """Open files of this process, without the two sockets of each connection it emulates."""
    return psutil.Process().num_fds() - 2 * sum(peer.link.connections for peer in harness.everybody)
