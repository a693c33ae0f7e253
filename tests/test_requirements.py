"""What is installed is pinned and hashed, and is what pyproject.toml asks for."""

import re
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
SETS = sorted((ROOT / "requirements").glob("*.txt"))
CLIENTS = sorted((ROOT / "requirements" / "clients").glob("*.txt"))


def blocks(name: str) -> list[list[str]]:
    """The lines of each package of a set, without the backslashes at their ends."""
    text = (ROOT / "requirements" / name).read_text().replace(" \\\n", "\n")
    return [block.split("\n") for block in re.split(r"\n(?=\S)", text.strip())[1:]]


def pins(*names: str) -> dict[str, str]:
    found = [Requirement(block[0]) for name in names for block in blocks(name)]
    return {canonicalize_name(each.name): str(each.specifier) for each in found}


@pytest.mark.parametrize("path", SETS + CLIENTS, ids=lambda path: path.name)
def test_every_package_has_one_version_and_the_hashes_of_its_archives(path):
    found = blocks(str(path.relative_to(ROOT / "requirements")))
    assert found
    for first, *hashes in found:
        assert re.fullmatch(r"==[^*,]+", str(Requirement(first).specifier)), first
        assert hashes, first
        assert all(re.fullmatch(r" {4}--hash=sha256:[0-9a-f]{64}", line) for line in hashes), first


@pytest.mark.parametrize("path", SETS + CLIENTS, ids=lambda path: path.name)
def test_no_set_names_where_archives_come_from(path):
    assert "://" not in path.read_text()


@pytest.mark.parametrize(
    ("asked", "names"),
    [
        (PROJECT["dependencies"], ["run.txt", "torch.txt"]),
        (PROJECT["optional-dependencies"]["dev"], ["run.txt", "torch.txt", "dev.txt"]),
        (["hatchling", "editables"], ["build.txt"]),
    ],
    ids=["run", "dev", "build"],
)
def test_every_dependency_is_pinned_to_a_version_that_is_asked_for(asked, names):
    found = pins(*names)
    for requirement in map(Requirement, asked):
        pinned = found[canonicalize_name(requirement.name)].removeprefix("==")
        assert requirement.specifier.contains(pinned), requirement


@pytest.mark.parametrize("path", CLIENTS, ids=lambda path: path.name)
def test_every_client_is_pinned_to_a_version_that_is_asked_for(path):
    found = pins(f"clients/{path.name}")
    for requirement in map(Requirement, path.with_suffix(".in").read_text().split()):
        pinned = found[canonicalize_name(requirement.name)].removeprefix("==")
        assert requirement.specifier.contains(pinned), requirement


def test_both_builds_of_torch_are_of_one_version():
    assert pins("torch-cpu.txt")["torch"] == pins("torch.txt")["torch"] + "+cpu"


def test_a_package_of_two_sets_has_one_version():
    pinned = [pins(path.name).items() for path in SETS if path.name != "torch-cpu.txt"]
    versions = {name: version for items in pinned for name, version in items}
    assert all(versions[name] == version for items in pinned for name, version in items)
