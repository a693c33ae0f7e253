"""What the documentation says, held against the program: modules, messages, commands, settings, links."""

import logging
import re
import tomllib
from dataclasses import fields
from pathlib import Path

import msgspec
import pytest
from command_lines import parse, shell_lines, swarm_words
from compose_file import joined_commands, read_compose
from module_tree import BLOCK, PAGE, module_tree

from swarm.cli.lazy import defaults_of
from swarm.cli.main import COMMANDS, OWN_TABLE, build_group
from swarm.cli.units import Service, systemd_unit
from swarm.client.client import ClientOptions
from swarm.client.generation import Request
from swarm.client.reply import Piece, Reply
from swarm.config import load_config_file
from swarm.model.sampling import Sampling
from swarm.network.admission import BLOCKS_PER_BUCKET
from swarm.network.storage import MAX_KEPT_BYTES, MAX_PER_KEY
from swarm.peer.handler import MAX_QUEUED_MESSAGES
from swarm.wire.directory import DIRECTORY_PROTOCOL
from swarm.wire.frames import MAX_HEADER_BYTES
from swarm.wire.messages import MAX_STEP_TOKENS, SESSION_PROTOCOL, WIRE_VERSION, AnyMessage
from swarm.wire.reach import ReachMessage
from swarm.wire.records import MAX_BLOCKS, MAX_SEALED_BYTES, AnyRecord

ROOT = Path(__file__).parent.parent
PAGES = [
    *(
        ROOT / name
        for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md", "bootstrap/README.md")
    ),
    *sorted((ROOT / "docs").glob("*.md")),
]
MESSAGES = AnyMessage.__args__
RECORDS = AnyRecord.__args__


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    """No file of this user is read, and logging is given back as it was."""
    monkeypatch.setenv("SWARM_HOME", str(tmp_path))
    root, own = logging.getLogger(), logging.getLogger("swarm")
    before = (root.handlers[:], root.level, own.level)
    yield tmp_path
    root.handlers[:], root.level = before[0], before[1]
    own.setLevel(before[2])


def name_of(page: Path) -> str:
    return str(page.relative_to(ROOT))


def blocks(page: Path, language: str) -> list[str]:
    """The fenced blocks of a language."""
    return re.findall(rf"^```{language}\n(.*?)^```", page.read_text(), re.DOTALL | re.MULTILINE)


def section(page: Path, heading: str) -> str:
    """What stands between a heading and the next one of any level."""
    found = re.search(
        rf"^#+ {re.escape(heading)}\n(.*?)(?=^#|\Z)", page.read_text(), re.DOTALL | re.MULTILINE
    )
    assert found is not None, f"{name_of(page)} has no heading {heading!r}"
    return found[1]


def in_code(text: str) -> set[str]:
    """Everything that stands in backticks."""
    return set(re.findall(r"`([^`\n]+)`", text))


def field_names(struct: type) -> set[str]:
    return {field.name for field in msgspec.structs.fields(struct)}


def test_the_tree_of_the_architecture_is_that_of_the_code():
    written = BLOCK.search(PAGE.read_text())
    assert written is not None
    assert written[0] == module_tree(), "run: python tests/module_tree.py"


def test_the_tree_has_every_module_and_nothing_else():
    told = re.findall(r"^ +(\w+\.py) +\S", module_tree(), re.MULTILINE)
    there = [path.name for path in (ROOT / "swarm").rglob("*.py") if path.stat().st_size]
    assert sorted(told) == sorted(there)


@pytest.mark.parametrize("message", MESSAGES, ids=lambda message: message.__name__)
def test_the_protocol_tells_every_field_of_the_message(message):
    told = in_code(section(ROOT / "docs/protocol.md", message.__name__))
    assert field_names(message) <= told


@pytest.mark.parametrize("message", ReachMessage.__subclasses__(), ids=lambda message: message.__name__)
def test_the_protocol_tells_the_message_of_reach(message):
    told = in_code(section(ROOT / "docs/protocol.md", "Reach streams"))
    assert {message.__struct_config__.tag} | field_names(message) <= told


def test_the_protocol_tells_no_message_that_there_is_not():
    headings = re.findall(r"^#### (\w+)$", (ROOT / "docs/protocol.md").read_text(), re.MULTILINE)
    assert sorted(headings) == sorted(message.__name__ for message in MESSAGES)


@pytest.mark.parametrize("record", RECORDS, ids=lambda record: record.__name__)
def test_the_protocol_tells_every_field_of_the_record(record):
    text = section(ROOT / "docs/protocol.md", "Records")
    assert f"`{record.__name__}` (type `{record.__struct_config__.tag}`)" in text
    assert field_names(record) <= in_code(text)


@pytest.mark.parametrize(
    "said",
    [
        f"| header | {MAX_HEADER_BYTES // 2**10} KiB |",
        f"| body | what {MAX_STEP_TOKENS} rows of the model take",
        f"| tokens in a step | {MAX_STEP_TOKENS} |",
        f"without reading answers | {MAX_QUEUED_MESSAGES} |",
        f"bucket of {BLOCKS_PER_BUCKET} blocks",
        f"at most {MAX_SEALED_BYTES} bytes",
        f"Protocol name `{SESSION_PROTOCOL}`",
        f"Protocol name `{DIRECTORY_PROTOCOL}`",
        f"at most {MAX_BLOCKS} blocks",
        f"at most {MAX_PER_KEY} records under one key and {MAX_KEPT_BYTES // 2**20} MiB in all",
        f"| wire version, {WIRE_VERSION} |",
    ],
)
def test_the_protocol_tells_the_limits_of_the_code(said):
    assert said in (ROOT / "docs/protocol.md").read_text()


def test_the_client_page_tells_every_option_field_and_argument():
    told = in_code((ROOT / "docs/client.md").read_text())
    code = " ".join(blocks(ROOT / "docs/client.md", "python"))
    names = {field.name for kind in (Reply, Piece, Sampling) for field in fields(kind)}
    names |= {field.name for field in fields(Request)} - {"prompt_ids", "output_ids", "allowed"}
    assert names <= told
    options = {field.name for field in fields(ClientOptions)} - {"open_timeout_s", "on_local"}
    assert {name for name in options if f"{name}=" not in code} == set()


def commands_in(page: Path) -> list[str]:
    lines = [line for block in blocks(page, "sh") for line in shell_lines(block)]
    return [line for line in lines if swarm_words(line)]


COMMANDS_IN_PAGES = [(page, line) for page in PAGES for line in commands_in(page)]


@pytest.mark.parametrize(
    ("page", "line"),
    COMMANDS_IN_PAGES,
    ids=lambda value: name_of(value) if isinstance(value, Path) else value,
)
def test_the_command_line_takes_the_command_of_the_page(page, line, tmp_path):
    joined = tmp_path / "joined.toml"
    joined.write_text("".join(f'[{name}]\njoin = ["JOIN"]\n' for name in joined_commands(read_compose())))
    parse(swarm_words(line), joined if "docker compose" in line else None)


def test_commands_were_found_in_the_pages():
    assert len(COMMANDS_IN_PAGES) > 15


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_settings_of_the_page_are_known_to_the_command_line(page, tmp_path):
    for block in blocks(page, "toml"):
        path = tmp_path / "config.toml"
        path.write_text(block)
        tables = load_config_file(path, [OWN_TABLE, *COMMANDS])
        group = build_group()
        for name, table in tables.items():
            command = group if name == OWN_TABLE else group.get_command(None, name)
            defaults_of(command, table, name)


def test_a_setting_that_there_is_not_would_be_found():
    (command,) = [build_group().get_command(None, "peer")]
    with pytest.raises(Exception, match="no such option"):
        defaults_of(command, tomllib.loads('memroy = "2GiB"'), "peer")


UNITS = [
    (ROOT / "bootstrap/swarm-bootstrap.service").read_text(),
    systemd_unit(Service("swarm-peer", ["python", "-m", "swarm", "peer", "a-model"], {}, drain_s=30.0)),
]


@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: re.search(r"Description=(.*)", unit)[1])
def test_a_unit_lets_the_program_leave_before_its_network_daemon_is_ended(unit):
    settings = unit.splitlines()
    assert "KillMode=mixed" in settings
    assert any(line.startswith("TimeoutStopSec=") for line in settings)


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_links_of_the_page_lead_somewhere(page):
    targets = re.findall(
        r"\]\(([^)\s]+)\)", re.sub(r"^```.*?^```", "", page.read_text(), flags=re.DOTALL | re.MULTILINE)
    )
    broken = []
    for target in targets:
        path, _, anchor = target.partition("#")
        file = (page.parent / path) if path else page
        if "://" in target or (file.exists() and (not anchor or anchor in anchors(file))):
            continue
        broken.append(target)
    assert broken == []


def anchors(page: Path) -> set[str]:
    """GitHub's anchors of a page's headings."""
    headings = re.findall(r"^#+ (.+)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_code_of_the_page_is_python(page):
    for block in blocks(page, "python"):
        compile(block, name_of(page), "exec")
