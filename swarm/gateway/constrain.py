"""Replies of a given form: JSON, a schema, a regular expression, a grammar, or a call of a tool.

The logits are at the client, so the form is held by masking the vocabulary at every token; the
automaton is llguidance's. A mask is a function of the tokens so far, so a reply that is taken up
again after an interruption keeps its form.
"""

import json
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import llguidance
import numpy as np
import torch

from swarm.gateway.refusal import bad
from swarm.gateway.tools import CLOSING, OPENING, Style
from swarm.model.tokenizer import Tokenizer

if TYPE_CHECKING:
    from llguidance._lib import JsonCompileOptions

# The spacing that models write by themselves; free white space lets a weak one write nothing else.
_SPACING: "JsonCompileOptions" = {
    "whitespace_flexible": False,
    "item_separator": ", ",
    "key_separator": ": ",
}

Mask = Callable[[Sequence[int]], torch.Tensor]


class Vocabulary:
    """A model's tokens as bytes, and the grammars over them. Takes a second to make."""

    def __init__(self, tokenizer: Tokenizer, vocab_size: int, stop_ids: Collection[int]) -> None:
        self._vocab_size = vocab_size
        self._tokens = llguidance.LLTokenizer(
            tokenizer.to_json(), n_vocab=vocab_size, eos_token=sorted(stop_ids) or None
        )

    def token_bytes(self, token_id: int) -> bytes:
        """The bytes that a token stands for, which need not be whole characters."""
        return self._tokens.decode_bytes([token_id])

    def check(self, grammar: str, param: str) -> None:
        """Raises `Refusal` naming `param` when the grammar is broken or asks for what is not known."""
        failed, messages = llguidance.LLMatcher.validate_grammar_with_warnings(grammar, self._tokens)
        if failed:
            raise bad(param, f"{param} cannot be followed: {messages[0].strip().splitlines()[0]}")

    def mask(self, grammar: str) -> Mask:
        """Which tokens may come next, as a function of those of the reply so far: [vocab] bool."""
        return _Matcher(llguidance.LLMatcher(self._tokens, grammar, log_level=0), self._vocab_size)


class _Matcher:
    """Follows one reply. Fed with ever more tokens of it, it looks only at the new ones."""

    def __init__(self, matcher: llguidance.LLMatcher, vocab_size: int) -> None:
        self._matcher = matcher
        self._vocab_size = vocab_size
        self._consumed = 0

    def __call__(self, output_ids: Sequence[int]) -> torch.Tensor:
        self._matcher.consume_tokens(list(output_ids[self._consumed :]))
        self._consumed = len(output_ids)
        packed = np.frombuffer(self._matcher.compute_bitmask(), dtype=np.uint8)
        bits = np.unpackbits(packed, count=self._vocab_size, bitorder="little")
        return torch.from_numpy(bits).bool()


def json_grammar(schema: Mapping[str, Any]) -> str:
    """JSON that fits the schema."""
    return llguidance.LLMatcher.grammar_from_json_schema(dict(schema), overrides=_SPACING)


def regex_grammar(pattern: str) -> str:
    """Text that the whole pattern matches."""
    return llguidance.LLMatcher.grammar_from_regex(pattern)


def choice_grammar(choices: Sequence[str]) -> str:
    """Exactly one of the texts."""
    return lark_grammar("start: " + " | ".join(map(_quoted, choices)))


def lark_grammar(text: str) -> str:
    """A context-free grammar in Lark's notation."""
    return llguidance.LLMatcher.grammar_from_lark(text)


def call_grammar(style: Style, schemas: Mapping[str, Mapping[str, Any]]) -> str:
    """One call of one of the functions, whose parameters have these schemas, as the model writes it."""
    key = "parameters" if style == "llama" else "arguments"
    calls = [
        {
            "type": "object",
            "properties": {"name": {"const": name}, key: {"type": "object", **schema}},
            "required": ["name", key],
            "additionalProperties": False,
        }
        for name, schema in schemas.items()
    ]
    if style == "llama":
        return json_grammar({"anyOf": calls})
    rules = [f"call_{index}: %json {_with_spacing(call)}" for index, call in enumerate(calls)]
    either = " | ".join(f"call_{index}" for index in range(len(calls)))
    return lark_grammar(
        "\n".join(
            [
                f"start: {_quoted(OPENING + chr(10))} call {_quoted(chr(10) + CLOSING)}",
                f"call: {either}",
                *rules,
            ]
        )
    )


def _with_spacing(schema: Mapping[str, Any]) -> str:
    return json.dumps({**schema, "x-guidance": _SPACING})


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)
