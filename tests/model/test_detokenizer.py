"""Streaming of text: what is given is never taken back, and pieces joined are the whole."""

import json
from pathlib import Path

import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import decoders, models

from swarm.errors import UsageError
from swarm.model.detokenizer import StreamDecoder
from swarm.model.tokenizer import Tokenizer

LETTERS = "abc "
TEXTS = [
    "plain text",
    "世界你好",
    "👩‍👩‍👧‍👦 🇫🇷",
    "e\u0301o\u0302\u0323",
    "العربية",
    "\ufffd\ufffd",
    "tab\tnew\nline",
    "   spaces ",
]


def byte_level() -> Tokenizer:
    """A token for every byte, as in the tokenizers of Llama 3, Qwen and SmolLM, and one control token."""
    alphabet = sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet())
    backend = tokenizers.Tokenizer(models.BPE(vocab={c: i for i, c in enumerate(alphabet)}, merges=[]))
    backend.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens(["<|end|>"])
    return Tokenizer(backend, {}, {})


def byte_fallback() -> Tokenizer:
    """Words with byte fallback and a space stripped at the start, as in the tokenizer of Llama 2."""
    words = ["▁a", "▁the", "b", "c", "▁", "世", "�", "."]
    names = ["<unk>", *(f"<0x{byte:02X}>" for byte in range(256)), *words]
    vocab = {name: i for i, name in enumerate(names)}
    backend = tokenizers.Tokenizer(models.BPE(vocab=vocab, merges=[], unk_token="<unk>", byte_fallback=True))  # noqa: S106
    backend.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    backend.add_special_tokens(["<s>"])
    return Tokenizer(backend, {}, {})


BYTE_LEVEL, BYTE_FALLBACK = byte_level(), byte_fallback()


def stream(tokenizer, ids, **options):
    decoder = StreamDecoder(tokenizer, **options)
    pieces = [decoder.push(token_id) for token_id in ids]
    return [*pieces, decoder.finish()], decoder.stopped_by


def spell(text: str) -> list[int]:
    return BYTE_LEVEL.encode(text)


@pytest.mark.parametrize("tokenizer", [BYTE_LEVEL, BYTE_FALLBACK], ids=["byte level", "byte fallback"])
@pytest.mark.parametrize("skip", [True, False])
@settings(max_examples=400, deadline=None)
@given(data=st.data())
def test_pieces_of_any_ids_join_to_the_text_of_all(tokenizer, skip, data):
    ids = data.draw(st.lists(st.integers(0, tokenizer.vocab_size + 9), max_size=80))
    pieces, _ = stream(tokenizer, ids, skip_special_tokens=skip)
    assert "".join(pieces) == tokenizer.decode(ids, skip_special_tokens=skip)


@settings(max_examples=400, deadline=None)
@given(
    st.lists(
        st.one_of(st.sampled_from(TEXTS), st.text(max_size=8)).map(spell) | st.binary(max_size=3).map(list)
    )
)
def test_pieces_of_text_with_stray_bytes_join_to_the_text_of_all(parts):
    ids = [token_id for part in parts for token_id in part]
    pieces, _ = stream(BYTE_LEVEL, ids)
    assert "".join(pieces) == BYTE_LEVEL.decode(ids)


@pytest.mark.parametrize("text", TEXTS)
def test_a_character_comes_with_its_last_byte_and_not_before(text):
    decoder = StreamDecoder(BYTE_LEVEL)
    for character in text.replace("\ufffd", "x"):
        *first, last = spell(character)
        assert [decoder.push(token_id) for token_id in first] == [""] * len(first)
        assert decoder.push(last) == character


def test_a_run_of_fallback_bytes_comes_when_it_ends():
    ids = [BYTE_FALLBACK.token_to_id(token) for token in ("▁the", "<0xE4>", "<0xBD>", "<0xA0>", ".")]
    assert stream(BYTE_FALLBACK, ids)[0] == ["the", "", "", "", "你.", ""]


def test_incomplete_character_at_the_end_comes_as_a_replacement():
    pieces, _ = stream(BYTE_LEVEL, spell("a世")[:-1])
    assert pieces == ["a", "", "", "\ufffd"]


def test_control_tokens_are_left_out_unless_wanted():
    ids = [*spell("a"), BYTE_LEVEL.token_to_id("<|end|>")]
    assert "".join(stream(BYTE_LEVEL, ids)[0]) == "a"
    assert "".join(stream(BYTE_LEVEL, ids, skip_special_tokens=False)[0]) == "a<|end|>"


def test_text_ends_before_a_stop_string_across_token_borders():
    pieces, stopped_by = stream(BYTE_LEVEL, spell("one END two"), stop=["END"])
    assert ("".join(pieces), stopped_by) == ("one ", "END")


def test_stop_string_stays_in_the_text_when_wanted():
    pieces, stopped_by = stream(BYTE_LEVEL, spell("one END two"), stop=["END"], include_stop=True)
    assert ("".join(pieces), stopped_by) == ("one END", "END")


def test_what_could_begin_a_stop_string_is_held_back_and_given_when_it_does_not():
    pieces, stopped_by = stream(BYTE_LEVEL, spell("aEaEN"), stop=["END"])
    assert pieces == ["a", "", "Ea", "", "", "EN"]
    assert stopped_by is None


def test_stop_string_may_hold_characters_of_several_bytes():
    pieces, stopped_by = stream(BYTE_LEVEL, spell("你好。再见"), stop=["。再"])
    assert ("".join(pieces), stopped_by) == ("你好", "。再")


def test_the_longer_of_two_stop_strings_that_end_together_counts():
    pieces, stopped_by = stream(BYTE_LEVEL, spell("x\n\ny"), stop=["\n\n", "\n\ny", "y"])
    assert ("".join(pieces), stopped_by) == ("x", "\n\n")
    pieces, stopped_by = stream(BYTE_LEVEL, spell("xab"), stop=["b", "ab"])
    assert ("".join(pieces), stopped_by) == ("x", "ab")


def test_nothing_comes_after_the_stop():
    decoder = StreamDecoder(BYTE_LEVEL, stop=["b"])
    assert [decoder.push(token_id) for token_id in spell("abcb")] == ["a", "", "", ""]
    assert decoder.finish() == ""


@settings(max_examples=400, deadline=None)
@given(
    st.text(LETTERS, max_size=30),
    st.lists(st.text(LETTERS, min_size=1, max_size=4), min_size=1, max_size=3),
    st.booleans(),
)
def test_text_ends_at_the_stop_string_that_is_completed_first(text, stops, include):
    ended = next((end for end in range(len(text) + 1) if text[:end].endswith(tuple(stops))), None)
    pieces, stopped_by = stream(BYTE_LEVEL, spell(text), stop=stops, include_stop=include)
    if ended is None:
        assert ("".join(pieces), stopped_by) == (text, None)
    else:
        found = max((stop for stop in stops if text[:ended].endswith(stop)), key=len)
        assert stopped_by == found
        assert "".join(pieces) == text[: ended if include else ended - len(found)]


def test_empty_stop_string_is_refused():
    with pytest.raises(UsageError, match="empty"):
        StreamDecoder(BYTE_LEVEL, stop=["x", ""])


@pytest.mark.model
def test_recorded_replies_stream_to_their_text(smollm2):
    from swarm.model.tokenizer import load_tokenizer

    tokenizer = load_tokenizer(smollm2)
    golden = json.loads((Path(__file__).parents[1] / "golden" / "smollm2-135m.json").read_text())
    for case in golden:
        pieces, _ = stream(tokenizer, case["greedy_ids_fp32"], skip_special_tokens=False)
        assert "".join(pieces) == case["text"]


@pytest.mark.model
def test_any_tokens_of_the_real_model_stream_to_their_text(smollm2):
    from swarm.model.tokenizer import load_tokenizer

    tokenizer = load_tokenizer(smollm2)

    @settings(max_examples=300, deadline=None)
    @given(st.lists(st.integers(0, tokenizer.vocab_size - 1), max_size=60))
    def check(ids):
        assert "".join(stream(tokenizer, ids)[0]) == tokenizer.decode(ids)

    check()
