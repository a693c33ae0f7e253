"""What a stranger's tokenizer.json would do to us: judged by what is in it, before a library runs it.

A tokenizer is a program: replacements that stand one after the other double a text as often, a regular
expression can look at a text in more ways than there is time for. Decoding happens here, for each token of
a reply, so a decoder must be one that cannot grow a text by much. Encoding happens once for a prompt: where
it is not plainly in proportion to the text, it is left to a process of its own. Pure; takes the parsed file.
"""

import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeAlias

Json: TypeAlias = Any  # what `json.loads` may give
Part: TypeAlias = Mapping[str, Json]
Growth: TypeAlias = Callable[[Part], float]  # how many characters a step may make of one

MAX_STEPS = 16  # of one kind, one after the other
MAX_GROWTH = 64.0
MAX_DECODED_GROWTH = 8.0
MAX_TOKEN_CHARS = 8192
MAX_PIECE_CHARS = 16  # of what is written before each text, or around each word
MAX_PIECES = 16  # of what is written around a prompt
_UNBOUNDED = math.inf

# What splits words in the families that can be computed; known to take time in proportion to the text.
GPT2_WORDS = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_GPT4 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}%s| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
QWEN2_WORDS = _GPT4 % ""
LLAMA3_WORDS = _GPT4 % "{1,3}"
QWEN35_WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
TEKKEN_WORDS = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
FALCON_DIGITS = "[0-9][0-9][0-9]"
_KNOWN_PATTERNS = frozenset(
    {GPT2_WORDS, QWEN2_WORDS, LLAMA3_WORDS, QWEN35_WORDS, TEKKEN_WORDS, FALCON_DIGITS}
)


def why_not_decodable(content: Part) -> str | None:
    """Why replies may not be decoded with it, or None."""
    steps = list(_steps(content.get("decoder"), "decoders"))
    growth = _growth(steps, _DECODERS)
    if growth > MAX_DECODED_GROWTH or len(steps) > MAX_STEPS:
        kinds = ", ".join(str(step.get("type"))[:MAX_PIECE_CHARS] for step in steps[:MAX_STEPS])
        return f"its decoder ({kinds}) has a step that is not known, or makes much text out of little"
    if _longest_token(content) > MAX_TOKEN_CHARS:
        return f"it has a token of more than {MAX_TOKEN_CHARS:,} characters"
    return None


def encodes_plainly(content: Part) -> bool:
    """Whether encoding takes time and memory in proportion to the text, whatever the text is."""
    growth = 1.0
    for name, inner, known in (
        ("normalizer", "normalizers", _NORMALIZERS),
        ("pre_tokenizer", "pretokenizers", _PRE_TOKENIZERS),
        ("post_processor", "processors", _PROCESSORS),
    ):
        steps = list(_steps(content.get(name), inner))
        if len(steps) > MAX_STEPS:
            return False
        growth *= _growth(steps, known)
    return growth <= MAX_GROWTH and _is_plain_model(content.get("model"))


def for_decoding(content: Part) -> dict[str, Json]:
    """The file without all that only encoding needs, so that nothing of it runs."""
    added = [{**token, "normalized": False} for token in _added_tokens(content)]
    return {
        **content,
        "normalizer": None,
        "pre_tokenizer": None,
        "post_processor": None,
        "added_tokens": added,
    }


def _steps(part: Json, inner: str) -> Iterator[Part]:
    """The steps in their order, those of sequences within sequences too."""
    if part is None:
        return
    if not isinstance(part, dict):
        yield {}
    elif part.get("type") == "Sequence" and isinstance(part.get(inner), list):
        for step in part[inner]:
            yield from _steps(step, inner)
    else:
        yield part


def _growth(steps: list[Part], known: Mapping[str, Growth]) -> float:
    return math.prod(known.get(str(step.get("type")), _unknown)(step) for step in steps)


def _unknown(step: Part) -> float:
    return _UNBOUNDED


def _at_most(growth: float) -> Growth:
    return lambda step: growth


def _replace(step: Part) -> float:
    match step:
        case {"pattern": {"String": str(found)}, "content": str(written)} if found:
            return max(1.0, len(written) / len(found))
    return _UNBOUNDED


def _split(step: Part) -> float:
    match step:
        case {"pattern": {"String": str(found)}} if found:
            return 1.0
        case {"pattern": {"Regex": str(pattern)}} if pattern in _KNOWN_PATTERNS:
            return 1.0
    return _UNBOUNDED


def _prepend(step: Part) -> float:
    return 1.0 if _is_short(step.get("prepend")) else _UNBOUNDED


def _template(step: Part) -> float:
    """A text between special tokens, once."""
    match step:
        case {"single": list(pieces), "special_tokens": dict(tokens)} if len(pieces) <= MAX_PIECES:
            texts = sum("Sequence" in piece for piece in pieces if isinstance(piece, dict))
            short = all(_is_short(token.get("ids")) for token in tokens.values() if isinstance(token, dict))
            return 1.0 if texts <= 1 and short else _UNBOUNDED
    return _UNBOUNDED


def _is_short(value: Json) -> bool:
    return isinstance(value, str | list) and len(value) <= MAX_PIECE_CHARS


def _is_plain_model(model: Json) -> bool:
    """Byte pairs are merged in n log n steps; other models look at words in other ways."""
    if not isinstance(model, dict) or model.get("type") != "BPE":
        return False
    around = (model.get("continuing_subword_prefix"), model.get("end_of_word_suffix"))
    return all(text is None or _is_short(text) for text in around)


def _longest_token(content: Part) -> int:
    model = content.get("model")
    vocabulary = model.get("vocab") if isinstance(model, dict) else None
    if isinstance(vocabulary, list):  # with a score each
        vocabulary = [entry[0] for entry in vocabulary if isinstance(entry, list) and entry]
    added = [token.get("content") for token in _added_tokens(content)]
    tokens = [*(vocabulary if isinstance(vocabulary, dict | list) else ()), *added]
    return max((len(token) for token in tokens if isinstance(token, str)), default=0)


def _added_tokens(content: Part) -> list[Part]:
    tokens = content.get("added_tokens")
    return [token for token in tokens if isinstance(token, dict)] if isinstance(tokens, list) else []


_SAME = _at_most(1)
_NORMALIZERS: Mapping[str, Growth] = dict.fromkeys(("StripAccents", "Strip"), _SAME) | {
    "NFC": _at_most(3),
    "NFD": _at_most(4),
    "NFKC": _at_most(18),
    "NFKD": _at_most(18),
    "Lowercase": _at_most(3),
    "ByteLevel": _at_most(2),
    "Prepend": _prepend,
    "Replace": _replace,
}
_PRE_TOKENIZERS: Mapping[str, Growth] = dict.fromkeys(
    ("Digits", "Metaspace", "Punctuation", "Whitespace", "WhitespaceSplit"), _SAME
) | {"ByteLevel": _at_most(2), "Split": _split}
_PROCESSORS: Mapping[str, Growth] = dict.fromkeys(
    ("ByteLevel", "BertProcessing", "RobertaProcessing"), _SAME
) | {"TemplateProcessing": _template}
_DECODERS: Mapping[str, Growth] = dict.fromkeys(
    ("ByteLevel", "ByteFallback", "Fuse", "Strip", "Metaspace", "WordPiece", "BPEDecoder"), _SAME
) | {"Replace": _replace}
