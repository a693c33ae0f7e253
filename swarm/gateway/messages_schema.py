"""The bodies and events of /v1/messages, as Anthropic has them.

Pure: msgspec structs. What only advises is accepted and without effect; blocks and tools are read leniently,
so that what cannot be done is refused by its name.
"""

from typing import Annotated, Any, Literal

from msgspec import UNSET, Meta, Struct, UnsetType

from swarm.gateway.schema import AnyRequest, Count, FunctionName, JsonObject, Provenance, Text


class InnerBlock(Struct, kw_only=True):
    """A part of a result. Only text can be read."""

    type: str
    text: str | None = None
    cache_control: JsonObject | None = None  # accepted and without effect, as this:
    citations: Any = None


class Block(InnerBlock, kw_only=True):
    """A part of a message: text, a use of a tool, or its result. Thinking is passed over."""

    id: str | None = None
    name: str | None = None
    input: JsonObject | None = None
    tool_use_id: str | None = None
    content: str | Annotated[list[InnerBlock], Meta(max_length=1024)] | None = None
    is_error: bool | None = None
    thinking: str | None = None  # accepted and without effect, as these:
    signature: str | None = None
    data: str | None = None


Blocks = Annotated[list[Block], Meta(max_length=1024)]


class InputMessage(Struct, kw_only=True):
    """One message."""

    role: Literal["user", "assistant", "system"]
    content: str | Blocks


class MessagesTool(Struct, kw_only=True):
    """A tool that the model may use."""

    name: FunctionName
    type: str = "custom"
    description: str | None = None
    input_schema: JsonObject | None = None
    strict: bool | None = None
    cache_control: JsonObject | None = None


class MessagesToolChoice(Struct, kw_only=True):
    """How tools are to be used."""

    type: Literal["auto", "any", "tool", "none"]
    name: str | None = None
    disable_parallel_tool_use: bool | None = None


class MessagesFormat(Struct, kw_only=True):
    """JSON that fits a schema."""

    type: Literal["json_schema"]
    schema: JsonObject


class OutputConfig(Struct, kw_only=True):
    """The form of the text; `effort` is handed to the chat template."""

    format: MessagesFormat | None = None
    effort: str | None = None


class CountTokensRequest(Struct, kw_only=True):
    """The body of POST /v1/messages/count_tokens."""

    model: Text
    messages: Annotated[list[InputMessage], Meta(min_length=1, max_length=4096)]
    system: str | Blocks | None = None
    tools: Annotated[list[MessagesTool], Meta(max_length=128)] | None = None
    tool_choice: MessagesToolChoice | None = None
    output_config: OutputConfig | None = None
    thinking: JsonObject | None = None
    cache_control: JsonObject | None = None


class MessagesRequest(AnyRequest, kw_only=True):
    """The body of POST /v1/messages."""

    messages: Annotated[list[InputMessage], Meta(min_length=1, max_length=4096)]
    max_tokens: Count
    system: str | Blocks | None = None
    stop_sequences: Annotated[list[Text], Meta(max_length=16)] | None = None
    tools: Annotated[list[MessagesTool], Meta(max_length=128)] | None = None
    tool_choice: MessagesToolChoice | None = None
    output_config: OutputConfig | None = None
    chat_template_kwargs: JsonObject | None = None
    mcp_servers: Annotated[list[JsonObject], Meta(max_length=0)] | None = None
    thinking: JsonObject | None = None  # accepted and without effect, as these:
    metadata: JsonObject | None = None
    service_tier: str | None = None
    cache_control: JsonObject | None = None
    inference_geo: str | None = None
    speed: str | None = None


class TextBlock(Struct, tag_field="type", tag="text", kw_only=True):
    """What the model says."""

    text: str = ""
    citations: None = None


class ToolUseBlock(Struct, tag_field="type", tag="tool_use", kw_only=True):
    """A tool that the model wants to use."""

    id: str
    name: str
    input: JsonObject = {}


ReplyBlock = TextBlock | ToolUseBlock
StopReason = Literal["end_turn", "max_tokens", "stop_sequence", "tool_use"]


class MessagesUsage(Struct, kw_only=True):
    """Tokens of the reply; none is cached."""

    input_tokens: int
    output_tokens: int
    cache_creation_input_tokens: int = 0
    cache_read_input_tokens: int = 0


class AnthropicMessage(Struct, kw_only=True):
    """A reply."""

    id: str
    type: Literal["message"] = "message"
    role: Literal["assistant"] = "assistant"
    model: str
    content: list[ReplyBlock]
    stop_reason: StopReason | None
    stop_sequence: str | None
    usage: MessagesUsage
    swarm: Provenance | UnsetType = UNSET


class TextDelta(Struct, tag_field="type", tag="text_delta"):
    """More text."""

    text: str


class InputJsonDelta(Struct, tag_field="type", tag="input_json_delta"):
    """More of a tool's input, as JSON text."""

    partial_json: str


class StopDelta(Struct, kw_only=True):
    """Why the reply ends."""

    stop_reason: StopReason | None
    stop_sequence: str | None


class MessagesEvent(Struct, kw_only=True, omit_defaults=True):
    """One event of a stream; which fields it has follows from its type."""

    type: str
    message: AnthropicMessage | UnsetType = UNSET
    index: int | UnsetType = UNSET
    content_block: ReplyBlock | UnsetType = UNSET
    delta: Any = UNSET  # a `TextDelta`, an `InputJsonDelta`, or a `StopDelta`
    usage: MessagesUsage | UnsetType = UNSET
    swarm: Provenance | UnsetType = UNSET


class TokenCount(Struct, kw_only=True):
    """The answer to POST /v1/messages/count_tokens."""

    input_tokens: int


class MessagesErrorDetail(Struct, kw_only=True):
    """What went wrong, and what to do about it."""

    type: str
    message: str


class MessagesError(Struct, kw_only=True):
    """The body of every answer of 400 and above, and the last event of a stream that breaks off."""

    type: Literal["error"] = "error"
    error: MessagesErrorDetail
    request_id: str | None = None
