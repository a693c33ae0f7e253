"""How many files and sockets this process may have open. The soft limit is low; the hard one may be used."""

import contextlib
import resource

_ENOUGH = 65536
_MACOS_MOST = 10240  # of what the system itself allows; a hard limit may say more


def raise_limit() -> int:
    """Raise the soft limit towards the hard one; gives what holds now. To be called when a program starts."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    for wanted in (_ENOUGH, _MACOS_MOST):
        if hard != resource.RLIM_INFINITY:
            wanted = min(wanted, hard)
        if soft == resource.RLIM_INFINITY or soft >= wanted:
            break
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
            break
    return limit()


def limit() -> int:
    """How many this process may have open now."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return _ENOUGH if soft == resource.RLIM_INFINITY else soft
