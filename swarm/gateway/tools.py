"""Calls of tools in a model's own words: how they are asked for, and how they are found in a stream.

Pure. Two formats are known: Hermes and Qwen write ``<tool_call>{...}</tool_call>`` anywhere in a
reply, Llama 3 makes the whole reply one JSON object (or several, with ``;`` between). Nothing that
may be a call is let through before it is certain; what turns out to be none is text, unchanged.
"""

import json
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any, Literal, Protocol

Style = Literal["hermes", "llama"]

OPENING, CLOSING = "<tool_call>", "</tool_call>"
_LLAMA_MARK = "<|python_tag|>"


@dataclass(frozen=True, slots=True)
class Call:
    """A call the model made; `arguments` is the JSON of an object."""

    name: str
    arguments: str


Part = str | Call  # of a reply, in order


class ToolParser(Protocol):
    """Takes a reply's text piece by piece and gives what is certain."""

    def push(self, text: str) -> list[Part]: ...

    def finish(self) -> list[Part]: ...


def style_of(template: str) -> Style | None:
    """The format that a chat template teaches; None when it has no place for tools."""
    if "tools" not in template:
        return None
    if OPENING not in template and ("python_tag" in template or '"parameters"' in template):
        return "llama"
    return "hermes"


def make_parser(style: Style, names: Collection[str]) -> ToolParser:
    """A parser for replies that may call the functions `names`."""
    return HermesParser(names) if style == "hermes" else LlamaParser(names)


class HermesParser:
    """``<tool_call>\\n{"name": ..., "arguments": {...}}\\n</tool_call>`` within text.

    White space alone before, between and after calls means nothing and is dropped.
    """

    def __init__(self, names: Collection[str]) -> None:
        self._names = names
        self._held = ""  # may be, or begin, a call
        self._space = ""  # may turn out to stand beside a call
        self._beside_call = True
        self._called = False

    def push(self, text: str) -> list[Part]:
        self._held += text
        parts: list[Part] = []
        while (start := self._held.find(OPENING)) >= 0:
            end = self._held.find(CLOSING, start)
            if end < 0:
                break
            parts += self._text(self._held[:start])
            parts += self._call(self._held[start : end + len(CLOSING)])
            self._held = self._held[end + len(CLOSING) :]
        keep = len(self._held) - start if start >= 0 else _overlap(self._held, OPENING)
        cut = len(self._held) - keep
        parts += self._text(self._held[:cut])
        self._held = self._held[cut:]
        return parts

    def finish(self) -> list[Part]:
        rest = self._space + self._held
        self._space = self._held = ""
        return [] if not rest or (self._called and rest.isspace()) else [rest]

    def _text(self, text: str) -> list[Part]:
        text = self._space + text
        if self._beside_call and not text.strip():
            self._space = text
            return []
        self._space, self._beside_call = "", False
        return [text]

    def _call(self, text: str) -> list[Part]:
        call = _read_call(text.removeprefix(OPENING).removesuffix(CLOSING), self._names)
        if call is None:
            return self._text(text)
        self._space, self._beside_call, self._called = "", True, True
        return [call]


class LlamaParser:
    """A reply that is nothing but ``{"name": ..., "parameters": {...}}``, once or several times."""

    def __init__(self, names: Collection[str]) -> None:
        self._names = names
        self._held = ""
        self._is_text = False

    def push(self, text: str) -> list[Part]:
        if self._is_text:
            return [text] if text else []
        self._held += text
        begun = self._held.lstrip()
        if not begun or begun.startswith(("{", _LLAMA_MARK)) or _LLAMA_MARK.startswith(begun):
            return []
        self._is_text = True
        return self.finish()

    def finish(self) -> list[Part]:
        held, self._held = self._held, ""
        if self._is_text or not held:
            return [held] if held else []
        calls: list[Part] = []
        rest = held.strip().removeprefix(_LLAMA_MARK).lstrip()
        while rest:
            text, rest = _first_object(rest)
            call = _read_call(text, self._names)
            if call is None:
                return [held]
            calls.append(call)
        return calls or [held]


def hermes_prompt(tools: list[dict[str, Any]]) -> str:
    """What to tell a model whose own template has no place for tools (the words of Qwen 2.5's)."""
    listed = "\n".join(json.dumps(tool, ensure_ascii=False) for tool in tools)
    return (
        "# Tools\n\nYou may call one or more functions to assist with the user query.\n\n"
        "You are provided with function signatures within <tools></tools> XML tags:\n"
        f"<tools>\n{listed}\n</tools>\n\n"
        "For each function call, return a json object with function name and arguments within "
        "<tool_call></tool_call> XML tags:\n"
        '<tool_call>\n{"name": <function-name>, "arguments": <args-json-object>}\n</tool_call>'
    )


def write_call(name: str, arguments: Any) -> str:  # noqa: ANN401 - any JSON
    """A call as Hermes writes it."""
    call = json.dumps({"name": name, "arguments": arguments}, ensure_ascii=False)
    return f"{OPENING}\n{call}\n{CLOSING}"


def _read_call(text: str, names: Collection[str]) -> Call | None:
    """The call in a JSON text; None when it is broken or of a function nobody offered."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return None
    if not isinstance(value, dict) or value.get("name") not in names:
        return None
    arguments = value.get("arguments", value.get("parameters", {}))
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments)
        except (ValueError, RecursionError):
            return None
    if not isinstance(arguments, dict):
        return None
    return Call(value["name"], json.dumps(arguments, ensure_ascii=False))


def _first_object(text: str) -> tuple[str, str]:
    """The first JSON value of a text and what follows it, without a separating ``;``."""
    try:
        _, end = json.JSONDecoder().raw_decode(text)
    except (ValueError, RecursionError):
        return text, ""
    return text[:end], text[end:].lstrip().removeprefix(";").lstrip()


def _overlap(text: str, mark: str) -> int:
    """Length of the longest end of `text` that is a beginning of `mark`."""
    lengths = range(min(len(text), len(mark) - 1), 0, -1)
    return next((length for length in lengths if text.endswith(mark[:length])), 0)
