"""Faults for real processes: a machine that freezes or dies, and each half of a node dying alone.

A node is the Python process, the guard it starts and the `p2pd` under that (network/daemon). All are
found below the process that was started here; nothing else is ever signalled.
"""

import contextlib
import os
import signal
from dataclasses import dataclass
from pathlib import Path

import psutil

from swarm.errors import SwarmError

_P2PD = "p2pd"


class NodeNotFound(SwarmError):
    """The process has no network daemon to disturb."""

    code = "node_not_found"


@dataclass(frozen=True, slots=True)
class NodeProcesses:
    """The three processes of one node, as they were when looked up."""

    python: psutil.Process
    guard: psutil.Process
    p2pd: psutil.Process
    socket_directory: Path  # gone when the node has been cleaned up

    @classmethod
    def of(cls, pid: int) -> "NodeProcesses":
        """Those of the Python process `pid`. Raises `NodeNotFound`."""
        try:
            python = psutil.Process(pid)
            pairs = [(guard, child) for guard in python.children() for child in guard.children()]
            for guard, child in pairs:
                if child.name() == _P2PD:
                    return cls(python, guard, child, _socket_directory(child))
        except (psutil.NoSuchProcess, StopIteration):
            pass  # it is ending, or has not come up yet
        raise NodeNotFound(f"Process {pid} runs no network daemon", "Wait until its node has started.")

    @classmethod
    def of_this_process(cls) -> "NodeProcesses":
        """Those of a client in this process, not of the peers it started. Raises `NodeNotFound`."""
        return cls.of(os.getpid())

    def freeze(self) -> None:
        """Stop all three, as a machine that goes to sleep does."""
        self._signal(signal.SIGSTOP)

    def thaw(self) -> None:
        """Let them go on."""
        self._signal(signal.SIGCONT)

    def kill_python(self) -> None:
        """SIGKILL the program alone; its guard is there to end p2pd."""
        _send(self.python, signal.SIGKILL)

    def kill_p2pd(self) -> None:
        """SIGKILL the network daemon alone."""
        _send(self.p2pd, signal.SIGKILL)

    def orphan_p2pd(self) -> None:
        """SIGKILL the program while its guard is held still: p2pd stays and answers pings."""
        _send(self.guard, signal.SIGSTOP)
        _send(self.python, signal.SIGKILL)

    def release_guard(self) -> None:
        """Let the guard go on and do its work."""
        _send(self.guard, signal.SIGCONT)

    def alive(self) -> list[str]:
        """Which of the three still run."""
        processes = {"python": self.python, "guard": self.guard, _P2PD: self.p2pd}
        return [name for name, process in processes.items() if _runs(process)]

    def _signal(self, number: signal.Signals) -> None:
        for process in (self.python, self.guard, self.p2pd):
            _send(process, number)


def _socket_directory(p2pd: psutil.Process) -> Path:
    flag = next(part for part in p2pd.cmdline() if part.startswith("-id="))
    return Path(flag.removeprefix("-id=")).parent


def _send(process: psutil.Process, number: signal.Signals) -> None:
    with contextlib.suppress(psutil.NoSuchProcess):
        process.send_signal(number)  # refuses a pid that another process has by now


def _runs(process: psutil.Process) -> bool:
    with contextlib.suppress(psutil.NoSuchProcess):
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    return False
