"""`swarm chat` over a swarm in one process: what it keeps, and what it goes on with."""

import asyncio
import errno
import io
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from swarm.cli.chat import _Chat
from swarm.cli.chats import LAST, Chats
from swarm.cli.client_options import SamplingFlags
from swarm.client.client import ClientOptions
from swarm.client.transcript import Begin, Token, Transcript, Turn, read_transcript
from swarm.errors import UsageError
from swarm.testing.swarm import InProcessSwarm
from swarm.testing.tiny_models import TinyModel, write_tiny_model
from swarm.values import Span

MAX_TOKENS = 6


@pytest.fixture(scope="module")
def tiny(tmp_path_factory) -> Path:
    directory = tmp_path_factory.mktemp("models") / "tiny"
    write_tiny_model(directory, TinyModel(num_blocks=4))
    return directory


@pytest.fixture
def kept(tmp_path, monkeypatch) -> Path:
    """The directory of the chats."""
    monkeypatch.setenv("SWARM_HOME", str(tmp_path))
    return tmp_path / "chats"


@pytest.fixture
def chat(tiny, kept, monkeypatch) -> Callable[..., None]:
    """Types lines into a chat until they end; `hosted` says whether anybody answers."""

    def run(*lines: str, resume: str | None = None, hosted: bool = True, keep: bool = True) -> None:
        monkeypatch.setattr("sys.stdin", io.StringIO("".join(f"{line}\n" for line in lines)))

        async def talk() -> None:
            async with InProcessSwarm(tiny) as swarm:
                await swarm.add_peers([Span(0, 4)] if hosted else [])
                client = swarm.client(ClientOptions(patience_s=0.0, spares="off"))
                chats = Chats(kept) if keep else None
                await _Chat(client, SamplingFlags(), MAX_TOKENS, None, chats).run(resume)

        asyncio.run(talk())

    return run


def broken_off(path: Path, tiny: Path, count: int) -> list[int]:
    """A chat whose process died after so many tokens of its reply, without its end; gives the whole reply."""

    async def talk() -> list[int]:
        async with InProcessSwarm(tiny) as swarm:
            await swarm.add_peers([Span(0, 4)])
            conversation = swarm.client().conversation()
            transcript = Transcript(path)
            transcript.write(Begin(swarm.model.manifest, "tiny", [], 0.0))
            generation = conversation.say("Hello", max_tokens=MAX_TOKENS)
            transcript.write(Turn(conversation.state().unfinished))
            pieces = [piece async for piece in generation]
            for piece in pieces[:count]:
                transcript.write(Token(piece.token_id, piece.text, piece.finish_reason is not None))
            transcript.close()
            return [piece.token_id for piece in pieces]

    return asyncio.run(talk())


def tokens_in(path: Path) -> list[int]:
    """All that were ever written to a transcript."""
    return [
        int(line.split(",")[1].split(":")[1]) for line in path.read_text().split("\n") if '"token"' in line
    ]


def test_a_chat_in_which_nobody_said_anything_leaves_no_file(chat, kept):
    chat()
    chat("/help", "/reset", "/system Be brief.", "/stats")
    assert list(kept.glob("*")) == []


def test_a_chat_that_is_not_to_be_kept_leaves_no_file(chat, kept, capsys):
    chat("Hello", "/stats", keep=False)
    assert "tokens after a prompt of" in capsys.readouterr().err
    assert not kept.exists()


def test_resume_goes_on_with_what_was_said_and_not_with_a_start_that_came_to_nothing(chat, kept):
    chat("Hello")
    chat()
    chat("And?", resume=LAST)
    (path,) = kept.iterdir()
    assert [message["content"] for message in read_transcript(path).messages[::2]] == ["Hello", "And?"]


def test_every_new_conversation_has_a_file_of_its_own(chat, kept):
    chat("Hello", "/system Be brief.", "Hi")
    messages = [read_transcript(path).messages for path in kept.iterdir()]
    assert sorted([message["role"] for message in each] for each in messages) == [
        ["system", "user", "assistant"],
        ["user", "assistant"],
    ]


def test_a_chat_that_is_open_elsewhere_is_not_gone_on_with(chat, kept):
    chat("Hello")
    (path,) = kept.iterdir()
    before = path.read_bytes()
    elsewhere = Transcript(path)
    with pytest.raises(UsageError, match="open in another terminal"):
        chat("And?", resume=LAST)
    elsewhere.close()
    assert path.read_bytes() == before


@pytest.mark.parametrize("count", [0, 1, 4])
def test_a_reply_that_broke_off_is_gone_on_with_and_then_whole(chat, kept, tiny, capsys, count):
    path = kept / "tiny-20260101-120000-abcd.jsonl"
    whole = broken_off(path, tiny, count)
    chat(resume=LAST)
    state = read_transcript(path)
    assert tokens_in(path) == whole
    assert (state.unfinished, len(state.messages)) == (None, 2)
    assert capsys.readouterr().out == f"> Hello\n{state.messages[1]['content']}\n"


def test_a_reply_that_lacks_only_its_end_is_not_gone_on_with(chat, kept):
    chat("Hello")
    (path,) = kept.iterdir()
    whole = tokens_in(path)
    *lines, end = path.read_bytes().splitlines(keepends=True)
    assert b'"end"' in end
    path.write_bytes(b"".join(lines))
    chat(resume=LAST)
    assert tokens_in(path) == whole
    assert len(read_transcript(path).messages) == 2


def test_a_reply_with_a_damaged_line_is_computed_again_from_there(chat, kept, tiny):
    path = kept / "tiny-20260101-120000-abcd.jsonl"
    whole = broken_off(path, tiny, 5)
    lines = path.read_bytes().split(b"\n")
    lines[4] = lines[4][:10]  # of the third token
    path.write_bytes(b"\n".join(lines))
    chat(resume=LAST)
    ids = [*read_transcript(path).ids]
    assert ids[-len(whole) :] == whole


def test_a_reply_that_nobody_could_give_is_asked_for_again_later(chat, kept, capsys):
    chat("Hello", hosted=False)
    (path,) = kept.iterdir()
    assert "No live peer hosts blocks 0:4" in capsys.readouterr().err
    chat(resume=LAST)
    assert len(read_transcript(path).messages) == 2


def test_a_full_disk_is_told_and_the_chat_goes_on_when_there_is_room_again(chat, kept, capsys, monkeypatch):
    write, refused = os.write, []

    def full_at_first(file: int, data: bytes) -> int:
        if b'"token"' in data and not refused:
            refused.append(write(file, data[:9]))
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return write(file, data)

    monkeypatch.setattr(os, "write", full_at_first)
    chat("Hello", "Again")
    (path,) = kept.iterdir()
    assert f"{path} cannot be written: No space left on device. Free disk space" in capsys.readouterr().err
    assert [message["content"] for message in read_transcript(path).messages[::2]] == ["Again"]
