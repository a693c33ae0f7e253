"""`swarm service`: let the system keep a peer, a gateway or another service running."""

import contextlib
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import click

from swarm.cli.output import note, print_result
from swarm.cli.units import Service, launchd_job, systemd_unit
from swarm.config import HOME_VARIABLE, find_paths, state_dir, swarm_home, user_config_root
from swarm.errors import ConfigurationError, UsageError

SERVICES = ("peer", "bootstrap", "gateway", "status-page")
DEFAULT_DRAIN_S = 10.0
_NICE = {"peer": 10}  # a guest on its machine
_ON_MACOS = sys.platform == "darwin"

_system_option = click.option(
    "--system", "for_system", is_flag=True, help="Of the machine, under a user of its own; needs root."
)
_name_argument = click.argument("name", default="peer")


@click.group("service")
def command() -> None:
    """Let the system keep a peer, a gateway or another service running.

    With systemd on Linux and launchd on macOS: it starts with your session, comes back after a crash or
    when it hangs, and leaves properly when it is stopped.
    """


@command.command(
    "install", context_settings={"ignore_unknown_options": True, "help_option_names": ["--help"]}
)
@_system_option
@click.option("--as", "alias", metavar="NAME", help="A name of its own. [default: the SERVICE]")
@click.option("--print", "only_print", is_flag=True, help="Print what would be installed, and end.")
@click.argument("service", type=click.Choice(SERVICES), metavar="SERVICE")
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
@click.pass_context
def install(
    ctx: click.Context,
    for_system: bool,
    alias: str | None,
    only_print: bool,
    service: str,
    arguments: tuple[str, ...],
) -> None:
    """Install and start a service.

    SERVICE is peer, bootstrap, gateway or status-page; its own arguments come behind it, and the options of
    this command before: swarm service install --as attic peer smollm2-135m --join ADDRESS. An earlier one of
    that name is replaced: it leaves properly and starts with the new arguments.
    """
    wanted = _service(ctx, service, alias or service, arguments, for_system)
    if only_print:
        print_result(_text_of(wanted).decode().rstrip("\n"))
        return
    if not _ON_MACOS:
        _systemctl(for_system, "show-environment")  # before anything is written: does it answer?
    path = _unit_path(wanted.name, for_system)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(_text_of(wanted))
    if _ON_MACOS:
        with contextlib.suppress(ConfigurationError):  # there was none of that name
            _run("launchctl", "bootout", _launchd_target(wanted.name))
        _run("launchctl", "bootstrap", _launchd_domain(), str(path))
    else:
        _systemctl(for_system, "daemon-reload")
        _systemctl(for_system, "enable", wanted.name)
        _systemctl(for_system, "restart", "--no-block", wanted.name)
        if not for_system:
            _linger()
    note(f"{path} is installed and started. See: swarm service status {alias or service}")


@command.command("status")
@_system_option
@_name_argument
def status(for_system: bool, name: str) -> int:
    """Show whether a service runs."""
    if _ON_MACOS:
        return _show("launchctl", "print", _launchd_target(_installed(name, for_system)))
    return _show(*_systemctl_words(for_system), "--no-pager", "status", _installed(name, for_system))


@command.command("logs")
@_system_option
@click.option("--follow", "-f", is_flag=True, help="Go on as it says more.")
@click.option("--lines", type=click.IntRange(1), default=100, help="So many of the last.")
@_name_argument
def logs(for_system: bool, follow: bool, lines: int, name: str) -> int:
    """Show what a service has said."""
    unit = _installed(name, for_system)
    following = ["-f"] if follow else []
    if _ON_MACOS:
        return _show("tail", "-n", str(lines), *following, str(_log_path(unit)))
    which = "--unit" if for_system else "--user-unit"
    return _show("journalctl", "--no-pager", "-n", str(lines), *following, which, unit)


@command.command("restart")
@_system_option
@_name_argument
def restart(for_system: bool, name: str) -> None:
    """Let a service leave and start it again.

    As after an upgrade: its sessions move first, and it keeps its identity.
    """
    unit = _installed(name, for_system)
    if _ON_MACOS:
        _run("launchctl", "kill", "SIGTERM", _launchd_target(unit))
        _run("launchctl", "kickstart", _launchd_target(unit))
    else:
        _systemctl(for_system, "restart", unit)


@command.command("uninstall")
@_system_option
@_name_argument
def uninstall(for_system: bool, name: str) -> None:
    """Let a service leave, and remove it.

    Its identity and its models stay.
    """
    unit = _installed(name, for_system)
    if _ON_MACOS:
        _run("launchctl", "bootout", _launchd_target(unit))
    else:
        _systemctl(for_system, "disable", "--now", unit)
    _unit_path(unit, for_system).unlink()
    if not _ON_MACOS:
        _systemctl(for_system, "daemon-reload")
    note(f"{unit} is gone. Keys are in {find_paths().data_dir}, models in {find_paths().store_root}.")


def _service(
    ctx: click.Context, service: str, name: str, arguments: Sequence[str], for_system: bool
) -> Service:
    """The service with arguments that its command takes. Raises click's errors for others."""
    root = ctx.find_root()
    assert isinstance(root.command, click.Group)  # noqa: S101 - the root is the command line itself
    _, taken, rest = root.command.resolve_command(root, [service, *arguments])
    assert taken is not None  # noqa: S101 - SERVICES are commands
    parsed = taken.make_context(service, rest, parent=root).params
    if for_system and _is_at_home(Path(sys.executable)):
        raise UsageError(
            f"A user of its own cannot read {sys.executable}",
            "Install swarm outside of a home, like /opt/swarm.",
        )
    home = f"/var/lib/swarm-{name}" if for_system else swarm_home()
    return Service(
        name=f"swarm-{name}",
        command=[sys.executable, "-m", "swarm", service, *arguments],
        environment={HOME_VARIABLE: home} if home else {},
        drain_s=float(parsed.get("drain_s") or parsed.get("drain") or DEFAULT_DRAIN_S),
        nice=_NICE.get(service, 0),
        for_system=for_system,
    )


def _text_of(service: Service) -> bytes:
    if _ON_MACOS:
        return launchd_job(service, _log_path(service.name))
    return systemd_unit(service).encode()


def _unit_path(unit: str, for_system: bool) -> Path:
    if _ON_MACOS:
        folder = Path("/Library/LaunchDaemons") if for_system else Path.home() / "Library/LaunchAgents"
        return folder / f"{unit}.plist"
    folder = Path("/etc/systemd/system") if for_system else user_config_root() / "systemd/user"
    return folder / f"{unit}.service"


def _is_at_home(path: Path) -> bool:
    return any(path.is_relative_to(home) for home in ("/home", "/root", "/run/user"))


def _installed(name: str, for_system: bool) -> str:
    """The unit of an installed service. Raises `UsageError`."""
    unit = f"swarm-{name.removeprefix('swarm-')}"
    if not _unit_path(unit, for_system).exists():
        raise UsageError(
            f"There is no service {unit} in {_unit_path(unit, for_system).parent}",
            "Install it with: swarm service install",
        )
    return unit


def _log_path(unit: str) -> Path:
    return state_dir() / "logs" / f"{unit}.log"


def _linger() -> None:
    """Let the service run while its user is not logged in; that is asked for, not needed."""
    try:
        _run("loginctl", "enable-linger")
    except ConfigurationError as error:
        note(f"It stops when you log out: {error.what}. To change that: sudo loginctl enable-linger $USER")


def _systemctl_words(for_system: bool) -> list[str]:
    return ["systemctl"] if for_system else ["systemctl", "--user"]


def _systemctl(for_system: bool, *words: str) -> None:
    _run(*_systemctl_words(for_system), *words)


def _launchd_domain() -> str:
    return f"gui/{os.getuid()}"


def _launchd_target(unit: str) -> str:
    return f"{_launchd_domain()}/{unit}"


def _run(*words: str) -> None:
    """Run a tool of the system. Raises `ConfigurationError` with what it said."""
    done = _call(words, capture=True)
    if done.returncode:
        said = (done.stderr or done.stdout).strip().splitlines() or [f"status {done.returncode}"]
        raise ConfigurationError(
            f"{' '.join(words)} failed: {said[0]}",
            "Where no systemd runs (a container, WSL without it), start the command itself instead.",
        )


def _show(*words: str) -> int:
    """Run a tool of the system whose words are for the person who asked; gives its exit status."""
    return _call(words, capture=False).returncode


def _call(words: Sequence[str], capture: bool) -> "subprocess.CompletedProcess[str]":
    program = shutil.which(words[0])
    if program is None:
        raise ConfigurationError(
            f"This system has no {words[0]}", "Services are kept by systemd, or by launchd on macOS."
        )
    return subprocess.run(  # noqa: S603 - a program of the system, and words of ours
        [program, *words[1:]], capture_output=capture, text=True, check=False
    )
