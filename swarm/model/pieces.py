"""SentencePiece vocabularies, made into the library's tokenizer as transformers' `LlamaTokenizer` makes them.

For the process of `confined` only: what a stranger's protobuf and the pieces in it cost is bounded there.
Knows pieces that are merged in the order of their scores, with bytes for what no piece spells; every other
kind (unigram, a normaliser of its own) is refused.
"""

import base64
import binascii
import json
import math
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

from google.protobuf import descriptor_pb2, descriptor_pool, message, message_factory
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from swarm.errors import BrokenModel, UnsupportedModel

Json: TypeAlias = Any  # what `json.loads` may give
Piece: TypeAlias = Sequence[Any]  # text, score, kind

_CONTROL, _USER_DEFINED, _UNUSED = 3, 4, 5  # kinds of pieces, as numbered by SentencePiece and llama.cpp
_BPE = 2
_SPACE = "▁"

# The fields of sentencepiece_model.proto that are read, with their numbers and types.
_TEXT, _FLOAT, _INT, _BOOL, _BYTES = 9, 2, 5, 8, 12
_FIELDS: Mapping[str, Mapping[str, tuple[int, int, str]]] = {
    "Piece": {"piece": (1, _TEXT, ""), "score": (2, _FLOAT, ""), "type": (3, _INT, "1")},
    "Trainer": {
        "model_type": (3, _INT, "1"),
        "byte_fallback": (35, _BOOL, ""),
        "unk_id": (40, _INT, "0"),
        "bos_id": (41, _INT, "1"),
        "eos_id": (42, _INT, "2"),
    },
    "Normalizer": {
        "precompiled_charsmap": (2, _BYTES, ""),
        "add_dummy_prefix": (3, _BOOL, "true"),
        "remove_extra_whitespaces": (4, _BOOL, "true"),
        "escape_whitespaces": (5, _BOOL, "true"),
    },
}
_PARTS = {
    "pieces": (1, "Piece", 3),
    "trainer_spec": (2, "Trainer", 1),
    "normalizer_spec": (3, "Normalizer", 1),
}


def from_model(question: Json) -> Json:
    """`question["model"]`, a tokenizer.model in base64, as `from_pieces` would give it, and tokens by role.

    Raises `BrokenModel` when it is none, `UnsupportedModel` for a kind that is not known.
    """
    proto = _parsed(question["model"])
    trainer, normalizer = proto.trainer_spec, proto.normalizer_spec
    if trainer.model_type != _BPE or not trainer.byte_fallback:
        raise UnsupportedModel("its pieces are not merged with bytes for what no piece spells")
    if normalizer.precompiled_charsmap or normalizer.remove_extra_whitespaces:
        raise UnsupportedModel("it normalises texts")
    if not (normalizer.add_dummy_prefix and normalizer.escape_whitespaces):
        raise UnsupportedModel("it treats spaces in its own way")
    pieces = [(piece.piece, -float(place), piece.type) for place, piece in enumerate(proto.pieces)]
    ids = {"unk_token": trainer.unk_id, "bos_token": trainer.bos_id, "eos_token": trainer.eos_id}
    named = {role: pieces[place][0] for role, place in ids.items() if 0 <= place < len(pieces)}
    return {"content": _content(pieces, question["spaces"], shorter_first=True), "named": named}


def from_pieces(question: Json) -> Json:
    """The content of tokenizer.json for pieces with their scores.

    `question["spaces"]` says what gets a space put before it: the "first" part between added tokens, "always"
    each, or "never" any. Raises `BrokenModel` for what are no pieces.
    """
    return _content(question["pieces"], question["spaces"], shorter_first=False)


def _parsed(encoded: str) -> Any:  # noqa: ANN401 - a message of a type that is made here
    try:
        proto = _model_type()()
        proto.ParseFromString(base64.b64decode(encoded))
    except (message.DecodeError, binascii.Error) as error:
        raise BrokenModel(f"it is no SentencePiece model: {error}") from error
    if not proto.pieces:
        raise BrokenModel("it is no SentencePiece model: it has no pieces")
    return proto


def _model_type() -> Any:  # noqa: ANN401 - a type that is made here
    file = descriptor_pb2.FileDescriptorProto(name="pieces.proto", package="pieces", syntax="proto2")
    for name, fields in _FIELDS.items():
        described = file.message_type.add(name=name)
        for field, (number, type_, default) in fields.items():
            described.field.add(name=field, number=number, type=type_, label=1, default_value=default or None)
    model = file.message_type.add(name="Model")
    for field, (number, part, label) in _PARTS.items():
        model.field.add(name=field, number=number, type=11, label=label, type_name=f".pieces.{part}")
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("pieces.Model"))


def _content(pieces: Sequence[Piece], spaces: str, *, shorter_first: bool) -> dict[str, Any]:
    try:
        return _built(pieces, spaces, shorter_first=shorter_first)
    except Exception as error:  # the library raises nothing narrower
        raise BrokenModel(f"its pieces make no vocabulary: {error}") from error


def _built(pieces: Sequence[Piece], spaces: str, *, shorter_first: bool) -> dict[str, Any]:
    vocab = {text: place for place, (text, _, kind) in enumerate(pieces) if kind != _UNUSED}
    scores = {text: float(score) for text, score, _ in pieces if text in vocab}
    if not all(map(math.isfinite, scores.values())):
        raise ValueError("a score is no number")
    merges = _merges(vocab, scores, shorter_first=shorter_first)
    tokenizer = Tokenizer(models.BPE(vocab, merges, fuse_unk=True, byte_fallback=True))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(replacement=_SPACE, prepend_scheme=spaces, split=False)
    strip = [] if spaces == "never" else [decoders.Strip(" ", 1, 0)]
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace(_SPACE, " "), decoders.ByteFallback(), decoders.Fuse(), *strip]
    )
    tokenizer.add_tokens(
        [
            AddedToken(text, normalized=False, special=kind == _CONTROL)
            for text, _, kind in pieces
            if kind in (_CONTROL, _USER_DEFINED)
        ]
    )
    content: dict[str, Any] = json.loads(tokenizer.to_str())
    return content


def _merges(
    vocab: Mapping[str, int], scores: Mapping[str, float], *, shorter_first: bool
) -> list[tuple[str, str]]:
    """Every way to put a piece together from two, the best pieces first; ties as transformers breaks them."""
    found = []
    for text, score in scores.items():
        cuts = ((text[:place], text[place:]) for place in range(1, len(text)))
        whole = [(left, right) for left, right in cuts if left in vocab and right in vocab]
        found += [(score, *pair) for pair in sorted(whole, key=lambda pair: (vocab[pair[0]], vocab[pair[1]]))]
    if shorter_first:
        found.sort(key=lambda merge: (-merge[0], len(merge[1]), len(merge[2])))
    else:
        found.sort(key=lambda merge: (merge[0], len(merge[1]), len(merge[2])), reverse=True)
    return [(left, right) for _, left, right in found]
