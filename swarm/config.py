"""Where this user's files are, and the configuration file.

The only reader of the environment beside click, which reads `SWARM_*` for the options. Values take
effect in the order defaults < file < environment < flags. Knows no command: the command line says
which tables and keys there may be.
"""

import difflib
import os
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

import platformdirs

from swarm.errors import ConfigurationError

DISTRIBUTION = "swarm-inference"
HOME_VARIABLE = "SWARM_HOME"

Table = dict[str, Any]  # one table of the TOML file: key -> value or table


@dataclass(frozen=True, slots=True)
class Paths:
    """The directories of one user. None of them need exist."""

    config_dir: Path
    data_dir: Path  # keys: to be kept, and to be kept secret
    state_dir: Path  # lists of known peers, histories: better kept
    store_root: Path  # models: can be fetched again

    @property
    def config_file(self) -> Path:
        return self.config_dir / "config.toml"

    def identity_file(self, role: str) -> Path:
        """The key of one program of this user, for example of ``peer`` or ``bootstrap``."""
        return self.data_dir / "identities" / f"{role}.key"


def find_paths(environment: Mapping[str, str] = os.environ) -> Paths:
    """The XDG directories (or what the system has instead), or all under `SWARM_HOME` when set."""
    home = environment.get(HOME_VARIABLE, "")
    if home:
        root = Path(home).expanduser().absolute()
        return Paths(root, root, root / "state", root / "cache")
    return Paths(
        Path(platformdirs.user_config_dir("swarm", appauthor=False)),
        Path(platformdirs.user_data_dir("swarm", appauthor=False)),
        Path(platformdirs.user_state_dir("swarm", appauthor=False)),
        Path(platformdirs.user_cache_dir("swarm", appauthor=False)),
    )


def store_root() -> Path:
    """The directory that holds the cached models."""
    return find_paths().store_root


def config_file() -> Path:
    """The configuration file that is read when none is named."""
    return find_paths().config_file


def identity_file(role: str) -> Path:
    """The identity of one program of this user, for example of ``peer`` or ``bootstrap``."""
    return find_paths().identity_file(role)


def state_dir() -> Path:
    """The directory for what is better kept between two runs."""
    return find_paths().state_dir


def known_peers_folder() -> Path:
    """The directory for what the clients of this user know of the nodes of each swarm."""
    return state_dir() / "peers"


def swarm_home() -> str | None:
    """The one directory for all files of swarm, where the environment names one."""
    return os.environ.get(HOME_VARIABLE) or None


def user_config_root() -> Path:
    """Where programs of this user, not of swarm alone, have their configuration."""
    return Path(platformdirs.user_config_dir())


def notify_socket() -> str | None:
    """Where the supervisor that started this program wants to be told how it is, if it does (sd_notify)."""
    return os.environ.get("NOTIFY_SOCKET")


def watchdog_s() -> float | None:
    """Within how many seconds the supervisor wants a sign of life, again and again; None for never."""
    limit, process = os.environ.get("WATCHDOG_USEC", ""), os.environ.get("WATCHDOG_PID")
    is_meant = process in (None, str(os.getpid()))  # and not a program that this one was started by
    return int(limit) / 1e6 if limit.isdigit() and is_meant else None


def software_version() -> str:
    """The installed version, or ``"unknown"`` in a checkout that was never installed."""
    try:
        return metadata.version(DISTRIBUTION)
    except metadata.PackageNotFoundError:
        return "unknown"


def load_config_file(path: Path, tables: Iterable[str]) -> dict[str, Table]:
    """Read a TOML file with one table for each command, of the names in `tables`.

    Raises `ConfigurationError` when the file cannot be read, is not TOML, or has anything at its
    top but those tables.
    """
    parsed = _read_toml(path)
    check_names(parsed, tables, f"{path}: [{{}}] is no command of swarm")
    for name, value in parsed.items():
        if not isinstance(value, dict):
            raise ConfigurationError(
                f"{path}: {name} is not a table", f"Write [{name}] and its options below it."
            )
    return parsed


def check_names(found: Iterable[str], known: Iterable[str], what: str) -> None:
    """Refuse the first name that is not known, with the nearest one. `what` has a ``{}`` for it."""
    known = list(known)
    for name in found:
        if name not in known:
            raise ConfigurationError(what.format(name), did_you_mean(name, known))


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """A sentence with the known name nearest to a wrong one, or with all of them."""
    known = list(known)
    near = difflib.get_close_matches(name, known, n=1)
    return f"Did you mean {near[0]!r}?" if near else f"Known are: {', '.join(known)}."


def _read_toml(path: Path) -> Table:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        reason = error.strerror or str(error)
        raise ConfigurationError(
            f"{path} cannot be read: {reason}", "Name a readable file with --config."
        ) from error
    except ValueError as error:  # TOMLDecodeError and UnicodeDecodeError both are
        raise ConfigurationError(f"{path} is not TOML: {error}", "Correct the file at that place.") from error
