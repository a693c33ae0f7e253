"""What `swarm doctor` looks at: each check measures one thing and says ok, warn or fail.

A check never raises for what it finds; it says what is the matter and what to do. Nothing is
changed on the machine. torch is imported only by the check that measures it.
"""

import ctypes
import ctypes.util
import os
import platform
import shutil
import socket
import stat
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from swarm.errors import ConfigurationError
from swarm.values import format_size

Status = Literal["ok", "warn", "fail"]

_MEMORY_FAIL_BYTES = 1 * 2**30  # torch and hivemind alone take 360 MB
_MEMORY_WARN_BYTES = 3 * 2**30
_DISK_FAIL_BYTES = 1 * 2**30  # the default model and its download take 400 MB
_DISK_WARN_BYTES = 5 * 2**30
_SLOW_GFLOPS = 5.0  # a core of a ten-year-old laptop does ten times that
_CLOCK_IN_STEP = range(5)  # what ntp_adjtime(3) answers; 5 is "not synchronised", -1 "may not ask"
_PEER_CLOCK_LIMIT = "Peers whose clocks are more than 3 s apart refuse each other"


@dataclass(frozen=True, slots=True)
class Check:
    """What one check found; `fix` is empty when nothing need be done."""

    name: str
    status: Status
    what: str
    fix: str = ""


def check_python() -> Check:
    """The interpreter and the operating system."""
    interpreter = f"{platform.python_implementation()} {platform.python_version()}"
    what = f"{interpreter} on {platform.system()} {platform.machine()}"
    if sys.platform == "win32":
        return Check("python", "fail", what, "libp2p has no build for Windows: use WSL or Docker.")
    return Check("python", "ok", what)


def check_compute() -> Check:
    """Multiply matrices with torch, with one thread and with all of torch's threads."""
    import torch

    threads = torch.get_num_threads()
    alone, together = _matmul_gflops(1), _matmul_gflops(threads)
    torch.set_num_threads(threads)
    what = f"torch {torch.__version__}: {alone:.0f} GFLOP/s with 1 thread"
    if threads > 1:
        what += f", {together:.0f} with {threads}"
    if threads > 1 and together < alone:
        return Check(
            "compute", "warn", what, "Another program keeps the cores busy: run the peer with --threads 1."
        )
    if max(alone, together) < _SLOW_GFLOPS:
        return Check("compute", "warn", what, "That is slow: host few blocks, and close other programs.")
    return Check("compute", "ok", what)


def check_kernels(folder: Path) -> Check:
    """Which kernels have been measured as the fastest here."""
    from swarm.model.linear.chooser import known_choices

    known = known_choices(folder)
    if not known:
        return Check("kernels", "ok", "none measured yet: the first peer or client of a model does that")
    told = "; ".join(f"{what}: {choice.layout} {choice.kernels[0]}" for what, choice in known.items())
    return Check("kernels", "ok", f"measured as the fastest for one row: {told}")


def check_memory() -> Check:
    """Memory that a peer could take now."""
    from swarm.memory import available_bytes

    free = available_bytes()
    what = f"{format_size(free)} free"
    if free < _MEMORY_FAIL_BYTES:
        return Check("memory", "fail", what, "A peer needs 1 GiB beside its blocks: close other programs.")
    if free < _MEMORY_WARN_BYTES:
        return Check("memory", "warn", what, "That is room for a few blocks: limit the peer with --memory.")
    return Check("memory", "ok", what)


def check_disk(store: Path) -> Check:
    """Space where models are kept."""
    existing = next(path for path in (store, *store.parents) if path.exists())
    free = shutil.disk_usage(existing).free
    what = f"{format_size(free)} free for models in {store}"
    if not os.access(existing, os.W_OK):
        return Check("disk", "fail", f"{existing} is not writable", "Name another directory with SWARM_HOME.")
    if free < _DISK_FAIL_BYTES:
        return Check("disk", "fail", what, "Make room, or name a directory on another disk with SWARM_HOME.")
    if free < _DISK_WARN_BYTES:
        return Check("disk", "warn", what, "That is enough for small models only.")
    return Check("disk", "ok", what)


def check_daemon() -> Check:
    """The libp2p daemon that hivemind brings: present, and a program that this machine can run."""
    from swarm.network.daemon import find_daemon

    try:
        daemon = find_daemon()
    except ConfigurationError as error:
        return Check("libp2p", "fail", error.what, error.fix)
    try:
        subprocess.run([daemon, "-help"], capture_output=True, timeout=20, check=False)  # noqa: S603
    except (OSError, subprocess.TimeoutExpired) as error:
        return Check("libp2p", "fail", f"{daemon} does not run: {error}", "Install hivemind again.")
    return Check("libp2p", "ok", f"{daemon} runs")


def check_port(port: int) -> Check:
    """Whether a peer could listen on a TCP port; 0 is any."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("0.0.0.0", port))  # noqa: S104 - where a peer listens
        except OSError as error:
            fix = "Stop the other program, or name another port."
            return Check("port", "fail", f"TCP port {port} cannot be listened on: {error.strerror}", fix)
    return Check("port", "ok", f"TCP port {port} is free" if port else "TCP ports can be listened on")


def check_clock() -> Check:
    """Whether the system keeps its clock in step with the world's, as far as it knows."""
    what = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime())
    library = ctypes.CDLL(ctypes.util.find_library("c"), use_errno=True)
    ask_only = ctypes.create_string_buffer(1024)  # a struct timex whose modes are 0: nothing is set
    if library.ntp_adjtime(ask_only) in _CLOCK_IN_STEP:
        return Check("clock", "ok", f"{what}, synchronised")
    fix = f"{_PEER_CLOCK_LIMIT}: turn on your system's time synchronisation, or compare with a good clock."
    return Check("clock", "warn", f"{what}, not known to be synchronised", fix)


def check_models(store: Path) -> Check:
    """The models that are cached."""
    folder = store / "models"
    names = sorted(path.parent.relative_to(folder).as_posix() for path in folder.glob("**/config.json"))
    if not names:
        return Check("models", "warn", f"no model in {folder}", "Fetch one: swarm model pull smollm2-135m")
    return Check("models", "ok", f"{', '.join(names)} in {folder}")


def check_identities(folder: Path) -> Check:
    """The files with keys: only their owner may read them."""
    keys = sorted(folder.glob("*.key"))
    if not keys:
        return Check("identity", "ok", f"none in {folder} yet; one is made at the first start")
    for key in keys:
        mode = stat.S_IMODE(key.stat().st_mode)
        if mode & 0o077:
            return Check(
                "identity", "fail", f"{key} can be read by others (mode {mode:o})", f"Run: chmod 600 {key}"
            )
    return Check("identity", "ok", f"{len(keys)} in {folder}, readable by you only")


def _matmul_gflops(threads: int, size: int = 768, rounds: int = 6) -> float:
    """The best of a few rounds, in 1e9 floating point operations a second."""
    import torch

    torch.set_num_threads(threads)
    matrix = torch.ones(size, size)
    best_s = float("inf")
    for _ in range(rounds):
        begun = time.perf_counter()
        torch.mm(matrix, matrix)
        best_s = min(best_s, time.perf_counter() - begun)
    return 2 * size**3 / best_s / 1e9
