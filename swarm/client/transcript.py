"""A conversation on disk, token by token, so that nothing that was shown is ever lost.

A file of JSON lines, only ever appended to: a crash can at most tear the last line, and a torn line
is passed over when the file is read. Every line is with the operating system before the token is
shown, and on the disk within a second.
"""

import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from swarm.client.chat import ConversationState, UnfinishedReply
from swarm.client.recovery import SessionState
from swarm.errors import BrokenTranscript

SYNC_EVERY_S = 1.0


class Begin(msgspec.Struct, tag_field="type", tag="begin", frozen=True):
    """The first line: which model, and what stands before the first turn."""

    manifest: str
    model: str
    messages: list[dict[str, Any]]
    created_at: float


class Turn(msgspec.Struct, tag_field="type", tag="turn", frozen=True):
    """A reply begins; `output_ids` of it are empty."""

    asked: UnfinishedReply


class Token(msgspec.Struct, tag_field="type", tag="token", frozen=True):
    """One token of the reply, and the text that came with it."""

    id: int
    text: str


class Place(msgspec.Struct, tag_field="type", tag="place", frozen=True):
    """The session stands on these peers now."""

    session: SessionState


class End(msgspec.Struct, tag_field="type", tag="end", frozen=True):
    """The reply ended; it is part of the conversation only when `complete`."""

    complete: bool


Line = Begin | Turn | Token | Place | End

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(Line).decode


class Transcript:
    """Appends to one file. Not for two writers."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        self.path = path
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        self._synced_at = 0.0
        self._place: SessionState | None = None
        if os.lseek(self._file, 0, os.SEEK_END):
            os.write(self._file, b"\n")  # end a line that a crash may have torn

    def write(self, line: Line) -> None:
        """Append one line."""
        os.write(self._file, _encode(line) + b"\n")
        if isinstance(line, End) or time.monotonic() - self._synced_at > SYNC_EVERY_S:
            os.fsync(self._file)
            self._synced_at = time.monotonic()

    def place(self, session: SessionState | None) -> None:
        """Note where the session stands, when that has changed."""
        if session is not None and session != self._place:
            self._place = session
            self.write(Place(session))

    def close(self) -> None:
        """Put the rest on the disk."""
        os.fsync(self._file)
        os.close(self._file)


def read_transcript(path: Path) -> ConversationState:
    """The conversation in a file, up to the last whole line. Raises `BrokenTranscript`."""
    lines = iter(_lines(path))
    first = next(lines, None)
    if not isinstance(first, Begin):
        raise BrokenTranscript(
            f"{path} is not a chat that was kept", "Start a new chat, or name another one with --resume."
        )
    messages, turn, tokens, place, ids = list(first.messages), None, list[Token](), None, tuple[int, ...]()
    for line in lines:
        if isinstance(line, Turn):
            turn, tokens = line.asked, []
        elif isinstance(line, Token):
            tokens.append(line)
        elif isinstance(line, Place):
            place = line.session
        elif isinstance(line, End) and turn is not None:
            ids = (*turn.prompt_ids, *(token.id for token in tokens))
            if line.complete:
                text = "".join(token.text for token in tokens)
                messages += [{"role": "user", "content": turn.text}, {"role": "assistant", "content": text}]
            turn = None
    if turn is not None:
        output_ids = tuple(token.id for token in tokens)
        ids = (*turn.prompt_ids, *output_ids)
        turn = msgspec.structs.replace(turn, output_ids=output_ids)
    return ConversationState(first.manifest, messages, ids, place, turn)


def _lines(path: Path) -> Iterator[Line]:
    try:
        content = path.read_bytes()
    except OSError as error:
        raise BrokenTranscript(f"{path} cannot be read: {error.strerror}", "Check the path.") from error
    for line in content.split(b"\n"):
        if line:
            try:
                yield _decode(line)
            except msgspec.DecodeError:
                continue  # torn by a crash
