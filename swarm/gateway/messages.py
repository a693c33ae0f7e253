"""Anthropic's Messages: what a body means as a chat, and how a reply and an error are written.

Pure. A dialect is no more than this: the chat that it asks for goes the way of every chat.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import msgspec
from msgspec import UNSET, UnsetType

from swarm.gateway import sse
from swarm.gateway.choices import Choice, News, NumberedCall
from swarm.gateway.dialect import Dialect, ReplyHeader
from swarm.gateway.messages_schema import (
    AnthropicMessage,
    Block,
    CountTokensRequest,
    InnerBlock,
    InputJsonDelta,
    InputMessage,
    MessagesError,
    MessagesErrorDetail,
    MessagesEvent,
    MessagesRequest,
    MessagesTool,
    MessagesToolChoice,
    MessagesUsage,
    ReplyBlock,
    StopDelta,
    StopReason,
    TextBlock,
    TextDelta,
    ToolUseBlock,
)
from swarm.gateway.refusal import Refusal, bad, only_text
from swarm.gateway.schema import (
    ChatMessage,
    ChatRequest,
    ContentPart,
    FunctionCall,
    FunctionDefinition,
    JsonSchema,
    JsonSchemaFormat,
    NamedFunction,
    NamedToolChoice,
    Provenance,
    Tool,
    ToolCall,
    shared_fields,
)

PATH = "/v1/messages"
_THOUGHTS = frozenset({"thinking", "redacted_thinking"})
_ERRORS = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
}


def chat_of(body: MessagesRequest) -> ChatRequest:
    """The chat that is asked for. Raises a `Refusal`."""
    chat = ChatRequest(
        **shared_fields(body),
        messages=_messages(body),
        max_tokens=body.max_tokens,
        tools=_tools(body.tools or ()),
        tool_choice=_tool_choice(body.tool_choice),
        chat_template_kwargs=body.chat_template_kwargs,
    )
    if config := body.output_config:
        chat.reasoning_effort = config.effort
        if config.format is not None:
            schema = JsonSchema(name="schema", schema=config.format.schema)
            chat.response_format = JsonSchemaFormat(json_schema=schema)
    if body.stop_sequences:
        more = [body.stop] if isinstance(body.stop, str) else body.stop or []
        chat.stop = [*body.stop_sequences, *more]
    if body.messages[-1].role == "assistant":  # the reply goes on with its words
        chat.continue_final_message, chat.add_generation_prompt = True, False
    return chat


def counted(body: CountTokensRequest) -> ChatRequest:
    """The chat whose tokens are to be counted. Raises a `Refusal`."""
    given = {name: getattr(body, name) for name in ("model", "messages", "system", "tools", "tool_choice")}
    return chat_of(MessagesRequest(**given, max_tokens=1))


def error_body(refusal: Refusal, request_id: str | None = None) -> bytes:
    """The JSON of an answer of 400 and above."""
    kind = _ERRORS.get(refusal.status, "api_error" if refusal.status >= 500 else "invalid_request_error")
    detail = MessagesErrorDetail(type=kind, message=str(refusal))
    return msgspec.json.encode(MessagesError(error=detail, request_id=request_id))


def _messages(body: MessagesRequest) -> list[ChatMessage]:
    told = [ChatMessage(role="system", content=_text(body.system, "system"))] if body.system else []
    for place, message in enumerate(body.messages):
        param = f"messages[{place}].content"
        if isinstance(message.content, str):
            told.append(ChatMessage(role=message.role, content=message.content))
        elif message.role == "assistant":
            told.append(_said(message.content, param))
        else:
            told += _asked(message, message.content, param)
    return told


def _said(blocks: Sequence[Block], param: str) -> ChatMessage:
    """What the assistant said before, with the tools it used."""
    calls: list[ToolCall] = []
    texts: list[Block] = []
    for place, block in enumerate(blocks):
        if block.type == "tool_use":
            arguments = msgspec.json.encode(block.input or {}).decode()
            name = block.name or _missing(f"{param}[{place}].name")
            function = FunctionCall(name=name, arguments=arguments)
            calls.append(ToolCall(id=block.id or _missing(f"{param}[{place}].id"), function=function))
        elif block.type not in _THOUGHTS:
            texts.append(block)
    content = _text(texts, param) if texts or not calls else None
    return ChatMessage(role="assistant", content=content, tool_calls=calls or None)


def _asked(message: InputMessage, blocks: Sequence[Block], param: str) -> Iterator[ChatMessage]:
    """Results of tools are messages of their own, in order."""
    texts: list[Block] = []
    for place, block in enumerate(blocks):
        if block.type != "tool_result":
            texts.append(block)
            continue
        if texts:
            yield ChatMessage(role=message.role, content=_text(texts, param))
            texts = []
        call_id = block.tool_use_id or _missing(f"{param}[{place}].tool_use_id")
        result = _text(block.content or "", f"{param}[{place}].content")
        yield ChatMessage(role="tool", tool_call_id=call_id, content=result)
    if texts or not blocks:
        yield ChatMessage(role=message.role, content=_text(texts, param))


def _text(content: str | Sequence[InnerBlock], param: str) -> str | list[ContentPart]:
    if isinstance(content, str):
        return content
    for place, block in enumerate(content):
        if block.type != "text" or block.text is None:
            raise only_text(f"{param}[{place}]", block.type)
    return [ContentPart(type="text", text=block.text) for block in content]


def _missing(param: str) -> Any:  # noqa: ANN401 - gives nothing
    raise bad(param, f"{param} is missing", "Send it.", "missing_field")


def _tools(tools: Sequence[MessagesTool]) -> list[Tool] | None:
    for place, tool in enumerate(tools):
        if tool.type != "custom":
            raise bad(
                f"tools[{place}].type",
                f"There is no built-in tool {tool.type[:80]!r} here",
                "Offer tools of your own.",
                "unsupported",
            )
    functions = (
        FunctionDefinition(name=tool.name, description=tool.description, parameters=tool.input_schema)
        for tool in tools
    )
    return [Tool(function=function) for function in functions] or None


def _tool_choice(choice: MessagesToolChoice | None) -> Any:  # noqa: ANN401 - as a chat has it
    if choice is None or choice.type in ("auto", "none"):
        return choice and choice.type
    if choice.type == "any":
        return "required"
    return NamedToolChoice(function=NamedFunction(name=choice.name or _missing("tool_choice.name")))


@dataclass(slots=True)
class MessagesDialect(Dialect):
    """POST /v1/messages. Blocks are kept as they grow."""

    call_prefix: ClassVar[str] = "toolu"
    ping: ClassVar[bytes] = sse.event(b'{"type": "ping"}', "ping") + b"\n"

    head: ReplyHeader
    blocks: list[ReplyBlock] = field(default_factory=list)
    _begun: bool = False
    _text: TextBlock | None = None  # the block that grows

    def events(self, news: News) -> list[bytes]:
        told = [] if self._begun else self._begin()
        if news.text:
            if self._text is None:
                self._text = TextBlock()
                told.append(self._start(self._text))
            self._text.text += news.text
            told.append(self._of_block("content_block_delta", delta=TextDelta(news.text)))
        for numbered in news.calls:
            told += [*self._stop(), *self._use(numbered)]
        if news.finish_reason is not None:
            told += self._stop()
        return told

    def aside(self, swarm: Provenance) -> list[bytes]:
        return []  # told with the last event

    def last(self, choices: Sequence[Choice], swarm: Provenance | UnsetType) -> list[bytes]:
        reason, sequence = _why(choices[0])
        end = _event(
            "message_delta",
            delta=StopDelta(stop_reason=reason, stop_sequence=sequence),
            usage=self._usage(choices),
            swarm=swarm,
        )
        return [end, _event("message_stop")]

    def failed(self, refusal: Refusal, choices: Sequence[Choice]) -> list[bytes]:
        return [sse.event(error_body(refusal), "error")]

    def whole(self, choices: Sequence[Choice], swarm: Provenance | UnsetType) -> AnthropicMessage:
        reason, sequence = _why(choices[0])
        return self._message(self.blocks, reason, sequence, self._usage(choices), swarm)

    def _begin(self) -> list[bytes]:
        self._begun = True
        usage = MessagesUsage(input_tokens=self.head.prompt_tokens, output_tokens=0)
        return [_event("message_start", message=self._message([], None, None, usage))]

    def _use(self, numbered: NumberedCall) -> list[bytes]:
        call = numbered.call
        block = ToolUseBlock(id=numbered.id, name=call.name)
        told = [
            self._start(block),
            self._of_block("content_block_delta", delta=InputJsonDelta(call.arguments)),
            self._of_block("content_block_stop"),
        ]
        block.input = msgspec.json.decode(call.arguments)
        return told

    def _start(self, block: ReplyBlock) -> bytes:
        self.blocks.append(block)
        return self._of_block("content_block_start", content_block=block)

    def _stop(self) -> list[bytes]:
        if self._text is None:
            return []
        self._text = None
        return [self._of_block("content_block_stop")]

    def _of_block(self, name: str, **fields: Any) -> bytes:  # noqa: ANN401 - of an event
        return _event(name, index=len(self.blocks) - 1, **fields)

    def _message(
        self,
        content: list[ReplyBlock],
        reason: StopReason | None,
        sequence: str | None,
        usage: MessagesUsage,
        swarm: Provenance | UnsetType = UNSET,
    ) -> AnthropicMessage:
        return AnthropicMessage(
            id=self.head.id,
            model=self.head.model,
            content=content,
            stop_reason=reason,
            stop_sequence=sequence,
            usage=usage,
            swarm=swarm,
        )

    def _usage(self, choices: Sequence[Choice]) -> MessagesUsage:
        usage = self.head.usage(choices)
        return MessagesUsage(input_tokens=usage.prompt_tokens, output_tokens=usage.completion_tokens)


def _event(kind: str, **fields: Any) -> bytes:  # noqa: ANN401 - of an event
    return sse.event(msgspec.json.encode(MessagesEvent(type=kind, **fields)), kind)


def _why(choice: Choice) -> tuple[StopReason, str | None]:
    if choice.finish_reason == "tool_calls":
        return "tool_use", None
    if choice.stopped_by is not None:
        return "stop_sequence", choice.stopped_by
    return ("max_tokens" if choice.finish_reason == "length" else "end_turn"), None
