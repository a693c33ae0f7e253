"""Conversations as the model's chat template wants them, tools and their results included.

Knows OpenAI's messages and the two ways a model can be told of tools: by its own template, or, where
that has no place for them, in the system message.

Texts become token ids, and are refused before they are tokenised whole when they are too long for the model.
Tokenising takes a second and some hundred megabytes for a few megabytes of text. What has more bytes than
the longest tokens could hold is refused unseen; a long text is counted piece by piece first.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from swarm.errors import ContextOverflow
from swarm.gateway import tools
from swarm.gateway.body import check_depth
from swarm.gateway.manners import Manners, as_text, join, manners_of, shaped
from swarm.gateway.refusal import bad, only_text
from swarm.gateway.schema import ChatMessage, ChatRequest, Tool
from swarm.model.guarded_text import Guard, Part
from swarm.model.tokenizer import Tokenizer

PIECE_CHARS = 2**16
COSTLY_BYTES = 2**20
DENSE_TOKEN_BYTES = 16  # on average, over a text of more than that: only runs of spaces have more
CUT_TOKENS = 64  # by which the pieces on both sides of a cut may differ from the whole
_OWN_NAMES = frozenset({"messages", "tools", "add_generation_prompt", "continue_final_message", "self"})


@dataclass(frozen=True, slots=True)
class Encoder:
    """The tokenizer of a model with room for so many tokens."""

    tokenizer: Tokenizer
    context_length: int
    longest_token_bytes: int

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        """Token ids. Raises `ContextOverflow` when it does not fit, `RequestError` for broken Unicode."""
        if len(text.encode(errors="surrogatepass")) > self._max_bytes:
            raise self._too_long(f"more than {self._max_bytes} bytes")
        if len(text) > PIECE_CHARS:
            self._count(text)
        return self.tokenizer.encode(text, add_special_tokens=add_special_tokens)

    def encode_parts(self, parts: Iterable[Part]) -> list[int]:
        """Token ids of a prompt in parts. Raises as `encode`."""
        parts = list(parts)
        if sum(len(part.text.encode(errors="surrogatepass")) for part in parts) > self._max_bytes:
            raise self._too_long(f"more than {self._max_bytes} bytes")
        ids: list[int] = []
        for part in parts:
            if len(part.text) > PIECE_CHARS:
                self._count(part.text)
            ids += self.tokenizer.encode(part.text, add_special_tokens=False, plain=part.plain)
            if len(ids) > self.context_length:
                raise self._too_long(f"more than {self.context_length} tokens")
        return ids

    @property
    def _max_bytes(self) -> int:
        """More than the context can hold; and for a costly text, more than language or code fits into it."""
        costly = max(COSTLY_BYTES, self.context_length * DENSE_TOKEN_BYTES)
        return min(self.context_length * self.longest_token_bytes, costly)

    def _count(self, text: str) -> None:
        tokens, allowed = 0, self.context_length
        for start in range(0, len(text), PIECE_CHARS):
            piece = text[start : start + PIECE_CHARS]
            tokens += len(self.tokenizer.encode(piece, add_special_tokens=False))
            allowed += CUT_TOKENS
            if tokens > allowed:
                raise self._too_long(f"more than {self.context_length} tokens")

    def _too_long(self, size: str) -> ContextOverflow:
        return ContextOverflow(
            f"The prompt has {size}; the model's context holds {self.context_length}", "Shorten the prompt."
        )


def encoder_of(tokenizer: Tokenizer, context_length: int) -> Encoder:
    """Looks at every token once. A spelling is never shorter than the bytes it stands for."""
    spellings = (tokenizer.id_to_token(token_id) or "" for token_id in range(tokenizer.vocab_size))
    return Encoder(tokenizer, context_length, max((len(each.encode()) for each in spellings), default=1))


def tool_style(tokenizer: Tokenizer, offered: Sequence[Tool]) -> tools.Style | None:
    """The format in which this model will call the tools; None when there are none."""
    if not offered:
        return None
    return tools.style_of(tokenizer.template_source(with_tools=True)) or "hermes"


def learn_manners(tokenizer: Tokenizer) -> Manners:
    """What the model's chat template takes. Renders it some times."""
    return manners_of(tokenizer, has_tools=_has_place(tokenizer))


def encode_chat(body: ChatRequest, encoder: Encoder, offered: Sequence[Tool], manners: Manners) -> list[int]:
    """The token ids of a chat's prompt. Raises a `Refusal` naming the message that cannot be told."""
    tokenizer = encoder.tokenizer
    variables = dict(body.chat_template_kwargs or {})
    check_depth(variables, "chat_template_kwargs")
    for name in _OWN_NAMES & variables.keys():
        raise bad(
            f"chat_template_kwargs.{name}", f"chat_template_kwargs may not set {name!r}", "Leave it out."
        )
    if body.reasoning_effort is not None:
        variables.setdefault("reasoning_effort", body.reasoning_effort)
    has_place = _has_place(tokenizer)
    messages = [
        _message(message, place, in_text=not has_place) for place, message in enumerate(body.messages)
    ]
    listed = [msgspec.to_builtins(tool) for tool in offered]
    if listed and not has_place:
        messages = _with_tool_prompt(messages, listed)
    guard = Guard(() if body.allow_special_tokens else tokenizer.special_tokens)
    told = guard.mark([shaped(messages, manners), listed, variables])
    text = tokenizer.render_chat(
        told[0],
        tools=told[1] if listed and has_place else None,
        add_generation_prompt=body.add_generation_prompt is not False,
        continue_final_message=bool(body.continue_final_message),
        **told[2],
    )
    return encoder.encode_parts(guard.parts(text))


def _has_place(tokenizer: Tokenizer) -> bool:
    """Whether the template knows tools."""
    return tools.style_of(tokenizer.template_source(with_tools=True)) is not None


def _message(message: ChatMessage, place: int, *, in_text: bool) -> dict[str, Any]:
    """A message as templates read it. `in_text`: the template knows no tools, so calls become text."""
    content = _content(message, place)
    role = "system" if message.role == "developer" else message.role
    told: dict[str, Any] = {"role": role, "content": content}
    calls = [
        (call.function.name, _arguments(call.function.arguments, f"messages[{place}].tool_calls"))
        for call in message.tool_calls or []
    ]
    if in_text and role == "tool":
        return {"role": "user", "content": f"<tool_response>\n{as_text(content)}\n</tool_response>"}
    if in_text and calls:
        told["content"] = "\n".join([as_text(content), *(tools.write_call(*call) for call in calls)]).strip()
    elif calls:
        told["tool_calls"] = [
            {"id": call.id, "type": "function", "function": {"name": name, "arguments": arguments}}
            for call, (name, arguments) in zip(message.tool_calls or [], calls, strict=True)
        ]
    for name in ("name", "tool_call_id", "reasoning_content"):
        if getattr(message, name) is not None:
            told[name] = getattr(message, name)
    return told


def _content(message: ChatMessage, place: int) -> str | list[dict[str, str]] | None:
    param = f"messages[{place}].content"
    if message.content is None:
        if message.role == "assistant" and message.tool_calls:
            return None
        raise bad(param, f"The {message.role}'s message has no content", "Send text.", "missing_field")
    if isinstance(message.content, str):
        return message.content
    for part in message.content:
        if part.type != "text" or part.text is None:
            raise only_text(param, part.type)
    return [{"type": "text", "text": part.text or ""} for part in message.content]


def _arguments(text: str, param: str) -> Any:  # noqa: ANN401 - any JSON; templates expect an object
    try:
        arguments = msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeEncodeError, RecursionError):
        return text
    check_depth(arguments, param)
    return arguments


def _with_tool_prompt(messages: list[dict[str, Any]], listed: list[dict[str, Any]]) -> list[dict[str, Any]]:
    first, prompt = messages[0], tools.hermes_prompt(listed)
    if first["role"] == "system":
        return [{**first, "content": join(first["content"], prompt)}, *messages[1:]]
    return [{"role": "system", "content": prompt}, *messages]
