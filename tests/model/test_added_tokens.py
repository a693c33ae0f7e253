"""Tokens that stand beside tokenizer.json only: the ids, flags and template variables of transformers."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from swarm.errors import BrokenModel
from swarm.model.tokenizer import load_tokenizer
from swarm.model.tokenizer_file import MAX_ADDED_TOKENS
from swarm.model.weights import tokenizer_digests

PLAIN = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": False}
FLAGS = [
    {},
    {"lstrip": True},
    {"rstrip": True},
    {"single_word": True},
    {"normalized": True},
    {"special": True},
]
TEXTS = [
    "a <x> b", "a<x>b", "  <x>  ", "<x><x>", "<X> x", "one <image> two", "</s>", "<s>", "<tool>\n<x>é",
    "x<y>y", "HELLO <x>World", "", " ", "<xx>", "a <y>", "[MASK] it",
]  # fmt: skip


def byte_level() -> Tokenizer:
    """Byte pairs, as in the tokenizers of Llama 3 and Qwen."""
    vocab = {letter: place for place, letter in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    vocab |= {text: len(vocab) + place for place, text in enumerate(["Ġa", "on", "<s>", "</s>"])}
    backend = Tokenizer(models.BPE(vocab=vocab, merges=[("Ġ", "a"), ("o", "n")]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens(["<s>"])
    return backend


def pieces() -> Tokenizer:
    """Pieces with scores in lower case, as in tokenizers made of SentencePiece models."""
    letters = ["<unk>", "<s>", "</s>", "▁", *"abcdefghijklmnopqrstuvwxyz<>/[]", "▁a", "▁one", "ll"]
    scores = [(piece, 0.0 if place < 3 else -1.0 - place / 10) for place, piece in enumerate(letters)]
    backend = Tokenizer(models.Unigram(scores, unk_id=0))
    backend.normalizer = normalizers.Lowercase()
    backend.pre_tokenizer = pre_tokenizers.Metaspace()
    backend.decoder = decoders.Metaspace()
    backend.add_special_tokens(["<unk>", "<s>"])
    return backend


KINDS = {"byte level": byte_level, "pieces": pieces}


@pytest.fixture(params=KINDS)
def made(request, tmp_path):
    """Writes a directory: the tokenizer of a kind, and the files beside it."""

    def write(config: dict | None = None, **files: dict):
        directory = tmp_path / "model"
        directory.mkdir(exist_ok=True)
        KINDS[request.param]().save(str(directory / "tokenizer.json"))
        whole = {"tokenizer_class": "PreTrainedTokenizerFast"} | (config or {})
        (directory / "tokenizer_config.json").write_text(json.dumps(whole))
        for name, content in files.items():
            (directory / f"{name}.json").write_text(json.dumps(content))
        return directory

    write.size = KINDS[request.param]().get_vocab_size()
    return write


def assert_as_in_transformers(directory, texts=TEXTS) -> None:
    ours, theirs = load_tokenizer(directory), PreTrainedTokenizerFast.from_pretrained(directory)
    for text in texts:
        ids = theirs.encode(text)
        assert ours.encode(text) == ids, text
        for skip in (True, False):
            assert ours.decode(ids, skip_special_tokens=skip) == theirs.decode(ids, skip_special_tokens=skip)
    assert dict(ours.named_tokens) == theirs.special_tokens_map


@pytest.mark.parametrize("flags", FLAGS, ids=lambda flags: next(iter(flags), "none"))
def test_tokens_of_the_config_have_their_ids_and_flags(made, flags):
    """One that is new, one in the vocabulary, and one that tokenizer.json adds with other flags."""
    known = load_tokenizer(made()).token_to_id
    decoder = {
        str(made.size): {"content": "<x>", **PLAIN, **flags},
        str(made.size + 1): {"content": "<tool>", **flags},
        str(known("</s>")): {"content": "</s>", **PLAIN, **flags},
        str(known("<s>")): {"content": "<s>", **PLAIN, **FLAGS[FLAGS.index(flags) - 1]},
    }
    assert_as_in_transformers(made({"added_tokens_decoder": decoder, "eos_token": "</s>"}))


def test_tokens_of_the_oldest_file_count_where_the_config_has_none(made):
    older = {"<x>": made.size, "<y>": made.size + 1, "[MASK]": made.size + 2}
    special = {
        "mask_token": {"content": "[MASK]", "lstrip": True, "rstrip": False, "normalized": False},
        "additional_special_tokens": ["<y>"],
        "eos_token": "</s>",
    }
    directory = made({}, added_tokens=older, special_tokens_map=special)
    assert_as_in_transformers(directory)
    assert load_tokenizer(directory).encode("<x>", add_special_tokens=False)[-1] == made.size
    config = {"added_tokens_decoder": {}, "eos_token": "</s>"}
    assert_as_in_transformers(made(config, added_tokens=older, special_tokens_map=special))


@pytest.mark.parametrize(
    "config",
    [
        {"image_token": "<image>", "eos_token": "</s>"},
        {"extra_special_tokens": {"image_token": "<image>", "tool_token": "<tool>"}},
        {"extra_special_tokens": ["<image>", "<tool>"], "audio_token": "<x>", "bos_token": "<s>"},
        {"additional_special_tokens": ["<image>", "</s>"], "add_bos_token": True, "some_token": False},
        {"pad_token": {"__type": "AddedToken", "content": "<x>", **PLAIN, "lstrip": True, "special": True}},
        {"image_token": "<image>", "added_tokens_decoder": {}},
    ],
    ids=lambda config: next(iter(config)),
)
def test_tokens_with_a_name_are_tokens_and_variables_of_templates(made, config):
    template = "{{ bos_token }}{{ image_token }}{{ tool_token }}{{ audio_token }}|{{ eos_token }}"
    directory = made(config | {"chat_template": template})
    assert_as_in_transformers(directory)
    messages = [{"role": "user", "content": "hi"}]
    expected = AutoTokenizer.from_pretrained(directory).apply_chat_template(messages, tokenize=False)
    assert load_tokenizer(directory).render_chat(messages, add_generation_prompt=False) == expected


def test_names_in_the_older_map_are_read_too(made):
    special = {
        "image_token": "<image>",
        "extra_special_tokens": {"tool_token": "<tool>"},
        "eos_token": "</s>",
    }
    assert_as_in_transformers(made({"eos_token": "<s>"}, special_tokens_map=special))


@settings(max_examples=50, deadline=None)
@given(
    flags=st.lists(st.fixed_dictionaries(dict.fromkeys(PLAIN, st.booleans())), min_size=2, max_size=2),
    texts=st.lists(st.text("<xy> ab\n", max_size=20), max_size=5),
)
@pytest.mark.parametrize("kind", KINDS)
def test_any_flags_and_texts_are_as_in_transformers(kind, flags, texts, tmp_path_factory):
    directory = tmp_path_factory.mktemp("model")
    backend = KINDS[kind]()
    backend.save(str(directory / "tokenizer.json"))
    size = backend.get_vocab_size()
    decoder = {
        str(size + place): {"content": text, **each}
        for place, (text, each) in enumerate(zip(("<x>", "<y>"), flags, strict=True))
    }
    config = {"added_tokens_decoder": decoder, "tokenizer_class": "PreTrainedTokenizerFast"}
    (directory / "tokenizer_config.json").write_text(json.dumps(config))
    assert_as_in_transformers(directory, texts)


@pytest.mark.parametrize(
    ("decoder", "what"),
    [
        ({"999999": {"content": "<x>"}}, r"added_tokens_decoder\['999999'\] gives '<x>' the id 999999"),
        ({"3": {"content": "<x>"}}, r"\['3'\] gives '<x>' the id 3, but in the vocabulary that is"),
        ({"0": {"content": "<s>"}}, r"\['0'\] gives '<s>' the id 0"),
        ({"-1": {"content": "<x>"}}, r"\['-1'\] is not the id of a token"),
        ({"1" * 5000: {"content": "<x>"}}, r"is not the id of a token"),
        ({"٣": {"content": "<x>"}}, r"is not the id of a token"),
        ({"300": {"content": 7}}, r"\['300'\] is .*not a token"),
        ({"300": 7}, r"\['300'\] is 7, not a token"),
        ({"300": {"content": "<x>", "lstrip": "yes"}}, r"\['300'\] has a flag"),
        ([], r"added_tokens_decoder is \[\], no object"),
        ({str(n): {"content": str(n)} for n in range(MAX_ADDED_TOKENS + 1)}, "more than 32,768 added tokens"),
        ({str(10**6 + n): {"content": f"<{n}>"} for n in range(5000)}, r"gives '<0>' the id 1000000"),
    ],
)  # fmt: skip
def test_a_bad_token_of_the_config_is_named(made, decoder, what):
    with pytest.raises(BrokenModel, match=what) as caught:
        load_tokenizer(made({"added_tokens_decoder": decoder}))
    assert len(str(caught.value)) < 400


@pytest.mark.parametrize("bad", ["x", -1, 1.5, True, None, 10**12, 3])
def test_a_bad_id_in_the_oldest_file_is_named(made, bad):
    with pytest.raises(BrokenModel, match=r"added_tokens\.json: '<x>'"):
        load_tokenizer(made({}, added_tokens={"<x>": bad}))


@pytest.mark.parametrize(
    ("config", "key"),
    [
        ({"eos_token": 7}, "eos_token"),
        ({"eos_token": {"content": 7}}, "eos_token"),
        ({"extra_special_tokens": {"image_token": 7}}, "extra_special_tokens.'image_token'"),
        ({"additional_special_tokens": ["<x>", 7]}, r"additional_special_tokens\[1\]"),
    ],
)
def test_a_name_whose_token_is_no_text_is_told(made, config, key):
    with pytest.raises(BrokenModel, match=rf"tokenizer_config\.json: {key} is"):
        load_tokenizer(made(config))


def test_the_manifest_tells_tokens_apart_that_stand_beside(made):
    plain = tokenizer_digests(made())
    assert tokenizer_digests(made({"added_tokens_decoder": {}})) == plain
    added = tokenizer_digests(made({"added_tokens_decoder": {str(made.size): {"content": "<x>"}}}))
    other = tokenizer_digests(made({"added_tokens_decoder": {str(made.size): {"content": "<y>"}}}))
    named = tokenizer_digests(made({"image_token": "<s>"}))
    assert len({json.dumps(each, sort_keys=True) for each in (plain, added, other, named)}) == 4
