"""Streaming of text: what is given is never taken back, and pieces joined are the whole."""

import json
from itertools import chain
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


def metaspace() -> Tokenizer:
    """Pieces with scores and the spaces of the first one stripped, as in the tokenizers of T5."""
    pieces = ["<unk>", "▁", "▁▁", "▁a", "▁the", "b", "世", "."]
    backend = tokenizers.Tokenizer(models.Unigram([(piece, -1.0) for piece in pieces], unk_id=0))
    backend.decoder = decoders.Metaspace()
    backend.add_special_tokens(["<s>"])
    return Tokenizer(backend, {}, {})


def word_pieces() -> Tokenizer:
    """Words with a space before each but the first, as in the tokenizers of BERT."""
    vocab = {piece: i for i, piece in enumerate(["[UNK]", "a", "the", "##b", "##世", ".", "'", "m"])}
    backend = tokenizers.Tokenizer(models.WordPiece(vocab, unk_token="[UNK]"))  # noqa: S106
    backend.decoder = decoders.WordPiece()
    backend.add_special_tokens(["[CLS]"])
    return Tokenizer(backend, {}, {})


def suffixed() -> Tokenizer:
    """Words that say where they end, with a space after each but the last."""
    vocab = {piece: i for i, piece in enumerate(["a</w>", "b", "世</w>", "c", ".</w>"])}
    backend = tokenizers.Tokenizer(models.BPE(vocab=vocab, merges=[], end_of_word_suffix="</w>"))
    backend.decoder = decoders.BPEDecoder()
    backend.add_special_tokens(["<s>"])
    return Tokenizer(backend, {}, {})


def undecoded() -> Tokenizer:
    """No decoder at all: tokens with spaces between them."""
    backend = tokenizers.Tokenizer(models.WordLevel({"a": 0, "世": 1, "b": 2}, unk_token="a"))  # noqa: S106
    backend.add_special_tokens(["<s>"])
    return Tokenizer(backend, {}, {})


BYTE_LEVEL, BYTE_FALLBACK = byte_level(), byte_fallback()
KINDS = {
    "byte level": BYTE_LEVEL,
    "byte fallback": BYTE_FALLBACK,
    "metaspace": metaspace(),
    "word pieces": word_pieces(),
    "suffixed": suffixed(),
    "undecoded": undecoded(),
}
every_kind = pytest.mark.parametrize("tokenizer", KINDS.values(), ids=KINDS)


def stream(tokenizer, ids, **options):
    decoder = StreamDecoder(tokenizer, **options)
    pieces = [decoder.push(token_id) for token_id in ids]
    return [*pieces, decoder.finish()], decoder.stopped_by


def spell(text: str) -> list[int]:
    return BYTE_LEVEL.encode(text)


def added(tokenizer: Tokenizer, prompt: list[int], reply: list[int], *, skip: bool) -> str:
    """What the reply adds to the text of the prompt, or to that before a character that it breaks off in."""
    whole = tokenizer.decode([*prompt, *reply], skip_special_tokens=skip)
    skipped = tokenizer.special_ids if skip else ()
    kept = [each for each in prompt if each not in skipped and tokenizer.id_to_token(each) is not None]
    text = tokenizer.decode(kept, skip_special_tokens=skip)
    texts = [text]
    while text.endswith("\ufffd") and kept and len(texts) < 4 and kept.pop() in tokenizer.byte_ids:
        texts.append(tokenizer.decode(kept, skip_special_tokens=skip))
    texts[1:] = [text for text in texts[1:] if not text.endswith("\ufffd")]
    ends = (end for text in texts for end in range(len(text) + 1) if whole.startswith(text[:end]))
    return whole[max(ends) :]


def any_ids(tokenizer: Tokenizer) -> st.SearchStrategy[list[int]]:
    """Ids of tokens and of none, often many alike."""
    one = st.integers(0, tokenizer.vocab_size + 9)
    runs = st.tuples(one, st.integers(1, 20)).map(lambda run: [run[0]] * run[1])
    return st.lists(one, max_size=60) | st.lists(runs, max_size=6).map(lambda runs: [*chain(*runs)])


@every_kind
@pytest.mark.parametrize("skip", [True, False])
@settings(max_examples=300, deadline=None)
@given(data=st.data())
def test_pieces_of_any_ids_join_to_what_they_add_to_any_prompt(tokenizer, skip, data):
    prompt, ids = data.draw(any_ids(tokenizer)), data.draw(any_ids(tokenizer))
    pieces, _ = stream(tokenizer, ids, prompt_ids=prompt, skip_special_tokens=skip)
    assert "".join(pieces) == added(tokenizer, prompt, ids, skip=skip)


@settings(max_examples=300, deadline=None)
@given(st.lists(st.sampled_from(TEXTS) | st.text(max_size=8), max_size=6), st.data())
def test_a_text_cut_anywhere_into_prompt_and_reply_joins_again(parts, data):
    text = "".join(parts)
    cut = data.draw(st.integers(0, len(text.encode())))
    for tokenizer, ids in (
        (BYTE_LEVEL, spell(text)),
        (BYTE_FALLBACK, [BYTE_FALLBACK.token_to_id(f"<0x{byte:02X}>") for byte in text.encode()]),
    ):
        pieces, _ = stream(tokenizer, ids[cut:], prompt_ids=ids[:cut])
        before = tokenizer.decode(ids[:cut])
        if tokenizer.decode(ids).startswith(before):  # no character was cut
            assert before + "".join(pieces) == tokenizer.decode(ids)
        assert "".join(pieces) == added(tokenizer, ids[:cut], ids[cut:], skip=True)


@pytest.mark.parametrize(
    ("kind", "prompt", "reply", "text"),
    [
        ("byte fallback", ["b"], ["▁the"], " the"),
        ("byte fallback", [], ["▁the"], "the"),
        ("byte fallback", ["<s>"], ["▁the"], "the"),
        ("byte fallback", ["b", "<s>"], ["▁the"], " the"),
        ("byte fallback", ["b", "<0xE4>", "<0xBD>"], ["<0xA0>", "."], "你."),
        ("metaspace", ["b"], ["▁▁", "▁the"], "   the"),
        ("word pieces", ["a"], ["the", "."], " the."),
        ("suffixed", ["a</w>"], ["b", "c"], " bc"),
        ("undecoded", ["a"], ["b"], " b"),
    ],
)
def test_a_reply_begins_as_it_goes_on_from_its_prompt(kind, prompt, reply, text):
    tokenizer = KINDS[kind]
    prompt_ids, ids = ([tokenizer.token_to_id(each) for each in part] for part in (prompt, reply))
    assert "".join(stream(tokenizer, ids, prompt_ids=prompt_ids)[0]) == text


def test_a_stop_string_may_begin_with_the_space_after_the_prompt():
    ids = [BYTE_FALLBACK.token_to_id(each) for each in ("b", "▁the", ".")]
    pieces, stopped_by = stream(BYTE_FALLBACK, ids[1:], prompt_ids=ids[:1], stop=[" the"])
    assert ("".join(pieces), stopped_by) == ("", " the")


def test_a_reply_ends_a_character_of_a_long_run_of_bytes():
    *first, last = [BYTE_FALLBACK.token_to_id(f"<0x{byte:02X}>") for byte in ("你" * 1000).encode()]
    for extra in range(3):
        prompt = [BYTE_FALLBACK.token_to_id("b"), *[BYTE_FALLBACK.token_to_id("<0x61>")] * extra, *first]
        assert "".join(stream(BYTE_FALLBACK, [last], prompt_ids=prompt)[0]) == "你"


def test_no_more_is_decoded_for_a_longer_prompt(monkeypatch):
    decoded: list[int] = []
    decode = Tokenizer.decode
    monkeypatch.setattr(
        Tokenizer,
        "decode",
        lambda self, ids, **options: decoded.append(len(ids)) or decode(self, ids, **options),
    )
    for tokenizer in KINDS.values():
        counts = []
        for length in (1_000, 20_000):
            decoded.clear()
            stream(tokenizer, [1, 2, 3] * 30, prompt_ids=[1, 2] * length)
            counts.append(sum(decoded))
        assert counts[0] == counts[1]


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
