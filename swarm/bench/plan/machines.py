"""Machines and links as a person describes them in a file: what they hold, how fast they are, how they meet.

A TOML file with a table `[[machine]]` for each. The client runs on the first, unless another says so.
"""

import tomllib
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from swarm.errors import UsageError
from swarm.values import parse_size

WIRE_RTT_MS, WIRE_MBIT_PER_S = 0.4, 940.0  # gigabit Ethernet
WIFI_RTT_MS, WIFI_MBIT_PER_S = 5.0, 150.0  # of a home
GFLOPS_PER_GB_PER_S = 8.0  # of a processor of which only the memory's speed is told


@dataclass(frozen=True, slots=True)
class Machine:
    """One machine that could host blocks."""

    name: str
    memory_bytes: int  # that it may use
    reads_gb_per_s: float  # how fast weights come out of its memory while it decodes
    gflops: float  # of matrix products, for prompts
    wifi: bool = False
    rtt_ms: float = WIRE_RTT_MS  # to the client
    mbit_per_s: float = WIRE_MBIT_PER_S
    is_client: bool = False
    step_ms: float = 0.0  # of a step besides its weights, measured

    def wired(self) -> "Machine":
        """The same with a cable."""
        return replace(self, wifi=False, rtt_ms=WIRE_RTT_MS, mbit_per_s=WIRE_MBIT_PER_S)


def read_machines(path: Path) -> list[Machine]:
    """Read a machine file. Raises `UsageError`."""
    if not path.is_file():
        raise UsageError(f"There is no file {path.name}", "Give the path of a TOML file of machines.")
    try:
        tables = tomllib.loads(path.read_text())["machine"]
        machines = [_machine(table) for table in tables]
    except (ValueError, KeyError, TypeError) as error:
        raise UsageError(
            f"{path.name} does not describe machines: {error}",
            'Write for each: [[machine]], name = "desk", memory = "24GB", reads_gb_per_s = 40.',
        ) from error
    if not machines:
        raise UsageError(f"{path.name} names no machine", "Write a table [[machine]] for each.")
    if not any(machine.is_client for machine in machines):
        machines[0] = replace(machines[0], is_client=True)
    return machines


def _machine(table: dict[str, Any]) -> Machine:
    wifi = bool(table.get("wifi", False))
    reads = float(table["reads_gb_per_s"])
    machine = Machine(
        name=str(table["name"]),
        memory_bytes=parse_size(str(table["memory"])),
        reads_gb_per_s=reads,
        gflops=float(table.get("gflops", reads * GFLOPS_PER_GB_PER_S)),
        wifi=wifi,
        rtt_ms=float(table.get("rtt_ms", WIFI_RTT_MS if wifi else WIRE_RTT_MS)),
        mbit_per_s=float(table.get("mbit_per_s", WIFI_MBIT_PER_S if wifi else WIRE_MBIT_PER_S)),
        is_client=bool(table.get("client", False)),
    )
    if min(machine.memory_bytes, machine.reads_gb_per_s, machine.gflops, machine.mbit_per_s) <= 0:
        raise ValueError(f"machine {machine.name} has a size or a speed that is not above 0")
    if machine.rtt_ms < 0:
        raise ValueError(f"machine {machine.name} has a round trip below 0")
    return machine
