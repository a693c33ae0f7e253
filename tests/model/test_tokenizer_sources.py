"""Tokenizers of GGUF files, SentencePiece models, or merges: the ids of transformers' conversion."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, models, pre_tokenizers, trainers
from transformers import AutoTokenizer
from transformers.integrations.gguf.gguf_tokenizer_mapping import convert_gguf_tokenizer
from transformers.models.cohere.tokenization_cohere import CohereTokenizer
from transformers.models.gpt_neox.tokenization_gpt_neox import GPTNeoXTokenizer
from transformers.models.llama.tokenization_llama import LlamaTokenizer
from transformers.tokenization_utils_base import generate_merges
from transformers.utils import sentencepiece_model_pb2_new as spm

from swarm.errors import BrokenModel, UnsupportedModel
from swarm.model import tokenizer_source
from swarm.model.confined import ProcessLimits
from swarm.model.gguf_tokenizer import write_tokenizer
from swarm.model.tokenizer import load_tokenizer
from swarm.model.tokenizer_check import encodes_plainly
from swarm.model.weights import tokenizer_digests

CORPUS = [
    "The quick brown fox, the lazy dog.", "  two   spaces    four", "tab\there\n\nnew\r\nlines   \n x",
    "don't I'LL we've", "世界你好,再见", "Grüße e\u0301o\u0302 é", "العربية हिन्दी ไทย 한국어",
    "👩‍👩‍👧‍👦 🇫🇷 x🙂y", "1 12 123 1234 12345678 ½ ²", "def f(x):\n    return x ** 2  # <s>",
    "camelCaseWORDSHere SomeXML", "</s><s> [INST] a [/INST]", " ", "", "\n", "  ", "...!?--", "a<s>b", "<s>a",
    "▁x ▁", "\x00\x7f\ufffd", "https://a.b/c?d=e&f#g", "the thethe theatre",
]  # fmt: skip
TEXTS = st.lists(st.sampled_from(CORPUS) | st.text(max_size=12), max_size=4).map("".join)


def merged_words(size: int = 900) -> tuple[list[str], list[str]]:
    """A byte-level vocabulary that was learnt from the corpus, and its merges."""
    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=size, initial_alphabet=alphabet, show_progress=False)
    backend.train_from_iterator(CORPUS * 3, trainer)
    model = json.loads(backend.to_str())["model"]
    tokens = sorted(model["vocab"], key=model["vocab"].__getitem__)
    return tokens, [" ".join(pair) for pair in model["merges"]]


def scored_pieces(size: int = 500) -> list[tuple[str, float, int]]:
    """Pieces with scores and kinds, as in the vocabulary of Llama 2."""
    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.Metaspace()
    backend.train_from_iterator(CORPUS * 3, trainers.BpeTrainer(vocab_size=size, show_progress=False))
    vocab = backend.get_vocab()
    pieces = [("<unk>", 0.0, 2), ("<s>", 0.0, 3), ("</s>", 0.0, 3)]
    pieces += [(f"<0x{byte:02X}>", 0.0, 6) for byte in range(256)]
    learnt = sorted(
        (piece for piece in vocab if len(piece) > 1 and piece not in ("<s>", "</s>", "[INST]")),
        key=vocab.__getitem__,
    )
    pieces += [(piece, -float(place), 1) for place, piece in enumerate(learnt)]
    pieces += [("▁▁", -5.0, 1), ("[INST]", 0.0, 4)]
    letters = sorted(piece for piece in vocab if len(piece) == 1)
    return pieces + [(letter, -1000.0 - place, 1) for place, letter in enumerate(letters)]


TOKENS, MERGES = merged_words()
PIECES = scored_pieces()


def metadata(pre: str, **changes) -> dict:
    tokens = [*TOKENS, "<s>", "</s>", "<tool>"]
    fields = {
        "model": "gpt2", "pre": pre, "tokens": tokens, "merges": MERGES,
        "token_type": [1] * len(TOKENS) + [3, 3, 4],
        "bos_token_id": len(TOKENS), "eos_token_id": len(TOKENS) + 1, "add_bos_token": False,
    }  # fmt: skip
    return {f"tokenizer.ggml.{name}": value for name, value in (fields | changes).items()}


def metadata_of_pieces(**changes) -> dict:
    texts, scores, kinds = map(list, zip(*PIECES, strict=True))
    fields = {"model": "llama", "pre": "default", "tokens": texts, "scores": scores, "token_type": kinds}
    return {f"tokenizer.ggml.{name}": value for name, value in (fields | changes).items()}


def of_transformers(fields: dict) -> Tokenizer:
    names = {"model": "tokenizer_type", "pre": "pre_tokenizer_type"}
    known = {key.removeprefix("tokenizer.ggml."): value for key, value in fields.items()}
    return convert_gguf_tokenizer("llama", {names.get(key, key): value for key, value in known.items()})[0]


def assert_same(ours, theirs: Tokenizer, text: str) -> None:
    ids = theirs.encode(text, add_special_tokens=False).ids
    assert ours.encode(text, add_special_tokens=False) == ids, text
    for skip in (True, False):
        assert ours.decode(ids, skip_special_tokens=skip) == theirs.decode(ids, skip_special_tokens=skip)


def check_all(ours, theirs: Tokenizer) -> None:
    for text in CORPUS:
        assert_same(ours, theirs, text)

    @settings(max_examples=100, deadline=None)
    @given(TEXTS)
    def check(text):
        assert_same(ours, theirs, text)

    check()


@pytest.mark.parametrize("pre", ["llama-bpe", "llama3", "tekken", "gpt-2", "smaug-bpe"])
def test_merges_of_gguf_give_the_ids_of_transformers(pre, tmp_path):
    fields = metadata(pre)
    write_tokenizer(fields, tmp_path)
    check_all(load_tokenizer(tmp_path), of_transformers(fields))
    assert encodes_plainly(json.loads((tmp_path / "tokenizer.json").read_text()))


@pytest.mark.parametrize("pre", ["qwen2", "qwen35", "command-r", "olmo", "falcon"])
def test_pre_tokenizers_are_those_of_the_models_own_classes(pre, tmp_path):
    """transformers' import of GGUF leaves normalisers out, so their own classes are the reference."""
    fields = metadata(pre)
    write_tokenizer(fields, tmp_path)
    vocab = {token: place for place, token in enumerate(TOKENS)}
    merges = [tuple(merge.split(" ")) for merge in MERGES]
    theirs = of_transformers(fields)
    if pre in ("command-r", "olmo"):
        cls = {"command-r": CohereTokenizer, "olmo": GPTNeoXTokenizer}[pre]
        named = dict.fromkeys(("unk_token", "pad_token", "cls_token", "sep_token", "mask_token"))
        named |= {"bos_token": "<s>", "eos_token": "</s>"}
        theirs = cls(vocab=vocab, merges=merges, **named)._tokenizer
        theirs.add_tokens(["<tool>"])
    elif pre == "falcon":
        parts = [
            {"type": "Punctuation", "behavior": "Contiguous"},
            {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True},
            {"type": "Digits", "individual_digits": False},
            {
                "type": "Split",
                "pattern": {"Regex": "[0-9][0-9][0-9]"},
                "behavior": "Isolated",
                "invert": False,
            },
        ]
        content = json.loads(theirs.to_str()) | {
            "pre_tokenizer": {"type": "Sequence", "pretokenizers": parts}
        }
        theirs = Tokenizer.from_str(json.dumps(content))
    else:
        content = json.loads(theirs.to_str()) | {"normalizer": {"type": "NFC"}}
        theirs = Tokenizer.from_str(json.dumps(content))
    check_all(load_tokenizer(tmp_path), theirs)
    assert encodes_plainly(json.loads((tmp_path / "tokenizer.json").read_text()))


@pytest.mark.parametrize("pre", [None, "mystery", "stablelm2", ["llama-bpe"], 7])
def test_a_pre_tokenizer_that_is_not_certain_is_refused_by_name(pre, tmp_path):
    with pytest.raises(UnsupportedModel, match=r"with pre-tokenizer .*which cannot be converted"):
        write_tokenizer(metadata(pre), tmp_path)


@pytest.mark.parametrize(("pre", "begins"), [("llama-bpe", True), ("tekken", True), ("gpt-2", False)])
def test_texts_begin_as_llama_cpp_begins_them_where_the_file_is_silent(pre, begins, tmp_path):
    fields = metadata(pre)
    del fields["tokenizer.ggml.add_bos_token"]
    write_tokenizer(fields, tmp_path)
    assert (load_tokenizer(tmp_path).encode("x")[0] == len(TOKENS)) == begins


def test_pieces_of_gguf_give_the_ids_of_transformers(tmp_path):
    write_tokenizer(metadata_of_pieces(), tmp_path)
    tokenizer = load_tokenizer(tmp_path)
    check_all(tokenizer, of_transformers(metadata_of_pieces()))
    assert tokenizer.encode("x")[0] == 1
    assert tokenizer.named_tokens == {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
    assert encodes_plainly(json.loads((tmp_path / "tokenizer.json").read_text()))


def test_pieces_of_gguf_may_do_without_the_first_space_and_the_begin_token(tmp_path):
    write_tokenizer(metadata_of_pieces(add_space_prefix=False, add_bos_token=False), tmp_path)
    vocab = {text: place for place, (text, _, _) in enumerate(PIECES)}
    merges = generate_merges(vocab, {text: score for text, score, _ in PIECES})
    theirs = LlamaTokenizer(vocab=vocab, merges=merges, add_prefix_space=False)._tokenizer
    tokenizer = load_tokenizer(tmp_path)
    for text in ("the dog", " the dog", "世"):
        assert_same(tokenizer, theirs, text)
        assert tokenizer.encode(text) == tokenizer.encode(text, add_special_tokens=False)


@pytest.mark.parametrize(
    "changes",
    [
        {"scores": [0.0]},
        {"scores": [float("nan")] * len(PIECES)},
        {"token_type": None},
        {"tokens": [7] * len(PIECES)},
        {"bos_token_id": 10**9},
        {"tokens": []},
    ],
    ids=lambda changes: next(iter(changes)),
)
def test_pieces_that_do_not_fit_together_are_a_broken_file(changes, tmp_path):
    with pytest.raises(BrokenModel, match=r"tokenizer in the GGUF file|pieces make no vocabulary"):
        write_tokenizer(metadata_of_pieces(**changes), tmp_path)


def test_pieces_that_take_all_there_is_are_given_up(tmp_path, monkeypatch):
    monkeypatch.setattr(tokenizer_source, "_LIMITS", ProcessLimits(1, 2**29, 60.0, 2**24))
    tokens = [("a" * 60_000) + str(place) for place in range(100)]
    fields = {"tokens": tokens, "scores": [0.0] * 100, "token_type": [1] * 100}
    with pytest.raises(UnsupportedModel, match="was ended"):
        write_tokenizer(metadata_of_pieces(**fields), tmp_path)


def model_of_pieces(**normalizer) -> spm.ModelProto:
    proto = spm.ModelProto()
    for text, score, kind in PIECES:
        proto.pieces.add(piece=text, score=score, type=kind)
    proto.trainer_spec.model_type = 2
    proto.trainer_spec.byte_fallback = True
    settings = {"remove_extra_whitespaces": False, **normalizer}
    for name, value in settings.items():
        setattr(proto.normalizer_spec, name, value)
    return proto


def write_model(directory, proto: spm.ModelProto | bytes, **config):
    data = proto if isinstance(proto, bytes) else proto.SerializeToString()
    (directory / "tokenizer.model").write_bytes(data)
    (directory / "config.json").write_text('{"model_type": "llama"}')
    (directory / "tokenizer_config.json").write_text(
        json.dumps({"tokenizer_class": "LlamaTokenizer", **config})
    )
    return directory


def test_a_sentencepiece_model_gives_the_ids_of_transformers(tmp_path):
    tokenizer = load_tokenizer(
        write_model(tmp_path, model_of_pieces(), add_bos_token=True, add_eos_token=True)
    )
    vocab = {text: place for place, (text, _, _) in enumerate(PIECES)}
    theirs = LlamaTokenizer(
        vocab=vocab, merges=generate_merges(vocab), add_bos_token=True, add_eos_token=True
    )._tokenizer
    theirs.add_tokens(["[INST]"])
    check_all(tokenizer, theirs)
    for text in CORPUS:
        assert tokenizer.encode(text) == theirs.encode(text).ids
    assert tokenizer.named_tokens == {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}


@pytest.mark.parametrize(
    "options", [{"legacy": True}, {"add_prefix_space": False}, {"legacy": False}], ids=str
)
def test_a_sentencepiece_model_treats_first_spaces_as_its_config_says(options, tmp_path):
    vocab = {text: place for place, (text, _, _) in enumerate(PIECES)}
    theirs = LlamaTokenizer(vocab=vocab, merges=generate_merges(vocab), **options)._tokenizer
    theirs.add_tokens(["[INST]"])
    check_all(load_tokenizer(write_model(tmp_path, model_of_pieces(), **options)), theirs)


def changed(**trainer) -> spm.ModelProto:
    proto = model_of_pieces()
    for name, value in trainer.items():
        setattr(proto.trainer_spec, name, value)
    return proto


@pytest.mark.parametrize(
    ("proto", "what"),
    [
        (changed(model_type=1), "not merged with bytes"),
        (changed(byte_fallback=False), "not merged with bytes"),
        (model_of_pieces(precompiled_charsmap=b"x"), "normalises texts"),
        (model_of_pieces(remove_extra_whitespaces=True), "normalises texts"),
        (model_of_pieces(add_dummy_prefix=False), "spaces in its own way"),
    ],
    ids=["unigram", "no bytes", "charsmap", "whitespace", "no prefix"],
)
def test_a_sentencepiece_model_of_another_kind_is_refused_with_the_command(proto, what, tmp_path):
    with pytest.raises(UnsupportedModel, match=rf"tokenizer\.model cannot be used.*{what}.*save_pretrained"):
        load_tokenizer(write_model(tmp_path, proto))


@pytest.mark.parametrize("data", [b"", b"\xff" * 100, b"\x0a" * 10_000, b"IQ== 0\nIg== 1\n", b"\x0a\x03abc"])
def test_a_damaged_sentencepiece_model_is_named(data, tmp_path):
    with pytest.raises((BrokenModel, UnsupportedModel), match=r"tokenizer\.model cannot be used"):
        load_tokenizer(write_model(tmp_path, data))


def test_a_model_whose_class_is_not_known_is_refused_by_name(tmp_path):
    with pytest.raises(
        UnsupportedModel, match=r"tokenizer\.model is of the class 'GemmaTokenizer'.*save_pretrained"
    ):
        load_tokenizer(write_model(tmp_path, model_of_pieces(), tokenizer_class="GemmaTokenizerFast"))


@pytest.mark.parametrize(
    ("family", "config"),
    [
        ("qwen2", {"tokenizer_class": "Qwen2Tokenizer", "bos_token": None}),
        ("qwen3", {}),
        ("llama", {"tokenizer_class": "GPT2Tokenizer"}),
        ("llama", {"tokenizer_class": "GPT2TokenizerFast", "add_bos_token": True, "bos_token": "<s>"}),
    ],
)
def test_vocabulary_and_merges_give_the_ids_of_transformers(family, config, tmp_path):
    (tmp_path / "vocab.json").write_text(json.dumps({token: place for place, token in enumerate(TOKENS)}))
    (tmp_path / "merges.txt").write_text("#version: 0.2\n" + "\n".join(MERGES) + "\n")
    (tmp_path / "config.json").write_text(json.dumps({"model_type": family}))
    added = {str(len(TOKENS)): {"content": "<s>", "special": True}}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"added_tokens_decoder": added, **config}))
    theirs = AutoTokenizer.from_pretrained(tmp_path)
    tokenizer = load_tokenizer(tmp_path)
    check_all(tokenizer, theirs._tokenizer)
    assert tokenizer.encode("x <|endoftext|>") == theirs.encode("x <|endoftext|>")
    assert dict(tokenizer.named_tokens) == theirs.special_tokens_map


@pytest.mark.parametrize(
    ("name", "content"), [("vocab.json", "[]"), ("merges.txt", "a b c"), ("merges.txt", "zz yy")]
)
def test_damaged_vocabularies_and_merges_are_named(name, content, tmp_path):
    (tmp_path / "vocab.json").write_text(json.dumps({token: place for place, token in enumerate(TOKENS)}))
    (tmp_path / "merges.txt").write_text("\n".join(MERGES))
    (tmp_path / "config.json").write_text('{"model_type": "qwen2"}')
    (tmp_path / name).write_text(content)
    with pytest.raises(BrokenModel, match=name.replace(".", r"\.")):
        load_tokenizer(tmp_path)


def test_the_manifest_tells_older_files_apart(tmp_path):
    first = tokenizer_digests(write_model(tmp_path, model_of_pieces()))
    assert tokenizer_digests(write_model(tmp_path, changed(unk_id=1))) != first
    assert "tokenizer.model" in first
