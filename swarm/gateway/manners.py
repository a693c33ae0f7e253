"""What a chat template takes, found by rendering probes with it, and messages shaped to that.

Templates differ in more than words: some read a message's text, others walk over its parts; some refuse a
system role, neighbours of one role, or ids of calls that are not nine letters and digits.
"""

import hashlib
import string
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from swarm.errors import RequestError
from swarm.model.tokenizer import Tokenizer

Message: TypeAlias = Mapping[str, Any]  # its content is text, text parts, or None

_MARK = "swarmprobe"
_SHORT_ID_CHARS = 9
_ALPHABET = string.ascii_letters + string.digits
_TOOL = {
    "type": "function",
    "function": {"name": "f", "description": "", "parameters": {"type": "object", "properties": {}}},
}


@dataclass(frozen=True, slots=True)
class Manners:
    """What a template takes. The defaults are those of most."""

    parts: frozenset[str] = frozenset()  # the roles whose content it reads in parts only
    takes_system: bool = True
    alternates: bool = False  # it refuses neighbours of one role
    joins_results: bool = False  # it refuses neighbouring results of calls
    short_call_ids: bool = False


def manners_of(tokenizer: Tokenizer, *, has_tools: bool) -> Manners:
    """Ask a template some ten questions. `has_tools`: it has a place for them."""
    probe = _Probe(tokenizer, has_tools)
    if not probe.learn("user"):  # then nothing is to be found out about it
        return Manners()
    takes_system = probe.learn("system", after=probe.said("user"))
    probe.learn("assistant", probe.said("user"))
    turns = probe.said("user"), probe.said("assistant"), probe.said("user")
    alternates = probe.render(turns) is not None and probe.render([turns[0], turns[2]]) is None
    short_call_ids = joins_results = False
    if has_tools:
        short, long = "a" * _SHORT_ID_CHARS, "call_0123456789abcdef"
        short_call_ids = probe.calls(long) is None and probe.calls(short) is not None
        call_id = short if short_call_ids else long
        probe.learn("tool", *_call(probe, [call_id]), tool_call_id=call_id)
        joins_results = probe.calls(call_id) is not None and probe.calls(call_id, call_id[::-1]) is None
    return Manners(frozenset(probe.parts), takes_system, alternates, joins_results, short_call_ids)


class _Probe:
    """Renders short conversations, and learns in which form each role's content is read."""

    def __init__(self, tokenizer: Tokenizer, has_tools: bool) -> None:
        self._tokenizer = tokenizer
        self._tools = [_TOOL] if has_tools else None
        self.parts: set[str] = set()

    def render(self, messages: Sequence[Message]) -> str | None:
        """None when the template refuses."""
        try:
            return self._tokenizer.render_chat(list(messages), tools=self._tools)
        except RequestError:
            return None

    def said(self, role: str, **fields: Any) -> Message:  # noqa: ANN401 - as templates read them
        return _with_parts({"role": role, "content": _MARK[::-1], **fields}, self.parts)

    def learn(self, role: str, *before: Message, after: Message | None = None, **fields: str) -> bool:
        """Find out how content of the role is read; whether it is at all."""
        for content in (_MARK, [{"type": "text", "text": _MARK}]):
            message = {"role": role, "content": content, **fields}
            text = self.render([*before, message, *([after] if after else [])]) or ""
            if _MARK in text and repr("type") not in text.partition(_MARK)[0][-20:]:
                if isinstance(content, list):
                    self.parts.add(role)
                return True
        return False

    def calls(self, *ids: str) -> str | None:
        return self.render([*_call(self, ids), *(self.said("tool", tool_call_id=each) for each in ids)])


def _call(probe: _Probe, ids: Sequence[str]) -> list[Message]:
    calls = [{"id": each, "type": "function", "function": {"name": "f", "arguments": {}}} for each in ids]
    return [probe.said("user"), {"role": "assistant", "tool_calls": calls}]


def shaped(messages: Sequence[Message], manners: Manners) -> list[dict[str, Any]]:
    """The same conversation in the form that a template takes."""
    told = list(messages) if manners.takes_system else _folded(messages)
    joined = {"user", "assistant"} if manners.alternates else set()
    told = _joined(told, joined | ({"tool"} if manners.joins_results else set()))
    if manners.short_call_ids:
        told = [_with_short_ids(message) for message in told]
    return [_with_parts(message, manners.parts) for message in told]


def join(first: Any, second: Any) -> Any:  # noqa: ANN401 - contents: text, parts or None
    """Two contents as one."""
    if not first or not second:
        return first or second
    if isinstance(first, str) and isinstance(second, str):
        return f"{first}\n\n{second}"
    return [*_as_parts(first), *_as_parts(second)]


def as_text(content: Any) -> str:  # noqa: ANN401 - text, parts or None
    """A content as one text, its parts in lines."""
    return "\n".join(part["text"] for part in content) if isinstance(content, list) else content or ""


def _folded(messages: Sequence[Message]) -> list[Message]:
    """Without a system: what it says stands before what the user says next."""
    told: list[Message] = []
    held: Any = None
    for message in messages:
        if message["role"] == "system":
            held = join(held, message["content"])
            continue
        if held and message["role"] == "user":
            message = {**message, "content": join(held, message["content"])}
        elif held:
            told.append({"role": "user", "content": held})
        held = None
        told.append(message)
    return [*told, {"role": "user", "content": held}] if held else told


def _joined(messages: Sequence[Message], roles: set[str]) -> list[Message]:
    told: list[Message] = []
    for message in messages:
        if told and message["role"] in roles and told[-1]["role"] == message["role"]:
            last = told.pop()
            calls = [*last.get("tool_calls", ()), *message.get("tool_calls", ())]
            content = join(last.get("content"), message.get("content"))
            message = {**message, **last, "content": content, **({"tool_calls": calls} if calls else {})}
        told.append(message)
    return told


def _with_short_ids(message: Message) -> Message:
    changed = dict(message)
    if "tool_call_id" in message:
        changed["tool_call_id"] = _short_id(message["tool_call_id"])
    if "tool_calls" in message:
        changed["tool_calls"] = [{**call, "id": _short_id(call["id"])} for call in message["tool_calls"]]
    return changed


def _short_id(call_id: str) -> str:
    """The same for the same; one that has the form stays."""
    if len(call_id) == _SHORT_ID_CHARS and call_id.isascii() and call_id.isalnum():
        return call_id
    digest = hashlib.sha256(call_id.encode(errors="surrogatepass")).digest()
    return "".join(_ALPHABET[byte % len(_ALPHABET)] for byte in digest[:_SHORT_ID_CHARS])


def _with_parts(message: Message, roles: set[str] | frozenset[str]) -> dict[str, Any]:
    content = message.get("content")
    if content is None:
        return dict(message)
    return {**message, "content": _as_parts(content) if message["role"] in roles else as_text(content)}


def _as_parts(content: Any) -> list[dict[str, str]]:  # noqa: ANN401 - text or parts
    return [{"type": "text", "text": content}] if isinstance(content, str) else list(content)
