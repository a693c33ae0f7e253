"""docker-compose.yml and bootstrap/: there is no Docker engine here, so every part is checked on its own."""

import configparser
import logging
import re
import shlex
import socket
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer

import click
import pytest
from command_lines import parse, shell_lines, swarm_words
from compose_file import CONFIG, HOME, ROOT, joined_commands, read_compose

from swarm.network.addresses import parse_join_address, parse_listen_address
from swarm.testing.processes import even_spans
from swarm.values import Span, parse_span

COMPOSE = read_compose()
NODES = ["bootstrap", *COMPOSE.peers]
LONG_RUNNING = [name for name in COMPOSE.services if name not in ("prepare", "client")]


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    """No file of this user is read, and logging is given back as it was."""
    monkeypatch.setenv("SWARM_HOME", str(tmp_path))
    root, own = logging.getLogger(), logging.getLogger("swarm")
    before = (root.handlers[:], root.level, own.level)
    yield tmp_path
    root.handlers[:], root.level = before[0], before[1]
    own.setLevel(before[2])


@pytest.fixture
def config(tmp_path):
    """A configuration as the service `prepare` writes it."""
    path = tmp_path / "joined.toml"
    path.write_text("".join(f'[{name}]\njoin = ["JOIN"]\n' for name in joined_commands(COMPOSE)))
    return path


def health_check(service: str) -> str:
    """The Python program of a health check."""
    words = COMPOSE.services[service]["healthcheck"]["test"]
    assert words[:3] == ["CMD", "python", "-c"]
    return words[3]


def run_check(program: str) -> int:
    return subprocess.run([sys.executable, "-c", program], capture_output=True, check=False).returncode


def options(name: str, config) -> dict[str, object]:
    uses_config = COMPOSE.services[name].get("environment", {}).get("SWARM_CONFIG") == CONFIG
    return parse(COMPOSE.command(name)[1:], config if uses_config else None).params


def test_the_file_has_no_version_and_these_services():
    assert "version" not in COMPOSE.data
    assert list(COMPOSE.services) == ["prepare", "bootstrap", "peer-a", "peer-b", "peer-c", "client"]


@pytest.mark.parametrize("name", [name for name in COMPOSE.services if name != "prepare"])
def test_the_real_command_line_takes_the_command_of(name, config):
    assert COMPOSE.command(name)[0] == "swarm"
    options(name, config)


def test_the_real_command_line_takes_what_the_script_of_prepare_runs():
    script = COMPOSE.prepare_script.replace("$(", "").replace("key)", "key")
    lines = [words for line in shell_lines(script) if (words := swarm_words(line.removeprefix("peer_id=")))]
    assert [words[:2] for words in lines] == [["model", "pull"], ["key", "new"], ["key", "show"]]
    for words in lines:
        parse(words)


def test_the_command_line_refuses_a_command_with_a_wrong_option(config):
    with pytest.raises(click.UsageError, match="No such option"):
        parse([*COMPOSE.command("peer-a")[1:], "--block", "0:10"], config)


def test_the_peers_hold_the_whole_model_between_them(config):
    spans = [parse_span(str(options(name, config)["blocks"])) for name in COMPOSE.peers]
    assert sorted(spans) == even_spans(30, 3) == [Span(0, 10), Span(10, 20), Span(20, 30)]


def test_everybody_joins_through_the_name_and_port_that_bootstrap_listens_on(config):
    written = re.search(r'join = \["(/dns4/\S+/p2p/)%s', COMPOSE.prepare_script)
    assert written is not None
    some_id = "12D3KooWDw95ckGgv1VMVh2UdRxvsUpwPp8E1JB8Dq1GhzNqTSFR"
    assert parse_join_address(written[1] + some_id).route == "/dns4/bootstrap/tcp/31337"
    (listen,) = options("bootstrap", config)["listen"]
    assert parse_listen_address(listen).port == 31337


@pytest.mark.parametrize("name", COMPOSE.services)
def test_no_container_is_root_or_can_become_it(name):
    service = COMPOSE.services[name]
    user = re.search(r"^USER (\S+)$", (ROOT / "bootstrap/Dockerfile").read_text(), re.MULTILINE)
    assert user is not None
    assert service["user"] == user[1]
    assert not user[1].startswith("0")
    assert service["cap_drop"] == ["ALL"]
    assert service["security_opt"] == ["no-new-privileges:true"]


def test_published_ports_are_on_loopback_only():
    ports = [port for service in COMPOSE.services.values() for port in service.get("ports", [])]
    assert ports == ["127.0.0.1:31337:31337"]


@pytest.mark.parametrize("name", LONG_RUNNING)
def test_a_long_running_service_has_a_health_check(name):
    compile(health_check(name), name, "exec")


@pytest.mark.parametrize("name", COMPOSE.peers)
def test_a_peer_waits_for_the_bootstrap_node_to_be_healthy(name):
    waits = COMPOSE.services[name]["depends_on"]
    assert waits["bootstrap"] == {"condition": "service_healthy"}
    assert waits["prepare"] == {"condition": "service_completed_successfully"}


def test_the_client_waits_for_every_peer_to_be_healthy():
    waits = COMPOSE.services["client"]["depends_on"]
    assert waits == {name: {"condition": "service_healthy"} for name in COMPOSE.peers}


@pytest.mark.parametrize("name", COMPOSE.peers)
def test_a_peer_may_drain_before_it_is_killed(name, config):
    grace_s = float(COMPOSE.services[name]["stop_grace_period"].removesuffix("s"))
    assert grace_s > float(str(options(name, config)["drain_s"]))


@pytest.mark.parametrize("name", COMPOSE.peers)
def test_the_health_check_of_a_peer_asks_the_port_of_its_monitor(name, config):
    assert f"http://127.0.0.1:{options(name, config)['monitor']}/readyz" in health_check(name)


@pytest.mark.parametrize(("status", "code"), [(200, 0), (503, 1)])
def test_the_health_check_of_a_peer_fails_while_it_is_not_ready(status, code):
    class Answer(BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(status if self.path == "/readyz" else 404)
            self.end_headers()

        def log_message(self, *arguments):
            pass

    with HTTPServer(("127.0.0.1", 0), Answer) as server:
        threading.Thread(target=server.handle_request, daemon=True).start()
        program = health_check("peer-a").replace("8081", str(server.server_port))
        assert run_check(program) == code


@pytest.mark.parametrize(
    ("greeting", "code"), [(b"\x13/multistream/1.0.0\n", 0), (b"220 mail\r\n", 1), (b"", 1)]
)
def test_the_health_check_of_bootstrap_wants_libp2p_on_the_port(greeting, code):
    def answer() -> None:
        connection, _ = listener.accept()
        with connection:
            connection.sendall(greeting)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        threading.Thread(target=answer, daemon=True).start()
        program = health_check("bootstrap").replace("31337", str(listener.getsockname()[1]))
        assert run_check(program) == code


def test_every_volume_is_a_place_that_the_image_gives_to_its_user():
    owned = re.findall(rf"{HOME}/\w+", (ROOT / "bootstrap/Dockerfile").read_text())
    mounted = [volume.split(":") for service in COMPOSE.services.values() for volume in service["volumes"]]
    assert {parts[0] for parts in mounted} == set(COMPOSE.data["volumes"])
    assert {parts[1] for parts in mounted} <= set(owned)


def test_only_the_bootstrap_node_holds_its_key():
    with_keys = [
        name
        for name, service in COMPOSE.services.items()
        if any(volume.startswith("identities:") for volume in service["volumes"])
    ]
    assert with_keys == ["prepare", "bootstrap"]


def test_everything_that_the_image_is_built_from_is_sent_to_the_builder():
    dockerfile = (ROOT / "bootstrap/Dockerfile").read_text()
    sent = {
        line[1:]
        for line in (ROOT / "bootstrap/Dockerfile.dockerignore").read_text().split()
        if line[0] == "!"
    }
    copied = {
        word for line in re.findall(r"^COPY (.+) \S+$", dockerfile, re.MULTILINE) for word in line.split()
    }
    assert copied == sent
    assert all((ROOT / name).exists() for name in copied)


def test_the_service_unit_runs_what_the_command_line_takes_with_the_example_configuration():
    unit = configparser.ConfigParser(interpolation=None, strict=False)
    unit.optionxform = str
    unit.read(ROOT / "bootstrap/swarm-bootstrap.service")
    words = shlex.split(unit["Service"]["ExecStart"])
    assert words[1:3] == ["--config", "/etc/swarm/bootstrap.toml"]
    params = parse(words[3:], ROOT / "bootstrap/config.example.toml").params
    assert [str(parse_listen_address(address)) for address in params["listen"]] == ["/ip4/0.0.0.0/tcp/31337"]


def test_what_is_commented_out_in_the_example_configuration_is_right_too(tmp_path):
    text = (ROOT / "bootstrap/config.example.toml").read_text()
    path = tmp_path / "all.toml"
    path.write_text(re.sub(r"^# (?=\w+ = )", "", text, flags=re.MULTILINE))
    params = parse(["bootstrap"], path).params
    assert {name for name in ("announce", "identity_path", "join") if params[name]} == {
        "announce",
        "identity_path",
        "join",
    }
