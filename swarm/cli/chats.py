"""The chats that `swarm chat` keeps: one transcript each, in a directory that only its user can read.

The latest ones only; older ones are removed when a new one begins.
"""

import contextlib
import re
import secrets
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from swarm.errors import SwarmError, UsageError

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
        path = self._directory / f"{_safe(model)}-{stamp}-{secrets.token_hex(4)}.jsonl"
        transcript = Transcript(path)
        try:
            transcript.write(Begin(manifest, model, [dict(message) for message in messages], time.time()))
        except SwarmError:  # a file that does not begin is no chat
            path.unlink()
            transcript.close()
            raise
        for old in self._by_age()[MAX_KEPT:]:
            old.unlink(missing_ok=True)
        return transcript

    def reopen(self, path: Path) -> "Transcript":
        """Append to a transcript. To be opened before it is read: then nobody else can write to it."""
        from swarm.client.transcript import Transcript

        return Transcript(path)

    def find(self, chat_id: str, model: str) -> Path:
        """The transcript of that id, or with `LAST` the latest of the model. Raises `UsageError`."""
        chat_of_model = re.compile(re.escape(_safe(model)) + r"-\d{8}-\d{6}-[0-9a-f]{4,8}")
        kept = [path for path in self._by_age() if chat_of_model.fullmatch(path.stem)]
        if chat_id == LAST and kept:
            return kept[0]
        for path in self._by_age():
            if path.stem == chat_id:
                return path
        known = ", ".join(path.stem for path in kept[:5]) or "none"
        raise UsageError(f"No chat {chat_id!r} is kept", f"The latest with {model}: {known}.")

    def _by_age(self) -> list[Path]:
        """The kept transcripts, the latest first."""
        aged = []
        for path in self._directory.glob("*.jsonl"):
            with contextlib.suppress(FileNotFoundError):  # another chat has begun and forgotten it just now
                aged.append((path.stat().st_mtime_ns, path))
        return [path for _, path in sorted(aged, reverse=True)]


def _safe(name: str) -> str:
    return name.replace("/", "--")
