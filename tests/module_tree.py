"""The tree of modules in docs/architecture.md, made from the first sentence of each module's docstring.

Run as `python tests/module_tree.py` in the repository root to write it anew.
"""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs/architecture.md"
BLOCK = re.compile(r"(?<=<!-- modules -->\n```text\n).*?(?=```)", re.DOTALL)
FLOORS = [
    "cli",
    "gateway",
    "status",
    "bench",
    "testing",
    "peer",
    "client",
    "session",
    "network",
    "model",
    "wire",
    "security",
]


def module_tree() -> str:
    """The text between the marks."""
    top = ROOT / "swarm"
    folders = [path for path in top.iterdir() if any(path.glob("**/*.py"))]
    folders.sort(key=lambda path: (FLOORS.index(path.name) if path.name in FLOORS else -1, path.name))
    lines = ["swarm/", *_modules(top, "  ")]
    for folder in folders:
        lines += _folder(folder, "  ")
    return "\n".join(lines) + "\n"


def _folder(folder: Path, indent: str) -> Iterator[str]:
    below = sorted(path for path in folder.iterdir() if any(path.glob("**/*.py")))
    yield f"{indent}{folder.name}/"
    yield from _modules(folder, indent + "  ")
    for inner in below:
        yield from _folder(inner, indent + "  ")


def _modules(folder: Path, indent: str) -> Iterator[str]:
    modules = sorted(path for path in folder.glob("*.py") if path.stat().st_size)
    width = max((len(path.name) for path in modules), default=0)
    for path in modules:
        yield f"{indent}{path.name:{width}}  {_first_sentence(path)}"


def _first_sentence(path: Path) -> str:
    text = ast.get_docstring(ast.parse(path.read_text())) or ""
    paragraph = text.split("\n\n")[0].replace("\n", " ").replace("``", "`")
    return paragraph.split(". ")[0].removesuffix(".")


if __name__ == "__main__":
    PAGE.write_text(BLOCK.sub(lambda match: module_tree(), PAGE.read_text()))
