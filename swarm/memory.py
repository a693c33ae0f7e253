"""How much memory this process may still take, and what is said when that is not enough.

The least of what the machine has free, what a container (cgroup) leaves, and what the limits of the process
(ulimit) leave. Swap does not count: a model that is swapped out is no model. psutil is imported when it is
asked, so that a program can still say what it is short of when nothing more can be loaded.
"""

import contextlib
import resource
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from swarm.errors import DoesNotFit
from swarm.values import format_size

_CGROUPS = Path("/sys/fs/cgroup")
_OWN_CGROUPS = Path("/proc/self/cgroup")
_SIGNS = (  # of torch, oneDNN, threads, and the loader of shared libraries
    "allocate memory",
    "out of memory",
    "bad_alloc",
    "could not create a memory",
    "can't start new thread",
    "failed to map segment",
)


def available_bytes(cgroups: Path = _CGROUPS, own_cgroups: Path = _OWN_CGROUPS) -> int:
    """How many bytes this process could take now."""
    import psutil

    rooms = [psutil.virtual_memory().available, *_cgroup_rooms(cgroups, own_cgroups), *_limit_rooms()]
    return max(0, min(rooms))


@contextmanager
def room_for(what: str, needed_bytes: int, fix: Callable[[int], str]) -> Iterator[None]:
    """Load something that takes so many bytes. `fix` says what to do, given the bytes that there are.

    Raises `DoesNotFit`, before anything is loaded where that can be foreseen, else when there is no more.
    """
    free_bytes = available_bytes()
    needed = f"{what} need {format_size(needed_bytes)} of memory"
    if needed_bytes > free_bytes:
        raise DoesNotFit(f"{needed}, and {format_size(free_bytes)} are free", fix(free_bytes))
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        if not is_shortage(error):
            raise
        raise DoesNotFit(
            f"{needed} and somewhat more while they are loaded; "
            f"{format_size(free_bytes)} were free, and that was not enough",
            fix(min(free_bytes, needed_bytes - 1)),
        ) from error


def is_shortage(error: BaseException) -> bool:
    """Whether an error says that there is no memory left: `MemoryError`, or one of others in these words."""
    return isinstance(error, MemoryError) or any(sign in str(error) for sign in _SIGNS)


def _limit_rooms() -> Iterator[int]:
    import psutil

    used = psutil.Process().memory_info()
    for kind, used_bytes in (
        (resource.RLIMIT_AS, used.vms),
        (resource.RLIMIT_DATA, getattr(used, "data", 0)),
    ):
        limit, _ = resource.getrlimit(kind)
        if limit != resource.RLIM_INFINITY:
            yield limit - used_bytes


def _cgroup_rooms(root: Path, own: Path) -> Iterator[int]:
    """What each cgroup that we are in leaves; none where there are no cgroups."""
    with contextlib.suppress(OSError):
        for line in own.read_text(encoding="utf-8").splitlines():
            _, controllers, path = line.split(":", 2)
            if controllers == "":
                yield from _rooms_above(root, path, ("memory.max", "memory.current", "inactive_file"))
            elif "memory" in controllers.split(","):
                names = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
                yield from _rooms_above(root / "memory", path, names)


def _rooms_above(root: Path, path: str, names: tuple[str, str, str]) -> Iterator[int]:
    """What a cgroup and those that it is in leave. In a container our own may be shown as the root."""
    limit_name, used_name, cache_name = names
    here = root / path.strip("/")
    for directory in (here, *here.parents):
        if not directory.is_relative_to(root):
            return
        with contextlib.suppress(OSError, ValueError):  # no such file, or "max"
            limit_bytes = int((directory / limit_name).read_text(encoding="utf-8"))
            used_bytes = int((directory / used_name).read_text(encoding="utf-8"))
            stat = dict(line.split() for line in (directory / "memory.stat").read_text("utf-8").splitlines())
            yield limit_bytes - used_bytes + int(stat.get(cache_name, 0))  # the cache is given up for us
