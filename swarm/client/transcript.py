"""A conversation on disk, token by token, so that nothing that was shown is ever lost.

A file of JSON lines, only ever appended to, by one process at a time: it is locked while it is open.
Every line is with the operating system before the token is shown, and on the disk within a second. A
crash or a full disk can tear a line. A torn last line is passed over when the file is read; a damaged
one elsewhere ends what is known of its reply, since a reply with a hole would not be that reply.
"""

import fcntl
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from swarm.client.chat import ConversationState, UnfinishedReply
from swarm.client.context import shared_length
from swarm.errors import BrokenTranscript, UsageError
from swarm.model.files import writing_to
from swarm.session.opener import SessionState

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


class GoOn(msgspec.Struct, tag_field="type", tag="go_on", frozen=True):
    """A later process goes on with the reply after so many of its tokens, which were all it found."""

    kept: int


class Token(msgspec.Struct, tag_field="type", tag="token", frozen=True, omit_defaults=True):
    """One token of the reply, and the text that came with it.

    That it is the last one stands in the same line, so that no crash comes between the two.
    """

    id: int
    text: str
    ends: bool = False


class Place(msgspec.Struct, tag_field="type", tag="place", frozen=True):
    """The session stands on these peers now."""

    session: SessionState


class End(msgspec.Struct, tag_field="type", tag="end", frozen=True):
    """The reply ended; it is part of the conversation only when `complete`."""

    complete: bool


Line = Begin | Turn | GoOn | Token | Place | End

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(Line).decode


class Transcript:
    """Appends to one file, and holds it: nobody else opens it before it is closed, or its process dead."""

    def __init__(self, path: Path) -> None:
        """Raises `UsageError` when the file is open already."""
        self.path = path
        with writing_to(path):
            path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(self._file)
            raise UsageError(
                f"This chat is open in another terminal: {path.stem}",
                "Go on there or end it first, name another one with --resume ID, or leave --resume out.",
            ) from None
        self._synced_at = 0.0
        self._place: SessionState | None = None
        self._may_be_torn = os.lseek(self._file, 0, os.SEEK_END) > 0

    def write(self, line: Line) -> None:
        """Append one line, all of it. Raises `ConfigurationError` when the disk does not take it."""
        rest = (b"\n" if self._may_be_torn else b"") + _encode(line) + b"\n"
        self._may_be_torn = True
        with writing_to(self.path):
            while rest:
                rest = rest[os.write(self._file, rest) :]
            self._may_be_torn = False
            if isinstance(line, End) or time.monotonic() - self._synced_at > SYNC_EVERY_S:
                os.fsync(self._file)
                self._synced_at = time.monotonic()

    def place(self, session: SessionState | None) -> None:
        """Note where the session stands, when that has changed."""
        if session is not None and session != self._place:
            self._place = session
            self.write(Place(session))

    def close(self) -> None:
        """Put the rest on the disk, and let others open the file."""
        try:
            with writing_to(self.path):
                os.fsync(self._file)
        finally:
            os.close(self._file)


def read_transcript(path: Path) -> ConversationState:
    """The conversation in a file, as far as it is certain. Raises `BrokenTranscript`."""
    lines = _lines(path)
    first = next(lines, None)
    if not isinstance(first, Begin):
        raise BrokenTranscript(
            f"{path} is not a chat that was kept", "Start a new chat, or name another one with --resume."
        )
    reading = _Reading(list(first.messages))
    for line in lines:
        reading.take(line)
    return ConversationState(
        first.manifest, reading.messages, reading.held_ids(), reading.place, reading.unfinished()
    )


@dataclass(slots=True)
class _Reading:
    """What the lines so far come to."""

    messages: list[dict[str, Any]]
    place: SessionState | None = None
    turn: UnfinishedReply | None = None  # the one whose reply is not complete
    tokens: list[Token] = field(default_factory=list)
    damaged: bool = False  # a line of the turn is lost, and with it what follows
    held: tuple[int, ...] = ()  # what the caches surely begin with, until a token says that they hold more
    fed: bool = False  # a token came, so the caches hold the prompt and the tokens before it

    def take(self, line: Line | None) -> None:
        """Add a line; None is one that cannot be read, whatever it was."""
        match line:
            case None:
                self.damaged, self.fed, self.held = True, False, ()
            case Turn(asked):
                self._begin(asked)
            case GoOn(kept):
                self.held, self.fed = self.held_ids(), False
                del self.tokens[kept:]
                self.damaged = len(self.tokens) < kept
            case Token() if self.turn is not None and not self.damaged:
                self.tokens.append(line)
                self.fed = True
                if line.ends:
                    self._complete()
            case Place(session):
                self.place = session
            case End(complete=False):
                self._leave_turn()
            case End() if not self.damaged:
                self._complete()

    def held_ids(self) -> tuple[int, ...]:
        """What the peers' caches surely begin with, if they hold anything."""
        if self.turn is None or not self.fed:
            return self.held
        return (*self.turn.prompt_ids, *(token.id for token in self.tokens))

    def unfinished(self) -> UnfinishedReply | None:
        """The reply to go on with, if there is one."""
        if self.turn is None:
            return None
        return msgspec.structs.replace(self.turn, output_ids=tuple(token.id for token in self.tokens))

    def _begin(self, asked: UnfinishedReply) -> None:
        if self.damaged and self.tokens:  # others followed it, so it is too late to go on with it
            self._complete()
        held = self.held_ids()
        self.held = held[: shared_length(held, asked.prompt_ids)]
        self.turn, self.tokens, self.damaged, self.fed = asked, [], False, False

    def _complete(self) -> None:
        """The turn becomes part of the conversation."""
        if self.turn is not None:
            text = "".join(token.text for token in self.tokens)
            self.messages += [
                {"role": "user", "content": self.turn.text},
                {"role": "assistant", "content": text},
            ]
        self._leave_turn()

    def _leave_turn(self) -> None:
        self.held = self.held_ids()
        self.turn, self.tokens, self.fed = None, [], False


def _lines(path: Path) -> Iterator[Line | None]:
    """Every line, None for a damaged one. What a crash has left of a last one is none."""
    try:
        content = path.read_bytes()
    except OSError as error:
        raise BrokenTranscript(f"{path} cannot be read: {error.strerror}", "Check the path.") from error
    *lines, last = content.split(b"\n")
    yield from (_decoded(line) for line in lines if line)
    if (whole := _decoded(last)) is not None:
        yield whole


def _decoded(line: bytes) -> Line | None:
    try:
        return _decode(line)
    except msgspec.DecodeError:
        return None
