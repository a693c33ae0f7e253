"""The rules of the tree that a linter of imports cannot hold."""

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import swarm

ROOT = Path(__file__).parent.parent
PURE = [
    "values",
    "plain_text",
    "connections",
    "errors",
    "wire",
    "client/router",
    "session/actions",
    "session/chain",
    "session/events",
    "session/ledger",
    "session/line",
    "session/plan",
    "session/rules",
    "session/spares",
    "peer/scheduler",
    "peer/placement",
    "status/snapshot",
]
PUBLIC = [
    "BlockingClient",
    "Client",
    "ClientOptions",
    "Generation",
    "Piece",
    "Reply",
    "Sampling",
    "SwarmError",
]
IMPURE = {"asyncio", "socket", "time", "random", "datetime", "threading", "secrets"}


def sources(*folders: str) -> list[Path]:
    return sorted(path for folder in folders for path in (ROOT / folder).rglob("*.py"))


def pure_modules() -> list[str]:
    paths = []
    for name in PURE:
        paths += sources(f"swarm/{name}") + [p for p in [ROOT / f"swarm/{name}.py"] if p.exists()]
    return [module_name(path) for path in paths]


def module_name(path: Path) -> str:
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


def path_of(module: str) -> Path | None:
    base = ROOT.joinpath(*module.split("."))
    return next((path for path in (base.with_suffix(".py"), base / "__init__.py") if path.exists()), None)


def executed(nodes: list[ast.stmt]) -> Iterator[ast.AST]:
    """Every node but those below `if TYPE_CHECKING:`."""
    for node in nodes:
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            yield from executed(node.orelse)
        else:
            yield from ast.walk(node)


def imports_of(path: Path) -> set[str]:
    """Absolute names of all modules that a file imports, also inside functions."""
    found: set[str] = set()
    for node in executed(ast.parse(path.read_text()).body):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative imports hide where a module comes from"
            found.add(node.module)
            found.update(f"{node.module}.{alias.name}" for alias in node.names)
    return found


def reachable(module: str) -> dict[str, str]:
    """Everything outside swarm that a module imports, directly or through swarm: name -> by whom."""
    outside: dict[str, str] = {}
    seen: set[str] = set()
    waiting = [module]
    while waiting:
        current = waiting.pop()
        path = path_of(current)
        if current in seen or path is None:
            continue
        seen.add(current)
        for name in imports_of(path):
            if name.split(".")[0] == "swarm":
                waiting.append(name)
            else:
                outside.setdefault(name.split(".")[0], current)
    return outside


@pytest.mark.parametrize("module", pure_modules())
def test_a_pure_module_reaches_no_clock_no_socket_and_no_randomness(module):
    assert {name: by for name, by in reachable(module).items() if name in IMPURE} == {}


def test_the_search_does_find_an_impure_module_behind_another():
    assert reachable("swarm.network.transport")["asyncio"] == "swarm.network.channel"


def test_a_class_name_means_one_thing_in_the_whole_tree():
    named: dict[str, list[str]] = {}
    for path in sources("swarm"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ClassDef):
                named.setdefault(node.name.lstrip("_"), []).append(module_name(path))
    assert {name: modules for name, modules in named.items() if len(modules) > 1} == {}


def test_only_two_files_import_hivemind():
    users = [
        module_name(path)
        for path in sources("swarm")
        if any(n.split(".")[0] == "hivemind" for n in imports_of(path))
    ]
    assert users == ["swarm.network.dht", "swarm.network.node"]


def test_the_public_names_are_exactly_these():
    assert swarm.__all__ == PUBLIC


def test_every_public_name_can_be_imported_and_nothing_else_is_public():
    code = (
        "import inspect, swarm\n"
        "for name in swarm.__all__: getattr(swarm, name)\n"
        "public = {n for n, v in vars(swarm).items() if not n.startswith('_') and not inspect.ismodule(v)}\n"
        "print(sorted(public - set(swarm.__all__) - {'TYPE_CHECKING'}))\n"
    )
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (told.stdout, told.stderr) == ("[]\n", "")


def test_importing_swarm_loads_nothing_heavy():
    code = "import sys, swarm; print(sorted({'torch', 'hivemind', 'aiohttp', 'numpy'} & set(sys.modules)))"
    assert (
        subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
        == "[]\n"
    )


def test_every_module_says_what_it_holds():
    silent = [
        module_name(path)
        for path in sources("swarm")
        if path.stat().st_size and not ast.get_docstring(ast.parse(path.read_text()))
    ]
    assert silent == []


def test_no_file_names_a_path_of_one_machine():
    place = re.compile(r"/(work|root|home/\w+)/")
    named = [
        str(path.relative_to(ROOT))
        for folder in ("swarm", "tests", "scripts", "docs", ".ci", "bootstrap")
        for path in (ROOT / folder).rglob("*")
        if path.is_file() and path.suffix != ".pyc" and place.search(path.read_text(errors="ignore"))
    ]
    assert named == []


def test_the_command_line_reference_is_up_to_date():
    # a process of its own: click keeps the help option of a command as it was first called
    check = [sys.executable, "-m", "swarm.cli.reference", "--check"]
    assert subprocess.run(check, cwd=ROOT, check=False).returncode == 0, "run: python -m swarm.cli.reference"
