"""How a system that keeps services running is told of one: a systemd unit, or a launchd job. Pure."""

import plistlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

WATCHDOG_S = 60  # a program whose event loop stands still for so long is started anew
STOP_MARGIN_S = 10  # beyond the time that sessions have to move
_HARDENING = (
    "LockPersonality=yes",
    "NoNewPrivileges=yes",
    "RestrictAddressFamilies=AF_INET AF_INET6 AF_UNIX AF_NETLINK",
    "RestrictSUIDSGID=yes",
    "SystemCallArchitectures=native",
    "UMask=0077",
)
_SYSTEM_HARDENING = (
    "DynamicUser=yes",
    "PrivateDevices=yes",
    "PrivateTmp=yes",
    "ProtectClock=yes",
    "ProtectControlGroups=yes",
    "ProtectHome=yes",
    "ProtectKernelModules=yes",
    "ProtectKernelTunables=yes",
    "ProtectSystem=strict",
)


@dataclass(frozen=True, slots=True)
class Service:
    """A swarm command that is to run always. `name` is the unit's, like ``swarm-peer``."""

    name: str
    command: Sequence[str]  # the program and all arguments
    environment: Mapping[str, str]
    drain_s: float  # that it takes to leave properly
    nice: int = 0
    for_system: bool = False  # of the machine, under a user of its own; else of the user that installs it


def systemd_unit(service: Service) -> str:
    """The text of its unit file.

    It is ready when it says so, told apart from one that hangs, and not started again after a mistake in
    its configuration (exit status 2 or 78), which would only repeat itself.
    """
    state = [f"StateDirectory={service.name}", "StateDirectoryMode=0700"] if service.for_system else []
    lines = [
        "[Unit]",
        f"Description={_escaped(' '.join(['swarm', *service.command[3:5]]))}",
        "After=network-online.target time-sync.target",
        "Wants=network-online.target",
        "",
        "[Service]",
        "Type=notify",
        f"ExecStart={' '.join(map(_quoted, service.command))}",
        *(f"Environment={_quoted(f'{key}={value}')}" for key, value in service.environment.items()),
        "Restart=on-failure",
        "RestartSec=5",
        "RestartPreventExitStatus=2 78",
        "# what a model takes to load is nobody's fault",
        "TimeoutStartSec=infinity",
        f"TimeoutStopSec={service.drain_s + STOP_MARGIN_S:.0f}",
        f"WatchdogSec={WATCHDOG_S}",
        "# for swarm alone: the network daemon under it, told at the same time, would cut every session",
        "KillMode=mixed",
        "LimitNOFILE=65536",
        *([f"Nice={service.nice}"] if service.nice else []),
        *state,
        *_HARDENING,
        *(_SYSTEM_HARDENING if service.for_system else ()),
        "",
        "[Install]",
        f"WantedBy={'multi-user' if service.for_system else 'default'}.target",
        "",
    ]
    return "\n".join(lines)


def launchd_job(service: Service, log: Path) -> bytes:
    """Its property list; what it says goes to `log`."""
    return plistlib.dumps(
        {
            "Label": service.name,
            "ProgramArguments": list(service.command),
            "EnvironmentVariables": dict(service.environment),
            "RunAtLoad": True,
            "KeepAlive": {"SuccessfulExit": False},
            "ExitTimeOut": int(service.drain_s + STOP_MARGIN_S),
            "ProcessType": "Background",
            "Nice": service.nice,
            "SoftResourceLimits": {"NumberOfFiles": 10240},
            "StandardOutPath": str(log),
            "StandardErrorPath": str(log),
        }
    )


def _quoted(text: str) -> str:
    """One word of a command line or an assignment, as systemd.syntax(7) wants it."""
    plain = _escaped(text.replace("\\", "\\\\").replace('"', '\\"').replace("$", "$$"))
    return f'"{plain}"'


def _escaped(text: str) -> str:
    """Text in which a percent sign and the end of a line mean themselves."""
    return text.replace("%", "%%").replace("\n", "\\n")
