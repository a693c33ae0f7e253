"""Which kept chat `--resume` means."""

import os
from pathlib import Path

import pytest

from swarm.cli.chats import LAST, MAX_KEPT, Chats
from swarm.errors import ConfigurationError, UsageError

MANIFEST = "0" * 64


@pytest.fixture
def chats(tmp_path) -> Chats:
    return Chats(tmp_path)


def begun(chats: Chats, model: str, age_s: float = 0.0) -> Path:
    """A chat of that model that was written to so long ago."""
    transcript = chats.new(model, MANIFEST, [])
    transcript.close()
    written_at = transcript.path.stat().st_mtime - age_s
    os.utime(transcript.path, (written_at, written_at))
    return transcript.path


def test_the_last_chat_is_the_latest_of_that_very_model(chats):
    begun(chats, "smollm2-135m", age_s=20)
    own = begun(chats, "smollm2-135m", age_s=10)
    begun(chats, "smollm2-135m-instruct")
    begun(chats, "smollm2-135m-20260101-120000-abcd")
    assert chats.find(LAST, "smollm2-135m") == own


def test_the_name_of_a_model_is_no_pattern(chats):
    begun(chats, "tinyX5")
    with pytest.raises(UsageError, match=r"No chat 'last' is kept. The latest with tiny\.5: none\."):
        chats.find(LAST, "tiny.5")


def test_a_model_of_the_hub_has_its_last_chat_too(chats):
    own = begun(chats, "ORG/NAME")
    assert chats.find(LAST, "ORG/NAME") == own


def test_any_chat_is_found_by_its_id_and_an_unknown_one_is_answered_with_those_there_are(chats):
    own, other = begun(chats, "tiny"), begun(chats, "other")
    assert chats.find(other.stem, "tiny") == other
    with pytest.raises(UsageError, match=f"No chat 'tiny-1' is kept. The latest with tiny: {own.stem}"):
        chats.find("tiny-1", "tiny")


def test_a_chat_that_vanishes_while_they_are_listed_is_no_error(chats, tmp_path):
    own = begun(chats, "tiny")
    gone = tmp_path / "tiny-20260101-120000-abcd.jsonl"
    gone.symlink_to(tmp_path / "nothing")  # listed, but not there
    assert chats.find(LAST, "tiny") == own


def test_the_oldest_chats_are_forgotten(chats, tmp_path):
    oldest = begun(chats, "tiny", age_s=100)
    for _ in range(MAX_KEPT):
        begun(chats, "tiny", age_s=10)
    assert len(list(tmp_path.iterdir())) == MAX_KEPT
    assert not oldest.exists()


def test_a_chat_that_could_not_begin_leaves_no_file(chats, tmp_path, monkeypatch):
    def refuse(file: int, data: bytes) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "write", refuse)
    with pytest.raises(ConfigurationError, match="No space left on device"):
        chats.new("tiny", MANIFEST, [])
    assert list(tmp_path.iterdir()) == []
