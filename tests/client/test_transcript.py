"""A chat on disk: one writer at a time, whole lines, and no reply with a hole in it."""

import errno
import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from swarm.client.chat import UnfinishedReply
from swarm.client.transcript import Begin, End, GoOn, Line, Place, Token, Transcript, Turn, read_transcript
from swarm.errors import ConfigurationError, UsageError
from swarm.model.sampling import Sampling
from swarm.session.opener import SessionState

BEGIN = Begin("0" * 64, "tiny", [], 0.0)
PLACE = Place(SessionState("5" * 64, 1, "fp32", ()))


def turn(text: str, *prompt_ids: int) -> Turn:
    return Turn(UnfinishedReply(text, prompt_ids, (), Sampling(), None, (), frozenset()))


def tokens(*ids: int) -> list[Token]:
    return [Token(number, f"<{number}>") for number in ids]


def kept(path: Path, *lines: Line | None) -> Path:
    """A file of those lines; None is one that got damaged."""
    transcript = Transcript(path)
    for line in lines:
        transcript.write(line or Token(99, "damaged"))
    transcript.close()
    path.write_bytes(path.read_bytes().replace(b'{"type":"token","id":99,"text":"damaged"}', b'{"type":"tok'))
    return path


def exchange(user: str, assistant: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": user}, {"role": "assistant", "content": assistant}]


@contextmanager
def room_for(size_bytes: int) -> Iterator[None]:
    """The system takes no file longer than this: the write that goes over it is short, the next one fails."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size_bytes, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)


def test_a_chat_that_is_open_cannot_be_opened_again(tmp_path):
    path = tmp_path / "tiny-20260101-120000-abcd.jsonl"
    first = Transcript(path)
    first.write(BEGIN)
    with pytest.raises(UsageError, match=r"another terminal: tiny-20260101-120000-abcd\. Go on there"):
        Transcript(path)
    first.close()
    Transcript(path).close()
    assert read_transcript(path).messages == []


def test_a_damaged_line_ends_the_tokens_of_its_reply(tmp_path):
    path = kept(tmp_path / "chat.jsonl", BEGIN, turn("Hi", 7, 8), *tokens(0, 1), None, *tokens(3, 4))
    assert read_transcript(path).unfinished.output_ids == (0, 1)


def test_a_reply_that_was_complete_is_unfinished_again_when_it_got_a_hole(tmp_path):
    lines = [BEGIN, turn("Hi", 7, 8), *tokens(0, 1), None, *tokens(3), End(complete=True)]
    path = kept(tmp_path / "chat.jsonl", *lines)
    state = read_transcript(path)
    assert (state.messages, state.unfinished.output_ids) == ([], (0, 1))
    rest = [GoOn(2), *tokens(2), Token(3, "<3>", ends=True)]
    state = read_transcript(kept(path, *rest))
    assert (state.messages, state.unfinished) == (exchange("Hi", "<0><1><2><3>"), None)
    assert state.ids == (7, 8, 0, 1, 2, 3)


def test_a_damaged_reply_that_others_followed_is_kept_as_far_as_it_can_be_read(tmp_path):
    lines = [
        BEGIN,
        *(turn("Hi", 7, 8), *tokens(0), None, *tokens(2), End(complete=True)),
        *(turn("And?", 7, 8, 9), *tokens(4), End(complete=True)),
    ]
    state = read_transcript(kept(tmp_path / "chat.jsonl", *lines))
    assert state.messages == [*exchange("Hi", "<0>"), *exchange("And?", "<4>")]


def test_nothing_is_claimed_of_the_caches_after_a_line_that_may_have_been_a_turn(tmp_path):
    path = kept(tmp_path / "chat.jsonl", BEGIN, turn("Hi", 7, 8), PLACE, *tokens(0, 1), None, *tokens(3))
    assert read_transcript(path).ids == ()
    assert read_transcript(kept(path, GoOn(2))).ids == ()
    assert read_transcript(kept(path, *tokens(2))).ids == (7, 8, 0, 1, 2)


def test_of_a_turn_without_a_token_the_caches_may_hold_only_what_the_turn_before_shares_with_it(tmp_path):
    lines = [BEGIN, turn("Hi", 7, 8, 9), PLACE, *tokens(0, 1), End(complete=False), turn("Other", 7, 8, 5, 6)]
    assert read_transcript(kept(tmp_path / "chat.jsonl", *lines)).ids == (7, 8)


def test_a_reply_whose_last_token_was_kept_is_complete_without_its_end(tmp_path):
    lines = [BEGIN, turn("Hi", 7, 8), *tokens(0, 1), Token(2, "<2>", ends=True)]
    path = kept(tmp_path / "chat.jsonl", *lines)
    state = read_transcript(path)
    assert (state.messages, state.unfinished, state.ids) == (
        exchange("Hi", "<0><1><2>"),
        None,
        (7, 8, 0, 1, 2),
    )
    assert read_transcript(kept(path, End(complete=True))) == state


def test_a_transcript_of_an_earlier_version_is_read(tmp_path):
    path = tmp_path / "chat.jsonl"
    path.write_text(
        '{"type":"begin","manifest":"00","model":"tiny","messages":[],"created_at":0.0}\n'
        '{"type":"turn","asked":{"text":"Hi","prompt_ids":[7,8],"output_ids":[],"sampling":{"temperature":0.0,'
        '"top_k":0,"top_p":1.0,"min_p":0.0,"repetition_penalty":1.0,"presence_penalty":0.0,'
        '"frequency_penalty":0.0,"logit_bias":{},"seed":null},"max_tokens":null,"stop":[],"stop_token_ids":[]}}\n'
        '{"type":"token","id":3,"text":"x"}\n'
    )
    unfinished = read_transcript(path).unfinished
    assert (unfinished.output_ids, unfinished.min_tokens, unfinished.skip_special_tokens) == ((3,), 0, True)


def test_a_line_is_written_to_its_end_however_little_the_system_takes_at_once(tmp_path, monkeypatch):
    write = os.write
    monkeypatch.setattr(os, "write", lambda file, data: write(file, data[:5]))
    path = kept(tmp_path / "chat.jsonl", BEGIN, turn("Hi", 7, 8), *tokens(0, 1))
    assert read_transcript(path).unfinished.output_ids == (0, 1)


def test_a_token_that_the_disk_has_no_room_for_is_an_error_and_leaves_no_hole(tmp_path):
    path = tmp_path / "chat.jsonl"
    transcript = Transcript(path)
    for line in (BEGIN, turn("Hi", 7, 8), *tokens(0)):
        transcript.write(line)
    refusal = pytest.raises(ConfigurationError, match=r"chat\.jsonl cannot be written: .*Free disk space")
    with room_for(path.stat().st_size + 10), refusal as full:
        transcript.write(Token(1, "<1>"))
    assert full.value.__cause__.errno == errno.EFBIG
    transcript.write(turn("Again", 7, 8, 9))
    transcript.write(Token(5, "<5>"))
    transcript.close()
    state = read_transcript(path)
    assert state.messages == exchange("Hi", "<0>")
    assert (state.unfinished.text, state.unfinished.output_ids) == ("Again", (5,))
