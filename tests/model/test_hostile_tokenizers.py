"""A tokenizer that takes more than its text deserves is refused, or runs where it can be ended."""

import json
from pathlib import Path

import pytest
from transformers import PreTrainedTokenizerFast

from swarm.errors import BrokenModel, RequestError, UnsupportedModel
from swarm.model import tokenizer as tokenizer_module
from swarm.model.confined import ProcessLimits
from swarm.model.gguf import convert_gguf
from swarm.model.tokenizer import Tokenizer, load_tokenizer
from swarm.model.tokenizer_check import encodes_plainly, why_not_decodable
from swarm.testing.tiny_models import TinyModel, write_tiny_model

LIMITS = ProcessLimits(cpu_s=2, memory_bytes=2**29, wall_s=60.0, answer_bytes=2**20)
DOUBLE = {"type": "Replace", "pattern": {"String": "a"}, "content": "aa"}
BYTES = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
TEXT = {"Sequence": {"id": "A", "type_id": 0}}
PAIR = {"Sequence": {"id": "B", "type_id": 1}}
TWICE = {"type": "TemplateProcessing", "single": [TEXT, TEXT], "pair": [TEXT, PAIR], "special_tokens": {}}


def several(name: str, steps: list[dict]) -> dict:
    return {"type": "Sequence", name: steps}


def split(pattern: str) -> dict:
    regex = {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}
    return several("pretokenizers", [regex, {**BYTES, "use_regex": False}])


@pytest.fixture
def directory(tmp_path, monkeypatch) -> Path:
    monkeypatch.setattr(tokenizer_module, "_TOKENIZER_LIMITS", LIMITS)
    write_tiny_model(tmp_path / "model", TinyModel())
    return tmp_path / "model"


def content(directory: Path, **changes: object) -> dict:
    return json.loads((directory / "tokenizer.json").read_text()) | changes


def load(directory: Path, **changes: object) -> Tokenizer:
    (directory / "tokenizer.json").write_text(json.dumps(content(directory, **changes)))
    return load_tokenizer(directory)


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"normalizer": several("normalizers", [DOUBLE] * 60)}, "a"),
        ({"normalizer": several("normalizers", [several("normalizers", [DOUBLE] * 5)] * 12)}, "a"),
        ({"normalizer": DOUBLE | {"content": "a" * 2**22}}, "a" * 2**10),
        ({"normalizer": {"type": "Prepend", "prepend": "a" * 2**24}}, "<|end|>a" * 2**10),
        ({"normalizer": DOUBLE | {"pattern": {"Regex": "(a|aa)+$"}}}, "a" * 100 + "b"),
        ({"pre_tokenizer": several("pretokenizers", [BYTES] * 60)}, "é"),
        ({"pre_tokenizer": split("(a+)+c")}, ("a" * 22 + "b") * 1000),
        ({"pre_tokenizer": split("(a|aa)+$")}, "a" * 100 + "b"),
    ],
    ids=["replaced", "nested", "long", "prepended", "regex", "bytes", "split", "split at once"],
)
def test_encoding_that_takes_all_there_is_is_ended(changes, text, directory):
    tokenizer = load(directory, **changes)
    with pytest.raises(RequestError, match="The model's tokenizer was ended"):
        tokenizer.encode(text)


def test_loading_normalises_no_token_with_a_strangers_steps(directory):
    token = {"id": 300, "content": "aaaa", "normalized": True, "special": False}
    token |= {"single_word": False, "lstrip": False, "rstrip": False}
    added = [*content(directory)["added_tokens"], token]
    tokenizer = load(directory, normalizer=several("normalizers", [DOUBLE] * 60), added_tokens=added)
    assert tokenizer.token_to_id("aaaa") is not None
    assert tokenizer.decode([tokenizer.token_to_id("a")]) == "a"


def test_a_tokenizer_with_an_unknown_pattern_encodes_as_in_transformers(directory):
    tokenizer = load(directory, pre_tokenizer=split(r"\p{L}+|\d|[^\p{L}\d]"))
    reference = PreTrainedTokenizerFast.from_pretrained(directory)
    for text in ("", "Grüße, 世界 12", "<|end|>x"):
        assert tokenizer.encode(text) == reference.encode(text)
        assert tokenizer.decode(reference.encode(text)) == reference.decode(
            reference.encode(text), skip_special_tokens=True
        )


@pytest.mark.parametrize(
    "decoder",
    [
        several("decoders", [DOUBLE] * 60),
        several("decoders", [{"type": "Fuse"}] * 100),
        DOUBLE | {"content": "a" * 100},
        DOUBLE | {"pattern": {"Regex": "(a|aa)+$"}},
        DOUBLE | {"pattern": {"String": ""}},
        {"type": "Unheard"},
        {},
        ["ByteLevel"],
    ],
)
def test_a_decoder_that_is_not_bounded_is_refused(decoder, directory):
    with pytest.raises(UnsupportedModel, match=r"tokenizer\.json cannot be used: its decoder"):
        load(directory, decoder=decoder)


def test_a_token_that_is_a_book_is_refused(directory):
    model = content(directory)["model"]
    model["vocab"]["a" * 10_000] = 400
    with pytest.raises(UnsupportedModel, match="token of more than 8,192 characters"):
        load(directory, model=model)


def test_a_text_is_not_put_into_a_prompt_twice_here(directory):
    assert not encodes_plainly(content(directory, post_processor=TWICE))
    once = load(directory, post_processor=None).encode("a")
    assert load(directory, post_processor=TWICE).encode("a") == 2 * once


def test_a_damaged_step_is_no_plain_one(directory):
    for damaged in (7, [], {"type": "Replace"}, {"type": ["NFC"]}, {"type": "Prepend", "prepend": 3}):
        assert not encodes_plainly(content(directory, normalizer=damaged))
    assert not encodes_plainly(content(directory, model=7))
    assert not encodes_plainly(
        content(directory, post_processor={**TWICE, "special_tokens": {"a": {"ids": 1}}})
    )


@pytest.mark.parametrize(
    "changes", [{"model": 7}, {"added_tokens": 7}, {"added_tokens": [7]}, {"decoder": None, "model": {}}]
)
def test_a_damaged_tokenizer_is_broken(changes, directory):
    with pytest.raises(BrokenModel, match="not a tokenizer"):
        load(directory, **changes)


LLAMA2 = {
    "normalizer": several(
        "normalizers",
        [
            {"type": "Prepend", "prepend": "▁"},
            {"type": "Replace", "pattern": {"String": " "}, "content": "▁"},
        ],
    ),
    "pre_tokenizer": None,
    "decoder": several(
        "decoders",
        [
            {"type": "Replace", "pattern": {"String": "▁"}, "content": " "},
            {"type": "ByteFallback"},
            {"type": "Fuse"},
            {"type": "Strip", "content": " ", "start": 1, "stop": 0},
        ],
    ),
    "post_processor": {
        "type": "TemplateProcessing",
        "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}}, TEXT],
        "pair": [TEXT, PAIR],
        "special_tokens": {"<s>": {"id": "<s>", "ids": [1], "tokens": ["<s>"]}},
    },
}


def test_the_tokenizers_of_the_families_need_no_process(directory, tiny_gguf, tmp_path):
    assert encodes_plainly(content(directory))
    assert encodes_plainly(content(directory, **LLAMA2))
    assert why_not_decodable(content(directory, **LLAMA2)) is None
    for family in ("llama", "qwen2"):
        source = tiny_gguf(family)
        source.add_bos = family == "qwen2"
        (tmp_path / family).mkdir()
        convert_gguf(source.write(tmp_path / f"{family}.gguf"), tmp_path / family)
        assert encodes_plainly(content(tmp_path / family))


@pytest.mark.model
def test_the_default_models_tokenizer_needs_no_process(smollm2):
    assert encodes_plainly(content(smollm2))
