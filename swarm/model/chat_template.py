"""Renders a conversation with a model's chat template, exactly as transformers renders it.

Templates come from strangers: they run in Jinja's immutable sandbox and see nothing but plain JSON
values. The environment and the treatment of messages are those of transformers'
`utils/chat_template_utils.py`. Knows no tokenizer; the special tokens come in as strings. The sandbox keeps a
template from what is not its own, but not from taking time and memory: run a stranger's in `confined`.
"""

import json
import reprlib
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any, TypeAlias

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.runtime import Macro
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace

from swarm.errors import BrokenModel, EmptyPrompt, RequestError

Json: TypeAlias = Any  # what `json.loads` may give
Message: TypeAlias = Mapping[str, Json]  # {"role": ..., "content": ...} and whatever else the template reads

MAX_DEPTH = 100  # a tool's schema may be deep
MAX_NUMBER = 10**4000  # Python writes and reads none of 4,300 digits
MAX_WORDS_CHARS = 500  # of a template's own words
_CONTINUE_MARK = "CONTINUE_FINAL_MESSAGE_TAG "
_REASONING_FIELDS = ("reasoning_content", "thinking", "reasoning")
# What a template can run into when the messages are not of the kind it was written for.
_RENDER_ERRORS = (
    jinja2.TemplateError,
    ArithmeticError,
    AttributeError,
    LookupError,
    RecursionError,
    TypeError,
    ValueError,
)


class ChatTemplate:
    """One compiled template. `now` is the clock that `strftime_now` reads."""

    def __init__(self, source: str, *, now: Callable[[], datetime] = datetime.now) -> None:
        """Raises `BrokenModel` when `source` is not a Jinja template."""
        self._source = source
        try:
            self._template = _environment(now).from_string(source)
        except jinja2.TemplateSyntaxError as error:
            raise BrokenModel(
                f"The model's chat template has an error in line {error.lineno}: {error.message}",
                "Pull the model again, or correct chat_template.jinja in its directory.",
            ) from error

    def render(
        self,
        messages: Sequence[Message],
        *,
        add_generation_prompt: bool,
        continue_final_message: bool = False,
        tools: Sequence[Mapping[str, Any]] | None = None,
        variables: Mapping[str, Any],
    ) -> str:
        """The text of the conversation. `variables` are further names the template sees.

        Raises `EmptyPrompt` without messages, and `RequestError` with the template's own words when
        it refuses them.
        """
        if continue_final_message and add_generation_prompt:
            raise RequestError(
                "continue_final_message and add_generation_prompt exclude each other",
                "Set add_generation_prompt to false to continue the final message.",
            )
        chat = _prepare(messages)
        final = _mark_final(chat, self._source) if continue_final_message else None
        text = self._render(
            {"documents": None}
            | plain(variables)
            | {
                "messages": chat,
                "tools": plain(tools),
                "add_generation_prompt": add_generation_prompt,
            }
        )
        return text if final is None else _cut_at_mark(text, final)

    def _render(self, variables: Mapping[str, Json]) -> str:
        try:
            return self._template.render(variables)
        except _RENDER_ERRORS as error:
            raise RequestError(
                f"The model's chat template refuses these messages: {str(error)[:MAX_WORDS_CHARS]}",
                "Change the messages or their order to what the model was trained on.",
            ) from error


def _prepare(messages: Sequence[Message]) -> list[dict[str, Any]]:
    if not messages:
        raise EmptyPrompt("The conversation has no messages", "Give at least one message.")
    chat = []
    for message in messages:
        copy = plain(message)
        if not isinstance(copy, dict):
            raise RequestError(
                f"A message is {reprlib.repr(copy)}", 'Write each message as {"role": ..., "content": ...}.'
            )
        # Templates cope with a missing key and often not with a null, which some APIs send.
        chat.append(_alias_reasoning({key: value for key, value in copy.items() if value is not None}))
    return chat


def _alias_reasoning(message: dict[str, Any]) -> dict[str, Any]:
    """Give a message's reasoning under the names that templates read."""
    reasoning = next((message[field] for field in _REASONING_FIELDS if field in message), None)
    if reasoning is None:
        return message
    return {"thinking": reasoning, **message, "reasoning_content": reasoning}


def plain(value: Json, depth: int = 0) -> Json:
    """A copy made of JSON's types alone, so that a template gets hold of no method worth calling.

    Raises `RequestError` for anything else, and for lists and objects too deep in others.
    """
    if value is None or type(value) in (str, float, bool) or _is_number(value):
        return value
    if depth > MAX_DEPTH:
        raise RequestError(
            f"The conversation holds lists and objects more than {MAX_DEPTH} deep in each other",
            "Send flatter ones.",
        )
    if isinstance(value, Mapping) and all(isinstance(key, str) for key in value):
        return {str(key): plain(item, depth + 1) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item, depth + 1) for item in value]
    raise RequestError(
        f"The conversation holds a {type(value).__name__}", "Use text, numbers, lists and objects only."
    )


def _is_number(value: Json) -> bool:
    return type(value) is int and abs(value) < MAX_NUMBER


def _mark_final(chat: list[dict[str, Any]], source: str) -> str:
    """Append the mark to the text of the last message; returns that text as it was."""
    final, content = chat[-1], chat[-1].get("content")
    if "content" in source and isinstance(content, str):
        final["content"] = content + _CONTINUE_MARK
        return content
    if "content" in source and isinstance(content, list):
        for part in reversed(content):
            if isinstance(part, dict) and isinstance(part.get("text"), str):
                text: str = part["text"]
                part["text"] = text + _CONTINUE_MARK
                return text
    raise RequestError("The final message has no text to continue", "End with a message that has content.")


def _cut_at_mark(text: str, final: str) -> str:
    mark = _CONTINUE_MARK.strip()
    if mark not in text or final.strip() not in text:
        raise RequestError(
            "The model's chat template drops the final message, so it cannot be continued",
            "Set continue_final_message to false.",
        )
    place = text.rindex(mark)
    kept = text[:place]
    # Where the template trims the message, the mark's own space is gone and so is the message's.
    return kept if text.startswith(_CONTINUE_MARK, place) else kept.rstrip()


def _environment(now: Callable[[], datetime]) -> ImmutableSandboxedEnvironment:
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_GenerationTag, loopcontrols]
    )
    environment.filters["tojson"] = _tojson
    environment.globals |= {
        "raise_exception": _raise_exception,
        "strftime_now": lambda format: now().strftime(format),  # noqa: A006
        "dict": _Dict(),
        "namespace": _Namespace,
    }
    return environment


class _GenerationTag(Extension):
    """``{% generation %}`` marks what the assistant said, for training; here it renders its body."""

    tags = {"generation"}  # noqa: RUF012

    def parse(self, parser: Parser) -> nodes.Node:
        lineno = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.CallBlock(self.call_method("_body"), [], [], body).set_lineno(lineno)

    def _body(self, caller: Macro) -> str:
        return caller()


class _Dict:
    """``dict`` as templates may use it: not the type, whose attributes lead out of the sandbox."""

    def __call__(self, *args: Json, **kwargs: Json) -> dict[Any, Any]:
        return dict(*args, **kwargs)

    def fromkeys(self, *args: Json) -> dict[Any, Any]:
        return dict.fromkeys(*args)


class _Namespace(Namespace):
    """``namespace`` that refuses names with a leading underscore."""

    def __init__(*args: Json, **kwargs: Json) -> None:
        # No named parameter, so that a template may write namespace(self=...).
        self, *rest = args
        attributes = dict(*rest, **kwargs)
        for name in attributes:
            _check_attribute(name)
        Namespace.__init__(self, attributes)

    def __setitem__(self, name: str, value: Json) -> None:
        _check_attribute(name)
        super().__setitem__(name, value)


def _check_attribute(name: str) -> None:
    if name.startswith("_"):
        raise jinja2.exceptions.SecurityError(f"a namespace may not have the attribute {name!r}")


def _raise_exception(message: str) -> None:
    raise jinja2.TemplateError(message)


def _tojson(
    value: Json,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    # Jinja's own filter escapes HTML, which no model was trained on.
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )
