"""Replies of a given form: JSON, a schema, a regular expression, a grammar, or a call of a tool.

The logits are at the client, so the form is held by masking the vocabulary at every token; the
automaton is llguidance's. A mask is a function of the tokens so far, so a reply that is taken up
again after an interruption keeps its form.

Which form is wanted is read from the fields that can ask for one; several at once are refused.
"""

import asyncio
import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import llguidance
import numpy as np
import torch

from swarm.client.generation import Mask
from swarm.errors import RequestError
from swarm.gateway import tools
from swarm.gateway.body import check_depth
from swarm.gateway.refusal import bad
from swarm.gateway.schema import (
    ChatRequest,
    JsonObjectFormat,
    JsonSchemaFormat,
    NamedToolChoice,
    StructuredOutputs,
    Tool,
)
from swarm.gateway.tools import CLOSING, OPENING, Style
from swarm.gateway.trial import limits
from swarm.model.tokenizer import Tokenizer

if TYPE_CHECKING:
    from llguidance._lib import JsonCompileOptions

# The spacing that models write by themselves; free white space lets a weak one write nothing else.
_SPACING: "JsonCompileOptions" = {
    "whitespace_flexible": False,
    "item_separator": ", ",
    "key_separator": ": ",
}

_TOO_COMPLEX = frozenset({"ParserTooComplex", "LexerTooComplex", "InternalError"})
_SAYS_NOTHING = frozenset({"$schema", "additionalProperties", "description", "title", "type"})  # of arguments


class Vocabulary:
    """A model's tokens as bytes, and the grammars over them. Takes a second to make."""

    def __init__(self, tokenizer: Tokenizer, vocab_size: int, stop_ids: Collection[int]) -> None:
        self._vocab_size = vocab_size
        self._tokenizer = tokenizer
        self._stop_ids = sorted(stop_ids)
        # a tokenizer may name tokens, for padding say, that the model has no row for
        self._size = max(vocab_size, tokenizer.vocab_size)
        self._tokens = llguidance.LLTokenizer(
            tokenizer.to_json(), n_vocab=self._size, eos_token=self._stop_ids or None
        )

    def token_bytes(self, token_id: int) -> bytes:
        """The bytes that a token stands for, which need not be whole characters."""
        return self._tokens.decode_bytes([token_id])

    def description(self) -> dict[str, Any]:
        """All that another process needs to have the same vocabulary."""
        return {
            "tokenizer": self._tokenizer.to_json(),
            "size": self._size,
            "stop_ids": self._stop_ids,
        }

    def compile(self, grammar: str) -> "Grammar":
        """A grammar that has come through its trial. Takes as long as it took there."""
        matcher = llguidance.LLMatcher(self._tokens, grammar, log_level=0, limits=limits())
        return Grammar(matcher, self._vocab_size)


class Grammar:
    """A compiled grammar. Those who follow it share what it learns of the vocabulary."""

    def __init__(self, matcher: llguidance.LLMatcher, vocab_size: int) -> None:
        self._matcher = matcher
        self._vocab_size = vocab_size
        self.spoilt = False  # it has grown to its limit while it was followed

    def follow(self) -> Mask:
        """Which tokens may come next, as a function of those of the reply so far: [vocab] bool."""
        return _Follower(self, self._matcher.deep_copy(), self._vocab_size).mask


class _Follower:
    """Follows one reply. Fed with ever more tokens of it, it looks only at the new ones."""

    def __init__(self, grammar: Grammar, matcher: llguidance.LLMatcher, vocab_size: int) -> None:
        self._grammar = grammar
        self._matcher = matcher
        self._vocab_size = vocab_size
        self._consumed = 0

    async def mask(self, output_ids: Sequence[int]) -> torch.Tensor:
        """Computed in a thread. Raises `RequestError` when the grammar becomes too complex on its way."""
        return await asyncio.to_thread(self._mask, list(output_ids))

    def _mask(self, output_ids: list[int]) -> torch.Tensor:
        self._matcher.consume_tokens(output_ids[self._consumed :])
        self._consumed = len(output_ids)
        packed = np.frombuffer(self._matcher.compute_bitmask(), dtype=np.uint8)
        if self._matcher.is_error() and self._matcher.stop_reason() in _TOO_COMPLEX:
            self._grammar.spoilt = True
            raise RequestError(
                f"The form that was asked for became too complex after {len(output_ids)} tokens",
                "Ask for a simpler form.",
            )
        bits = np.unpackbits(packed, count=self._vocab_size, bitorder="little")
        return torch.from_numpy(bits).bool()


def json_grammar(schema: Mapping[str, Any]) -> str:
    """JSON that fits the schema."""
    # as text, because the library knows no whole number beyond 64 bits
    return llguidance.LLMatcher.grammar_from_json_schema(json.dumps(schema), overrides=_SPACING)


def regex_grammar(pattern: str) -> str:
    """Text that the whole pattern matches."""
    return llguidance.LLMatcher.grammar_from_regex(pattern)


def choice_grammar(choices: Sequence[str]) -> str:
    """Exactly one of the texts."""
    return lark_grammar("start: " + " | ".join(map(_quoted, choices)))


def lark_grammar(text: str) -> str:
    """A context-free grammar in Lark's notation."""
    return llguidance.LLMatcher.grammar_from_lark(text)


def call_grammar(
    style: Style, schemas: Mapping[str, Mapping[str, Any]], otherwise: Mapping[str, Any] | None = None
) -> str:
    """One call of one of the functions, whose parameters have these schemas, as the model writes it.

    `otherwise`: or, instead of a call, JSON of this schema.
    """
    calls = [_call_schema(style, name, schema) for name, schema in schemas.items()]
    rules = {f"call_{index}": f"%json {_with_spacing(call)}" for index, call in enumerate(calls)}
    form = "call" if style == "llama" else f"{_quoted(OPENING + chr(10))} call {_quoted(chr(10) + CLOSING)}"
    rules = {"start": form, "call": " | ".join(rules), **rules}
    if otherwise is not None:
        rules |= {"start": f"{form} | reply", "reply": f"%json {_with_spacing(otherwise)}"}
    return lark_grammar("\n".join(f"{name}: {rule}" for name, rule in rules.items()))


def _call_schema(style: Style, name: str, schema: Mapping[str, Any]) -> dict[str, Any]:
    key = "parameters" if style == "llama" else "arguments"
    definitions = {each: schema[each] for each in ("$defs", "definitions") if each in schema}
    return definitions | {  # what a schema refers to is looked for at the top
        "type": "object",
        "properties": {"name": {"const": name}, key: {"type": "object", **schema}},
        "required": ["name", key],
        "additionalProperties": False,
    }


def _with_spacing(schema: Mapping[str, Any]) -> str:
    return json.dumps({**schema, "x-guidance": _SPACING})


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


@dataclass(frozen=True, slots=True)
class OutputFormat:
    """The grammar a reply must follow, and the field that asked for it."""

    grammar: str
    param: str


def form_of_chat(
    body: ChatRequest, offered: Sequence[Tool], style: tools.Style | None
) -> OutputFormat | None:
    """The one form that a chat asks for; several are refused."""
    for place, tool in enumerate(offered):
        check_depth(tool.function.parameters, f"tools[{place}].function.parameters")
    forms = []
    if body.structured_outputs is not None:
        forms.append(form_of(body.structured_outputs))
    schema = _schema(body)
    forced = _forced(body, offered)
    if style and (forced or (offered and schema is not None)):
        # a form of the text says nothing about calls: OpenAI's own models may still make one, or must
        schemas = {tool.function.name: _parameters(tool) for tool in forced or offered}
        grammar = call_grammar(style, schemas, None if forced else schema)
        forms.append(OutputFormat(grammar, "tools" if forced else "response_format"))
    elif schema is not None:
        forms.append(OutputFormat(json_grammar(schema), "response_format"))
    if len(forms) > 1:
        raise bad(
            forms[1].param, f"{forms[0].param} and {forms[1].param} exclude each other", "Leave one out."
        )
    return forms[0] if forms else None


def _schema(body: ChatRequest) -> Mapping[str, Any] | None:
    """What the text of a reply must fit."""
    if isinstance(body.response_format, JsonObjectFormat):
        return {"type": "object"}
    if not isinstance(body.response_format, JsonSchemaFormat):
        return None
    schema = body.response_format.json_schema.schema or {"type": "object"}
    check_depth(schema, "response_format")
    return schema


def _parameters(tool: Tool) -> Mapping[str, Any]:
    """The schema of its arguments; of a tool that names none, that there are none."""
    schema = tool.function.parameters or {}
    says = {name for name, value in schema.items() if value} - _SAYS_NOTHING
    return schema if says else {"type": "object", "properties": {}, "additionalProperties": False}


def _forced(body: ChatRequest, offered: Sequence[Tool]) -> Sequence[Tool]:
    """The tools of which one must be called; none when the model is free."""
    choice = body.tool_choice
    if choice in (None, "none", "auto"):
        return []
    if not offered:
        raise bad("tool_choice", "tool_choice asks for a call, and there are no tools", "Send tools.")
    if isinstance(choice, NamedToolChoice):
        named = [tool for tool in offered if tool.function.name == choice.function.name]
        if not named:
            raise bad(
                "tool_choice", f"There is no tool named {choice.function.name!r}", "Name one of the tools."
            )
        return named
    return offered


def form_of(wanted: StructuredOutputs) -> OutputFormat:
    param = "structured_outputs"
    given = [name for name in wanted.__struct_fields__ if getattr(wanted, name) is not None]
    if len(given) != 1:
        raise bad(param, f"structured_outputs sets {len(given)} forms", "Set exactly one.")
    if wanted.json is not None:
        check_depth(wanted.json, f"{param}.json")
        return OutputFormat(json_grammar(wanted.json), f"{param}.json")
    if wanted.regex is not None:
        return OutputFormat(regex_grammar(wanted.regex), f"{param}.regex")
    if wanted.choice is not None:
        return OutputFormat(choice_grammar(wanted.choice), f"{param}.choice")
    return OutputFormat(lark_grammar(wanted.grammar or ""), f"{param}.grammar")
