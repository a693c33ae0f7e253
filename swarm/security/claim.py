"""Which identity file a node uses: each is held by one process at a time.

Two nodes with one key would answer for each other. So the file is locked while a node runs, and
released by the system however the node ends; a restarted node finds its own key free again.
"""

import fcntl
import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from swarm.errors import ConfigurationError
from swarm.security.identity import Identity, load_or_create_identity

MAX_NODES_PER_ROLE = 64


@dataclass(frozen=True, slots=True)
class Claim:
    """An identity, and the file it is kept in."""

    identity: Identity
    path: Path


@contextmanager
def claim_identity(asked: Path | None, default: Path) -> Iterator[Claim]:
    """Hold the identity of a file while the block runs.

    Without a file asked for, it is the first free one of `default` and its numbered neighbours
    (``peer.key``, ``peer-2.key``, ...), so that several nodes of one user each have their own.
    Raises `ConfigurationError` when the file asked for is held by a running node.
    """
    with ExitStack() as stack:
        path = _hold(asked, stack) if asked else _hold_first_free(default, stack)
        yield Claim(load_or_create_identity(path), path)


def _hold(path: Path, stack: ExitStack) -> Path:
    if not _try_lock(path, stack):
        raise ConfigurationError(
            f"The identity {path} is used by a node that runs",
            "Stop that node, or name another file with --identity.",
        )
    return path


def _hold_first_free(default: Path, stack: ExitStack) -> Path:
    numbered = (default.with_stem(f"{default.stem}-{number}") for number in range(2, MAX_NODES_PER_ROLE + 1))
    for path in (default, *numbered):
        if _try_lock(path, stack):
            return path
    raise ConfigurationError(
        f"{MAX_NODES_PER_ROLE} nodes of this user run already", "Stop some, or name a file with --identity."
    )


def _try_lock(path: Path, stack: ExitStack) -> bool:
    """Lock a neighbour of the key: the key itself is replaced when it is written."""
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    handle = os.open(path.with_suffix(".lock"), os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(handle)
        return False
    stack.callback(os.close, handle)
    return True
