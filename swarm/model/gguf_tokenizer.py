"""The tokenizer inside a GGUF file, as the files of a Hugging Face directory.

GGUF names the pre-tokenizer and gives vocabulary and merges; what the name means is written here, as
in the original `tokenizer.json` of the models that use it. Others are refused: a tokenizer that is
nearly right gives wrong answers without a word.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeAlias

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

from swarm.errors import BrokenModel, UnsupportedModel
from swarm.model.files import write_json

Metadata: TypeAlias = Mapping[str, Any]  # the key-value part of a GGUF file

# llama.cpp's llama_token_type; the unused ones name the rows that pad the embedding
_CONTROL, _USER_DEFINED, _UNUSED = 3, 4, 5
_QWEN2_PATTERN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_QWEN2_NAMES = ("qwen2", "deepseek-r1-qwen")
_SUPPORTED = ("smollm", *_QWEN2_NAMES)


def write_tokenizer(metadata: Metadata, directory: Path) -> None:
    """Write tokenizer.json, tokenizer_config.json, special_tokens_map.json and the chat template.

    Raises `UnsupportedModel` for another kind of tokenizer, `BrokenModel` when its parts do not fit.
    """
    _check_kind(metadata)
    try:
        named = _named_tokens(metadata)
        tokenizer = _build(metadata, named)
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


def _check_kind(metadata: Metadata) -> None:
    kind, pre = metadata.get("tokenizer.ggml.model"), metadata.get("tokenizer.ggml.pre")
    if kind != "gpt2" or pre not in _SUPPORTED:
        raise UnsupportedModel(
            f"The GGUF file's tokenizer is {kind!r} with pre-tokenizer {pre!r}, which cannot be converted",
            f"Supported is 'gpt2' with {', '.join(_SUPPORTED)}; or pull the model's original directory.",
        )


def _build(metadata: Metadata, named: Mapping[str, str]) -> Tokenizer:
    qwen2 = metadata["tokenizer.ggml.pre"] in _QWEN2_NAMES
    tokens, kinds = metadata["tokenizer.ggml.tokens"], metadata["tokenizer.ggml.token_type"]
    added = [i for i, kind in enumerate(kinds) if kind in (_CONTROL, _USER_DEFINED)]
    vocab = {token: i for i, token in enumerate(tokens) if kinds[i] != _UNUSED}
    tokenizer = Tokenizer(_bpe(vocab, metadata["tokenizer.ggml.merges"]))
    if qwen2:
        tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = _qwen2_pre_tokenizer() if qwen2 else _smollm_pre_tokenizer()
    tokenizer.decoder = decoders.ByteLevel()
    for i in added:
        _add_token(tokenizer, tokens[i], i, special=kinds[i] == _CONTROL)
    if metadata.get("tokenizer.ggml.add_bos_token"):
        _begin_texts_with(tokenizer, named["bos_token"])
    return tokenizer


def _bpe(vocab: dict[str, int], merges: list[str]) -> models.BPE:
    try:
        return models.BPE(
            vocab=vocab, merges=[(a, b) for a, _, b in (merge.partition(" ") for merge in merges)]
        )
    except Exception as error:  # the library raises nothing narrower than Exception
        raise ValueError(str(error)) from error


def _smollm_pre_tokenizer() -> pre_tokenizers.PreTokenizer:
    digits = pre_tokenizers.Digits(individual_digits=True)
    return pre_tokenizers.Sequence([digits, pre_tokenizers.ByteLevel(add_prefix_space=False)])


def _qwen2_pre_tokenizer() -> pre_tokenizers.PreTokenizer:
    words = pre_tokenizers.Split(Regex(_QWEN2_PATTERN), behavior="isolated", invert=False)
    level = pre_tokenizers.ByteLevel(add_prefix_space=False, trim_offsets=False, use_regex=False)
    return pre_tokenizers.Sequence([words, level])


def _add_token(tokenizer: Tokenizer, text: str, token_id: int, *, special: bool) -> None:
    token = AddedToken(text, special=special, normalized=False)
    (tokenizer.add_special_tokens if special else tokenizer.add_tokens)([token])
    if tokenizer.token_to_id(text) != token_id:
        raise ValueError(f"token {text!r} got the id {tokenizer.token_to_id(text)} instead of {token_id}")


def _begin_texts_with(tokenizer: Tokenizer, bos: str) -> None:
    special = [(bos, tokenizer.token_to_id(bos))]
    begin = processors.TemplateProcessing(
        single=f"{bos} $A", pair=f"{bos} $A {bos} $B", special_tokens=special
    )
    tokenizer.post_processor = processors.Sequence([processors.ByteLevel(trim_offsets=False), begin])


def _named_tokens(metadata: Metadata) -> dict[str, str]:
    names = {"eos": "eos_token", "unknown": "unk_token", "padding": "pad_token"}
    # A Qwen2 model that does not begin its texts with it has no begin token: GGUF names the padding one.
    if metadata["tokenizer.ggml.pre"] == "smollm" or metadata.get("tokenizer.ggml.add_bos_token"):
        names["bos"] = "bos_token"
    tokens = metadata["tokenizer.ggml.tokens"]
    ids = {name: metadata.get(f"tokenizer.ggml.{role}_token_id") for role, name in names.items()}
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
