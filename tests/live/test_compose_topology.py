"""The topology of docker-compose.yml as processes: its own commands and health checks, on 127.0.0.1."""

import os
import signal
import socket
import subprocess
import sys
import time
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from compose_file import CONFIG, HOME, Compose, read_compose

from swarm.config import store_root

pytestmark = [pytest.mark.live, pytest.mark.model, pytest.mark.timeout(300)]

HEALTHY_WITHIN_S = 120.0
PORT, MONITOR = "31337", "8081"  # in the file; every container has its own


def free_port() -> str:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return str(listener.getsockname()[1])


@dataclass
class Containers:
    """Each service is a process with a home of its own; what is a volume in the file is shared."""

    compose: Compose
    root: Path
    environment: dict[str, str]
    bootstrap_port: str = field(default_factory=free_port)
    _monitors: dict[str, str] = field(default_factory=dict)

    def home(self, service: str) -> Path:
        home = self.root / ("node" if service in ("prepare", "bootstrap") else service)
        if not home.exists():
            home.mkdir()
            (home / "cache").symlink_to(store_root())
            (self.root / "shared").mkdir(exist_ok=True)
            (home / "shared").symlink_to(self.root / "shared")
            (home / "identities").mkdir()
        return home

    def variables(self, service: str) -> dict[str, str]:
        asked = self.compose.services[service].get("environment", {})
        assert set(asked.values()) <= {CONFIG}
        config = {name: str(self.root / "shared/config.toml") for name in asked}
        path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
        return {
            **os.environ,
            **self.environment,
            "SWARM_HOME": str(self.home(service)),
            "PATH": path,
            **config,
        }

    def start(self, service: str) -> "subprocess.Popen[str]":
        here = {f"0.0.0.0:{PORT}": f"127.0.0.1:{self.bootstrap_port if service == 'bootstrap' else 0}"}
        here |= {MONITOR: self._monitors.setdefault(service, free_port())}
        words = [
            here.get(word, word).replace(f"{HOME}/", f"{self.home(service)}/")
            for word in self.compose.command(service)
        ]
        return subprocess.Popen(
            words,
            env=self.variables(service),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def run(self, service: str) -> str:
        """Run a service that ends; gives what it printed."""
        with self.start(service) as process:
            out, err = process.communicate()
        assert process.returncode == 0, err
        return out

    def move_to_loopback(self) -> None:
        """Where the containers' network resolves a name, here is the address."""
        config = self.root / "shared/config.toml"
        text = config.read_text()
        assert f"/dns4/bootstrap/tcp/{PORT}/" in text
        config.write_text(
            text.replace(f"/dns4/bootstrap/tcp/{PORT}/", f"/ip4/127.0.0.1/tcp/{self.bootstrap_port}/")
        )

    def wait_healthy(self, service: str, process: "subprocess.Popen[str]") -> None:
        """Run the service's own health check until it succeeds."""
        program = self.compose.services[service]["healthcheck"]["test"][-1]
        program = program.replace(PORT, self.bootstrap_port).replace(MONITOR, self._monitors[service])
        deadline = time.monotonic() + HEALTHY_WITHIN_S
        while (
            subprocess.run([sys.executable, "-c", program], capture_output=True, check=False).returncode != 0
        ):
            assert process.poll() is None, f"{service} ended: {process.communicate()}"
            assert time.monotonic() < deadline, f"{service} did not become healthy"
            time.sleep(0.5)


@pytest.fixture
def containers(smollm2, tmp_path, mark) -> Containers:
    return Containers(read_compose(), tmp_path, mark.environment)


def test_the_client_of_the_compose_file_gets_its_answer_and_every_node_leaves_at_sigterm(containers):
    containers.run("prepare")
    containers.move_to_loopback()
    with ExitStack() as stack:
        nodes: dict[str, subprocess.Popen[str]] = {}

        def start(service: str) -> None:
            nodes[service] = stack.enter_context(containers.start(service))
            stack.callback(nodes[service].kill)

        start("bootstrap")
        containers.wait_healthy("bootstrap", nodes["bootstrap"])
        for peer in containers.compose.peers:
            start(peer)
        for peer in containers.compose.peers:
            containers.wait_healthy(peer, nodes[peer])

        assert containers.run("client") == "The capital of France is Paris.\n"

        for process in reversed(nodes.values()):
            process.send_signal(signal.SIGTERM)
        endings = {name: process.communicate(timeout=40) for name, process in nodes.items()}
        assert {name: process.returncode for name, process in nodes.items()} == dict.fromkeys(nodes, 0), (
            endings
        )
