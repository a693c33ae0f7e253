"""OpenAI's Responses: what a body means as a chat, and how a reply is written.

Pure. A dialect is no more than this: the chat that it asks for goes the way of every chat.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, ClassVar

import msgspec
from msgspec import UNSET, UnsetType

from swarm.errors import SwarmError
from swarm.gateway import sse
from swarm.gateway.choices import Choice, News, NumberedCall
from swarm.gateway.dialect import Dialect, ReplyHeader
from swarm.gateway.refusal import Refusal, bad, only_text, refusal_of
from swarm.gateway.responses_schema import (
    IncompleteDetails,
    InputItem,
    ItemStatus,
    OutputCall,
    OutputItem,
    OutputMessage,
    OutputText,
    Response,
    ResponseError,
    ResponseEvent,
    ResponsesRequest,
    ResponseStatus,
    ResponseText,
    ResponseToolChoice,
    ResponseUsage,
    SchemaFormat,
)
from swarm.gateway.schema import (
    ChatMessage,
    ChatRequest,
    ContentPart,
    FunctionCall,
    FunctionDefinition,
    JsonObjectFormat,
    JsonSchema,
    JsonSchemaFormat,
    NamedFunction,
    NamedToolChoice,
    Provenance,
    TextFormat,
    Tool,
    ToolCall,
    shared_fields,
)

_LOGPROBS = "message.output_text.logprobs"  # of `include`
_TEXT_PARTS = frozenset({"input_text", "output_text", "text", "summary_text"})
_NAMES = {  # fields of the chat that a body means, and those of the body
    "messages": "input",
    "max_completion_tokens": "max_output_tokens",
    "response_format": "text.format",
    "reasoning_effort": "reasoning.effort",
}


def chat_of(body: ResponsesRequest, earlier: Sequence[ChatMessage]) -> ChatRequest:
    """The chat that is asked for; `earlier` is what was said before. Raises a `Refusal`."""
    for name in ("conversation", "prompt"):
        if getattr(body, name) is not None:
            raise bad(name, f"{name} is not supported", "Send everything as input.", "unsupported")
    offered = _tools(body)
    choice, names = _tool_choice(body.tool_choice)
    if names is not None:
        offered = [tool for tool in offered if tool.function.name in names]
    logprobs = _LOGPROBS in (body.include or ()) or bool(body.top_logprobs)
    return ChatRequest(
        **shared_fields(body),
        messages=_messages(body, earlier),
        max_completion_tokens=body.max_output_tokens,
        tools=offered or None,
        tool_choice=choice,
        response_format=_format(body.text),
        reasoning_effort=body.reasoning.effort if body.reasoning else None,
        logprobs=logprobs,
        top_logprobs=body.top_logprobs,
        chat_template_kwargs=body.chat_template_kwargs,
    )


@contextmanager
def naming() -> Iterator[None]:
    """Refusals of the chat name the fields of the body that asked for it."""
    try:
        yield
    except SwarmError as error:
        refusal = refusal_of(error)
        for name, ours in _NAMES.items():
            if refusal.param is not None and refusal.param.partition("[")[0].partition(".")[0] == name:
                refusal.param = ours
        raise refusal from error


def _messages(body: ResponsesRequest, earlier: Sequence[ChatMessage]) -> list[ChatMessage]:
    told = [ChatMessage(role="system", content=body.instructions)] if body.instructions else []
    told += earlier
    items = [InputItem(role="user", content=body.input)] if isinstance(body.input, str) else body.input
    for place, item in enumerate(items):
        param = f"input[{place}]"
        if item.type == "message":
            role = item.role or _missing(f"{param}.role")
            told.append(ChatMessage(role=role, content=_content(item.content, f"{param}.content")))
        elif item.type == "function_call":
            _add_call(told, item, param)
        elif item.type == "function_call_output":
            output = _content(item.output, f"{param}.output")
            told.append(ChatMessage(role="tool", tool_call_id=item.call_id, content=output))
        elif item.type != "reasoning":
            raise bad(
                f"{param}.type",
                f"An item {item.type[:80]!r} cannot be read",
                "Send messages, calls of functions and their results.",
                "unsupported",
            )
    return told


def _add_call(told: list[ChatMessage], item: InputItem, param: str) -> None:
    """A call belongs to what the assistant said before it."""
    call = ToolCall(
        id=item.call_id or _missing(f"{param}.call_id"),
        function=FunctionCall(name=item.name or _missing(f"{param}.name"), arguments=item.arguments or "{}"),
    )
    if told and told[-1].role == "assistant":
        last = told.pop()
        told.append(msgspec.structs.replace(last, tool_calls=[*(last.tool_calls or ()), call]))
    else:
        told.append(ChatMessage(role="assistant", tool_calls=[call]))


def _content(content: str | list[ContentPart] | None, param: str) -> str | list[ContentPart]:
    if isinstance(content, str):
        return content
    if content is None:
        raise _missing_field(param)
    for place, part in enumerate(content):
        if part.type not in _TEXT_PARTS or part.text is None:
            raise only_text(f"{param}[{place}]", part.type)
    return [ContentPart(type="text", text=part.text) for part in content]


def _missing(param: str) -> Any:  # noqa: ANN401 - gives nothing
    raise _missing_field(param)


def _missing_field(param: str) -> Refusal:
    return bad(param, f"{param} is missing", "Send it.", "missing_field")


def _tools(body: ResponsesRequest) -> list[Tool]:
    offered = []
    for place, tool in enumerate(body.tools or ()):
        param = f"tools[{place}]"
        if tool.type != "function":
            raise _no_tool(f"{param}.type", tool.type)
        if tool.name is None:
            raise _missing_field(f"{param}.name")
        function = FunctionDefinition(
            name=tool.name, description=tool.description, parameters=tool.parameters, strict=tool.strict
        )
        offered.append(Tool(function=function))
    return offered


def _no_tool(param: str, kind: str) -> Refusal:
    return bad(
        param, f"There is no built-in tool {kind[:80]!r} here", "Offer functions of your own.", "unsupported"
    )


def _tool_choice(choice: str | ResponseToolChoice | None) -> tuple[Any, set[str | None] | None]:
    """As a chat has it, and the names of the tools that it leaves, if not all."""
    if not isinstance(choice, ResponseToolChoice):
        return choice, None
    if choice.type == "function":
        name = choice.name or _missing("tool_choice.name")
        return NamedToolChoice(function=NamedFunction(name=name)), None
    if choice.type != "allowed_tools":
        raise _no_tool("tool_choice", choice.type)
    return choice.mode or "auto", {tool.name for tool in choice.tools or ()}


def _format(text: ResponseText | None) -> TextFormat | JsonObjectFormat | JsonSchemaFormat | None:
    form = text.format if text else None
    if isinstance(form, SchemaFormat):
        return JsonSchemaFormat(json_schema=JsonSchema(name=form.name, schema=form.schema))
    return form


@dataclass(slots=True)
class ResponsesDialect(Dialect):
    """POST /v1/responses. The items of a reply are kept as they grow."""

    tells_state: ClassVar[bool] = True

    head: ReplyHeader
    body: ResponsesRequest
    sampled: Mapping[str, float]  # temperature and top_p, as they are
    items: list[OutputItem] = field(default_factory=list)
    _told: int = 0
    _status: ResponseStatus = "in_progress"
    _error: ResponseError | None = None

    def events(self, news: News) -> list[bytes]:
        told = self._begin() if not self._told else []
        if news.text or news.logprobs:
            told += self._say(news)
        for numbered in news.calls:
            told += [*self._close("completed"), *self._call(numbered)]
        if news.finish_reason is not None:
            if not self.items:
                told += self._open()
            self._status = "incomplete" if news.finish_reason == "length" else "completed"
            told += self._close("incomplete" if news.finish_reason == "length" else "completed")
        return told

    def aside(self, swarm: Provenance) -> list[bytes]:
        return []  # told with the last event

    def last(self, choices: Sequence[Choice], swarm: Provenance | UnsetType) -> list[bytes]:
        return [self._event(f"response.{self._status}", response=self.whole(choices, swarm))]

    def failed(self, refusal: Refusal, choices: Sequence[Choice]) -> list[bytes]:
        begun = self._begin() if not self._told else []
        self._status = "cancelled" if refusal.reason == "cancelled" else "failed"
        self._error = ResponseError(code=refusal.reason or "server_error", message=str(refusal))
        return [*begun, self._event("response.failed", response=self.whole(choices, UNSET))]

    def whole(self, choices: Sequence[Choice], swarm: Provenance | UnsetType) -> Response:
        usage = self.head.usage(choices)
        return self._response(
            swarm=swarm,
            usage=ResponseUsage(
                input_tokens=usage.prompt_tokens,
                output_tokens=usage.completion_tokens,
                total_tokens=usage.total_tokens,
            ),
        )

    def _begin(self) -> list[bytes]:
        begun = self._response()
        return [self._event(f"response.{name}", response=begun) for name in ("created", "in_progress")]

    def _open(self) -> list[bytes]:
        place = len(self.items)
        item = OutputMessage(id=self._item_id("msg"))
        self.items.append(item)
        told = [self._event("response.output_item.added", output_index=place, item=item)]
        item.content = [OutputText()]
        return [*told, self._of_text("content_part.added", part=item.content[0])]

    def _say(self, news: News) -> list[bytes]:
        opened = [] if self._open_message() else self._open()
        if message := self._open_message():
            message.content[0].text += news.text
            message.content[0].logprobs = [*message.content[0].logprobs, *news.logprobs]
        return [*opened, self._of_text("output_text.delta", delta=news.text, logprobs=list(news.logprobs))]

    def _close(self, status: ItemStatus) -> list[bytes]:
        """End the message that grows, if there is one."""
        message = self._open_message()
        if message is None:
            return []
        part = message.content[0]
        done = self._of_text("output_text.done", text=part.text, logprobs=part.logprobs)
        part_done = self._of_text("content_part.done", part=part)
        message.status = status
        place = len(self.items) - 1
        return [done, part_done, self._event("response.output_item.done", output_index=place, item=message)]

    def _call(self, numbered: NumberedCall) -> list[bytes]:
        place, call = len(self.items), numbered.call
        item = OutputCall(id=self._item_id("fc"), call_id=numbered.id, name=call.name)
        self.items.append(item)
        at: dict[str, Any] = {"item_id": item.id, "output_index": place}
        arguments = "response.function_call_arguments"
        told = [
            self._event("response.output_item.added", output_index=place, item=item),
            self._event(f"{arguments}.delta", **at, delta=call.arguments),
            self._event(f"{arguments}.done", **at, name=call.name, arguments=call.arguments),
        ]
        item.arguments, item.status = call.arguments, "completed"
        return [*told, self._event("response.output_item.done", output_index=place, item=item)]

    def _open_message(self) -> OutputMessage | None:
        last = self.items[-1] if self.items else None
        return last if isinstance(last, OutputMessage) and last.status == "in_progress" else None

    def _item_id(self, kind: str) -> str:
        return f"{kind}_{self.head.id.partition('_')[2]}_{len(self.items)}"

    def _of_text(self, name: str, **fields: Any) -> bytes:  # noqa: ANN401 - of an event
        place = len(self.items) - 1
        item_id = self.items[place].id
        return self._event(f"response.{name}", item_id=item_id, output_index=place, content_index=0, **fields)

    def _event(self, kind: str, **fields: Any) -> bytes:  # noqa: ANN401 - of an event
        event = ResponseEvent(type=kind, sequence_number=self._told, **fields)
        self._told += 1
        return sse.event(msgspec.json.encode(event), kind)

    def _response(self, **fields: Any) -> Response:  # noqa: ANN401 - of a response
        body = self.body
        return Response(
            id=self.head.id,
            created_at=self.head.created,
            status=self._status,
            error=self._error,
            incomplete_details=IncompleteDetails() if self._status == "incomplete" else None,
            model=self.head.model,
            output=self.items,
            instructions=body.instructions,
            max_output_tokens=body.max_output_tokens,
            temperature=self.sampled["temperature"],
            top_p=self.sampled["top_p"],
            text=body.text or ResponseText(),
            tools=body.tools or [],
            tool_choice=body.tool_choice or "auto",
            parallel_tool_calls=body.parallel_tool_calls is not False,
            previous_response_id=body.previous_response_id,
            store=body.store is not False,
            background=bool(body.background),
            truncation=body.truncation or "disabled",
            metadata=body.metadata or {},
            reasoning=body.reasoning,
            top_logprobs=body.top_logprobs,
            service_tier=body.service_tier,
            user=body.user,
            **fields,
        )
