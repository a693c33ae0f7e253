"""The tokenizer inside a GGUF file, as the files of a Hugging Face directory.

GGUF names the pre-tokenizer and gives vocabulary and merges, or pieces with scores; what the name means is
written here, as in the original `tokenizer.json` of the models that use it. Others are refused: a tokenizer
that is nearly right gives wrong answers without a word.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

from swarm.errors import BrokenModel, UnsupportedModel
from swarm.model.fields import brief
from swarm.model.files import write_json
from swarm.model.tokenizer_check import FALCON_DIGITS, LLAMA3_WORDS, QWEN2_WORDS, QWEN35_WORDS, TEKKEN_WORDS
from swarm.model.tokenizer_source import make_of_pieces, split_into

Metadata: TypeAlias = Mapping[str, Any]  # the key-value part of a GGUF file

# llama.cpp's llama_token_type; the unused ones name the rows that pad the embedding
_CONTROL, _USER_DEFINED, _UNUSED = 3, 4, 5


def _level() -> pre_tokenizers.PreTokenizer:
    return pre_tokenizers.ByteLevel(add_prefix_space=False)


def _single_digits() -> pre_tokenizers.PreTokenizer:
    return pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), _level()])


def _falcon() -> pre_tokenizers.PreTokenizer:
    digits = [
        pre_tokenizers.Digits(individual_digits=False),
        pre_tokenizers.Split(Regex(FALCON_DIGITS), "isolated"),
    ]
    return pre_tokenizers.Sequence([pre_tokenizers.Punctuation("contiguous"), _level(), *digits])


@dataclass(frozen=True, slots=True)
class _Pre:
    """What a name of a pre-tokenizer stands for."""

    words: Callable[[], pre_tokenizers.PreTokenizer]
    composes: bool = False  # normalises to NFC
    whole_words: bool = False  # a word of the vocabulary is a token, whatever the merges make of it
    begins: bool = False  # texts begin with the begin token, unless the file says that they do not
    has_begin: bool = True  # the begin token is one although texts do not begin with it


_QWEN2 = _Pre(lambda: split_into(QWEN2_WORDS), composes=True, has_begin=False)
_LLAMA3 = _Pre(lambda: split_into(LLAMA3_WORDS), whole_words=True, begins=True)
_PRES: Mapping[str, _Pre] = {
    "smollm": _Pre(_single_digits),
    "gpt-2": _Pre(_level),
    "qwen2": _QWEN2,
    "deepseek-r1-qwen": _QWEN2,
    "qwen35": _Pre(lambda: split_into(QWEN35_WORDS), composes=True, has_begin=False),
    "llama-bpe": _LLAMA3,
    "llama3": _LLAMA3,
    "llama-v3": _LLAMA3,
    "smaug-bpe": _LLAMA3,
    "tekken": _Pre(lambda: split_into(TEKKEN_WORDS), whole_words=True, begins=True),
    "falcon": _Pre(_falcon),
    "command-r": _Pre(_single_digits, composes=True, begins=True),
    "olmo": _Pre(_level, composes=True),
}
# Where a file with pieces does not say it, llama.cpp takes these.
_PIECE_IDS = {"bos": 1, "eos": 2, "unknown": 0}


def write_tokenizer(metadata: Metadata, directory: Path) -> None:
    """Write tokenizer.json, tokenizer_config.json, special_tokens_map.json and the chat template.

    Raises `UnsupportedModel` for another kind of tokenizer, `BrokenModel` when its parts do not fit.
    """
    kind, pre = metadata.get("tokenizer.ggml.model"), metadata.get("tokenizer.ggml.pre")
    if kind != "llama" and (kind != "gpt2" or not isinstance(pre, str) or pre not in _PRES):
        raise UnsupportedModel(
            f"The GGUF file's tokenizer is {brief(kind)} with pre-tokenizer {brief(pre)}, "
            "which cannot be converted",
            f"Supported is 'llama', and 'gpt2' with {', '.join(_PRES)}; "
            "or pull the model's original directory.",
        )
    try:
        named = _named_tokens(metadata)
        tokenizer = _of_pieces(metadata, named) if kind == "llama" else _of_merges(metadata, named)
    except (LookupError, ValueError, TypeError, AttributeError, OverflowError) as error:  # also other types
        raise BrokenModel(
            f"The tokenizer in the GGUF file is incomplete: {error}",
            "Download the file again, or take another.",
        ) from error
    tokenizer.save(str(directory / "tokenizer.json"))
    write_json(directory / "tokenizer_config.json", _config(tokenizer, named))
    write_json(directory / "special_tokens_map.json", named)
    if isinstance(template := metadata.get("tokenizer.chat_template"), str):
        (directory / "chat_template.jinja").write_text(template, encoding="utf-8")


def _of_merges(metadata: Metadata, named: Mapping[str, str]) -> Tokenizer:
    pre = _PRES[metadata["tokenizer.ggml.pre"]]
    tokens, kinds = metadata["tokenizer.ggml.tokens"], metadata["tokenizer.ggml.token_type"]
    added = [i for i, kind in enumerate(kinds) if kind in (_CONTROL, _USER_DEFINED)]
    vocab = {token: i for i, token in enumerate(tokens) if kinds[i] != _UNUSED}
    model = _bpe(vocab, metadata["tokenizer.ggml.merges"])
    model.ignore_merges = pre.whole_words
    tokenizer = Tokenizer(model)
    if pre.composes:
        tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre.words()
    tokenizer.decoder = decoders.ByteLevel()
    for i in added:
        _add_token(tokenizer, tokens[i], i, special=kinds[i] == _CONTROL)
    if _begins(metadata):
        begin = _beginning_with(tokenizer, named["bos_token"])
        tokenizer.post_processor = processors.Sequence([processors.ByteLevel(trim_offsets=False), begin])
    return tokenizer


def _of_pieces(metadata: Metadata, named: Mapping[str, str]) -> Tokenizer:
    """The pieces are put together in a process of its own: how long that takes is up to who wrote them."""
    names = ("tokens", "scores", "token_type")
    pieces = list(zip(*(metadata[f"tokenizer.ggml.{name}"] for name in names), strict=True))
    spaces = "first" if metadata.get("tokenizer.ggml.add_space_prefix", True) else "never"
    question = {"pieces": pieces, "spaces": spaces}
    content = make_of_pieces(question, "the tokenizer in the GGUF file")
    tokenizer = Tokenizer.from_str(json.dumps(content))
    tokenizer.add_special_tokens([AddedToken(token, normalized=False) for token in named.values()])
    if _begins(metadata):
        tokenizer.post_processor = _beginning_with(tokenizer, named["bos_token"])
    return tokenizer


def _begins(metadata: Metadata) -> bool:
    of_pieces = metadata["tokenizer.ggml.model"] == "llama"
    default = of_pieces or _PRES[metadata["tokenizer.ggml.pre"]].begins
    return bool(metadata.get("tokenizer.ggml.add_bos_token", default))


def _bpe(vocab: dict[str, int], merges: list[str]) -> models.BPE:
    try:
        return models.BPE(
            vocab=vocab, merges=[(a, b) for a, _, b in (merge.partition(" ") for merge in merges)]
        )
    except Exception as error:  # the library raises nothing narrower than Exception
        raise ValueError(str(error)) from error


def _add_token(tokenizer: Tokenizer, text: str, token_id: int, *, special: bool) -> None:
    token = AddedToken(text, special=special, normalized=False)
    (tokenizer.add_special_tokens if special else tokenizer.add_tokens)([token])
    if tokenizer.token_to_id(text) != token_id:
        raise ValueError(f"token {text!r} got the id {tokenizer.token_to_id(text)} instead of {token_id}")


def _beginning_with(tokenizer: Tokenizer, bos: str) -> processors.PostProcessor:
    return processors.TemplateProcessing(
        single=f"{bos} $A", pair=f"{bos} $A {bos} $B", special_tokens=[(bos, tokenizer.token_to_id(bos))]
    )


def _named_tokens(metadata: Metadata) -> dict[str, str]:
    names = {"eos": "eos_token", "unknown": "unk_token", "padding": "pad_token"}
    of_pieces = metadata["tokenizer.ggml.model"] == "llama"
    # A Qwen2 model that does not begin its texts with it has no begin token: GGUF names the padding one.
    if of_pieces or _begins(metadata) or _PRES[metadata["tokenizer.ggml.pre"]].has_begin:
        names["bos"] = "bos_token"
    tokens, defaults = metadata["tokenizer.ggml.tokens"], _PIECE_IDS if of_pieces else {}
    ids = {
        name: metadata.get(f"tokenizer.ggml.{role}_token_id", defaults.get(role))
        for role, name in names.items()
    }
    return {name: tokens[token_id] for name, token_id in ids.items() if token_id is not None}


def _config(tokenizer: Tokenizer, named: Mapping[str, str]) -> dict[str, Any]:
    flags = {"lstrip": False, "rstrip": False, "normalized": False, "single_word": False}
    added = sorted(tokenizer.get_added_tokens_decoder().items())
    special = [token.content for _, token in added if token.special]
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "add_prefix_space": False,
        "clean_up_tokenization_spaces": False,
        "additional_special_tokens": [text for text in special if text not in named.values()],
        "added_tokens_decoder": {
            str(i): {"content": token.content, **flags, "special": token.special} for i, token in added
        },
        **named,
    }
