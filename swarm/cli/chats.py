"""The chats that `swarm chat` keeps: one transcript each, in a directory that only its user can read.

The latest ones only; older ones are removed when a new one begins.
"""

import secrets
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from swarm.errors import UsageError

if TYPE_CHECKING:
    from swarm.client.transcript import Transcript
    from swarm.model.chat_template import Message

LAST = "last"
MAX_KEPT = 100


class Chats:
    """Transcripts by id: ``MODEL-DATE-TIME-RANDOM``."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def new(self, model: str, manifest: str, messages: "Sequence[Message]") -> "Transcript":
        """Begin a transcript, and forget the oldest ones."""
        from swarm.client.transcript import Begin, Transcript

        stamp = time.strftime("%Y%m%d-%H%M%S")
        path = self._directory / f"{_safe(model)}-{stamp}-{secrets.token_hex(2)}.jsonl"
        transcript = Transcript(path)
        transcript.write(Begin(manifest, model, [dict(message) for message in messages], time.time()))
        for old in self._by_age()[MAX_KEPT:]:
            old.unlink(missing_ok=True)
        return transcript

    def reopen(self, path: Path) -> "Transcript":
        """Append to a transcript that was read."""
        from swarm.client.transcript import Transcript

        return Transcript(path)

    def find(self, chat_id: str, model: str) -> Path:
        """The transcript of that id, or with `LAST` the latest of the model. Raises `UsageError`."""
        kept = [path for path in self._by_age() if path.stem.startswith(f"{_safe(model)}-")]
        if chat_id == LAST and kept:
            return kept[0]
        for path in self._by_age():
            if path.stem == chat_id:
                return path
        known = ", ".join(path.stem for path in kept[:5]) or "none"
        raise UsageError(f"No chat {chat_id!r} is kept", f"The latest with {model}: {known}.")

    def _by_age(self) -> list[Path]:
        """The kept transcripts, the latest first."""
        return sorted(self._directory.glob("*.jsonl"), key=lambda path: path.stat().st_mtime, reverse=True)


def _safe(name: str) -> str:
    return name.replace("/", "--")
