"""Where a directory's tokenizer comes from: its tokenizer.json, or older files that are made into one.

Made when they are read, as transformers makes them: tokenizer.model, in a process of its own, and vocab.json
with merges.txt. What is not certain to come out the same is refused, with the command that converts it.
"""

import base64
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeAlias, cast

from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

from swarm.errors import BrokenModel, RequestError, UnsupportedModel
from swarm.model.confined import Confined, ProcessLimits
from swarm.model.fields import MAX_TOKENIZER_BYTES, brief, read_text
from swarm.model.tokenizer_check import QWEN2_WORDS, for_decoding
from swarm.model.tokenizer_file import PULL_AGAIN, load_backend, read_object, read_tokenizer_file
from swarm.security.foreign import read_bounded

Json: TypeAlias = Any  # what `json.loads` may give

MAX_PIECES_BYTES = 2**25  # of a tokenizer.model; the largest known have 5 MB
OLDER_FILES = ("tokenizer.model", "vocab.json", "merges.txt")
_LIMITS = ProcessLimits(cpu_s=30, memory_bytes=2**31, wall_s=120.0, answer_bytes=2**27)
_CONVERT = (
    'Convert it: python -c "from transformers import AutoTokenizer as T; '
    "T.from_pretrained('DIRECTORY').save_pretrained('DIRECTORY')\""
)
# What the classes that merge by a file call <|endoftext|> where nobody says otherwise.
_ENDS = {
    "Qwen2Tokenizer": ("eos_token", "unk_token", "pad_token"),
    "GPT2Tokenizer": ("bos_token", "eos_token", "unk_token"),
}


def read_tokenizer(directory: Path, config: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """The content of tokenizer.json, and the named tokens that hold where `config` names none.

    `config` is that of tokenizer_config.json. Raises `BrokenModel` naming the file at fault, and
    `UnsupportedModel` for files that cannot be made into a tokenizer here.
    """
    pieces, vocabulary, merges = (directory / name for name in OLDER_FILES)
    if has_tokenizer_file(directory) or not (pieces.exists() or vocabulary.exists()):
        return read_tokenizer_file(directory / "tokenizer.json"), {}
    kind = _kind(directory, config)
    if pieces.exists() and kind == "LlamaTokenizer":
        spaces = "always" if config.get("legacy") else "first"
        return _of_pieces(pieces, "never" if config.get("add_prefix_space") is False else spaces)
    if vocabulary.exists() and merges.exists() and kind in _ENDS:
        roles = dict.fromkeys(_ENDS[kind], "<|endoftext|>")
        return _of_merges(vocabulary, merges, kind), roles
    file = pieces if pieces.exists() else vocabulary
    raise UnsupportedModel(f"{file} is of the class {brief(kind)}, and there is no tokenizer.json", _CONVERT)


def has_tokenizer_file(directory: Path) -> bool:
    return (directory / "tokenizer.json").exists()


def with_ends(
    content: Mapping[str, Any], named: Mapping[str, str], config: Mapping[str, Any]
) -> dict[str, Any]:
    """A tokenizer that was made here, which begins and ends texts as its `config` says."""
    backend = load_backend(for_decoding(content), "the tokenizer that was made")
    begin, end = (
        named.get(role) if config.get(f"add_{role}") else None for role in ("bos_token", "eos_token")
    )
    ids = {text: backend.token_to_id(text) for text in (begin, end) if text is not None}
    marks = [text and {"SpecialToken": {"id": text, "type_id": 0}} for text in (begin, end)]
    text = {"Sequence": {"id": "A", "type_id": 0}}
    return {
        **content,
        "post_processor": {
            "type": "TemplateProcessing",
            "single": [*filter(None, marks[:1]), text, *filter(None, marks[1:])],
            "pair": [text, {"Sequence": {"id": "B", "type_id": 1}}],  # nobody encodes pairs
            "special_tokens": {
                name: {"id": name, "ids": [place], "tokens": [name]} for name, place in ids.items()
            },
        },
    }


def make_of_pieces(question: Json, source: str) -> Json:
    """Ask `swarm.model.pieces`, in a process of its own. Raises `ModelError`."""
    try:
        return Confined(f"The conversion of {source}", "pieces", None, _LIMITS).ask(question)
    except RequestError as error:
        raise UnsupportedModel(error.what, "Take another file, or another model.") from error


def _kind(directory: Path, config: Mapping[str, Any]) -> str:
    """The class that transformers takes: that of the family where it has one, else the one that is named."""
    family = str(read_object(directory / "config.json").get("model_type"))
    if family in ("qwen2", "qwen3"):
        return "Qwen2Tokenizer"
    named = config.get("tokenizer_class")
    return named.removesuffix("Fast") if isinstance(named, str) else "LlamaTokenizer"


def _of_pieces(path: Path, spaces: str) -> tuple[dict[str, Any], dict[str, Any]]:
    try:
        data = read_bounded(path, MAX_PIECES_BYTES)
    except (OSError, ValueError) as error:
        raise BrokenModel(f"{path} cannot be read: {error}", PULL_AGAIN) from error
    try:
        answer = make_of_pieces({"model": base64.b64encode(data).decode(), "spaces": spaces}, str(path))
    except (BrokenModel, UnsupportedModel) as error:
        raise type(error)(f"{path} cannot be used: {error.what}", error.fix or _CONVERT) from error
    return answer["content"], answer["named"]


def _of_merges(vocabulary: Path, merges: Path, kind: object) -> dict[str, Any]:
    vocab = read_object(vocabulary, MAX_TOKENIZER_BYTES)
    lines = read_text(merges, MAX_TOKENIZER_BYTES).removesuffix("\n").split("\n")
    pairs = [tuple(line.rstrip("\r").split(" ")) for line in lines if not line.startswith("#version")]
    try:
        tokenizer = Tokenizer(models.BPE(vocab, cast("list[tuple[str, str]]", pairs)))
    except Exception as error:  # the library raises nothing narrower
        raise BrokenModel(f"{vocabulary} and {merges} make no tokenizer: {error}", PULL_AGAIN) from error
    if kind == "Qwen2Tokenizer":
        tokenizer.normalizer = normalizers.NFC()
        tokenizer.pre_tokenizer = split_into(QWEN2_WORDS)
    else:
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    content: dict[str, Any] = json.loads(tokenizer.to_str())
    return content


def split_into(words: str) -> pre_tokenizers.PreTokenizer:
    """Words by a regular expression, then their bytes."""
    split = pre_tokenizers.Split(Regex(words), behavior="isolated", invert=False)
    return pre_tokenizers.Sequence([split, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
