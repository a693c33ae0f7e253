"""A manifest is a value with one identity, whatever the order or writing of its JSON."""

import json

import pytest

from swarm.errors import BrokenModel
from swarm.security.manifest import (
    MANIFEST_FILE,
    Difference,
    Manifest,
    differences,
    load_manifest,
    parse_manifest,
    save_manifest,
)

A, B, C = "a" * 64, "b" * 64, "c" * 64
MANIFEST = Manifest(config=A, tokenizer={"tokenizer.json": B}, tensors={"x": A, "y": C})


def test_the_digest_is_pinned():
    assert MANIFEST.digest == "e0626620078c55dc926210dc2baee4195d2498a07fdfcff62d53f3c6a160f03a"


def test_the_digest_does_not_depend_on_order():
    assert Manifest(A, {"tokenizer.json": B}, {"y": C, "x": A}).digest == MANIFEST.digest


@pytest.mark.parametrize(
    "other",
    [
        Manifest(B, MANIFEST.tokenizer, MANIFEST.tensors),
        Manifest(A, {"tokenizer.json": C}, MANIFEST.tensors),
        Manifest(A, {}, MANIFEST.tensors),
        Manifest(A, MANIFEST.tokenizer, {"x": A}),
        Manifest(A, MANIFEST.tokenizer, {"x": A, "z": C}),
    ],
)
def test_any_change_of_a_part_changes_the_digest(other):
    assert other.digest != MANIFEST.digest


def test_a_manifest_survives_json():
    assert parse_manifest(MANIFEST.to_json()) == MANIFEST


def test_a_saved_manifest_is_found_again_and_leaves_nothing_else(tmp_path):
    assert load_manifest(tmp_path) is None
    save_manifest(tmp_path, MANIFEST)
    assert load_manifest(tmp_path) == MANIFEST
    assert [path.name for path in tmp_path.iterdir()] == [MANIFEST_FILE]


def edited(**changes: object) -> str:
    return json.dumps(json.loads(MANIFEST.to_json()) | changes)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("{", "is not JSON"),
        ("[]", "not a manifest of format 1"),
        (edited(format=2), "not a manifest of format 1"),
        (edited(config=None), "not a SHA-256 digest"),
        (edited(tokenizer=[]), "not a SHA-256 digest"),
        (edited(tensors={"x": "A" * 64}), "not a SHA-256 digest"),
        (edited(tensors={"x": A}), "not that of its content"),
        (edited(digest=A), "not that of its content"),
    ],
)
def test_a_damaged_manifest_is_refused_with_what_to_do(tmp_path, text, problem):
    (tmp_path / MANIFEST_FILE).write_text(text)
    with pytest.raises(BrokenModel, match=f"{MANIFEST_FILE} .*{problem}.*swarm model manifest"):
        load_manifest(tmp_path)


def test_differences_name_each_part_with_both_digests():
    other = Manifest(B, {"tokenizer.json": B}, {"x": A, "z": C})
    assert differences(MANIFEST, other) == [
        Difference("config", A, B),
        Difference("y", C, None),
        Difference("z", None, C),
    ]
    assert differences(MANIFEST, MANIFEST) == []
