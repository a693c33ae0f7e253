"""The bodies and events of /v1/responses, as OpenAI has them.

Pure: msgspec structs. What only advises is accepted and without effect; items, parts and tools are read
leniently, so that what cannot be done is refused by its name.
"""

from typing import Annotated, Any, Literal

from msgspec import UNSET, Meta, Struct, UnsetType, field

from swarm.gateway.schema import (
    AnyRequest,
    ContentPart,
    Count,
    FunctionName,
    JsonObject,
    JsonObjectFormat,
    Provenance,
    Text,
    TextFormat,
    TokenLogprob,
)

Parts = Annotated[list[ContentPart], Meta(max_length=1024)]


class InputItem(Struct, kw_only=True):
    """One item of a conversation: a message, a call, or its result. Reasoning is passed over."""

    type: str = "message"
    role: Literal["system", "developer", "user", "assistant"] | None = None
    content: str | Parts | None = None
    call_id: str | None = None
    name: str | None = None
    arguments: str | None = None
    output: str | Parts | None = None
    id: str | None = None  # copied by clients from replies, and without effect, as these:
    status: str | None = None
    phase: str | None = None
    summary: list[Any] | None = None
    encrypted_content: str | None = None


class ResponseTool(Struct, kw_only=True):
    """A function that the model may call."""

    type: str
    name: FunctionName | None = None
    description: str | None = None
    parameters: JsonObject | None = None
    strict: bool | None = None


class AllowedTool(Struct, kw_only=True):
    """One of those that a choice leaves."""

    type: str
    name: str | None = None


class ResponseToolChoice(Struct, kw_only=True):
    """The function to be called, or those that may be."""

    type: str
    name: str | None = None
    mode: Literal["auto", "required"] | None = None
    tools: Annotated[list[AllowedTool], Meta(max_length=128)] | None = None


class SchemaFormat(Struct, tag_field="type", tag="json_schema", kw_only=True):
    """JSON that fits a schema. `strict` makes no difference: the reply always fits."""

    name: str = "schema"
    schema: JsonObject | None = None
    description: str | None = None
    strict: bool | None = None


class ResponseText(Struct, kw_only=True):
    """The form of the text."""

    format: TextFormat | JsonObjectFormat | SchemaFormat = field(default_factory=TextFormat)
    verbosity: str | None = None


class Reasoning(Struct, kw_only=True):
    """`effort` is handed to the chat template."""

    effort: str | None = None
    summary: str | None = None
    generate_summary: str | None = None


class ResponseStreamOptions(Struct, kw_only=True):
    """Without effect."""

    include_obfuscation: bool | None = None


class ResponsesRequest(AnyRequest, kw_only=True):
    """The body of POST /v1/responses."""

    input: Text | Annotated[list[InputItem], Meta(min_length=1, max_length=4096)]
    instructions: str | None = None
    max_output_tokens: Count | None = None
    tools: Annotated[list[ResponseTool], Meta(max_length=128)] | None = None
    tool_choice: Literal["none", "auto", "required"] | ResponseToolChoice | None = None
    parallel_tool_calls: bool | None = None
    text: ResponseText | None = None
    previous_response_id: str | None = None
    store: bool | None = None
    metadata: Annotated[dict[str, str], Meta(max_length=64)] | None = None
    reasoning: Reasoning | None = None
    include: Annotated[list[str], Meta(max_length=64)] | None = None
    top_logprobs: Annotated[int, Meta(ge=0, le=20)] | None = None
    chat_template_kwargs: JsonObject | None = None
    truncation: Literal["auto", "disabled"] | None = None
    conversation: str | JsonObject | None = None  # refused, as this:
    prompt: JsonObject | None = None
    stream_options: ResponseStreamOptions | None = None  # accepted and without effect, as these:
    max_tool_calls: int | None = None
    service_tier: str | None = None
    user: str | None = None
    prompt_cache_key: str | None = None
    prompt_cache_retention: str | None = None
    safety_identifier: str | None = None


class OutputText(Struct, tag_field="type", tag="output_text", kw_only=True):
    """A text of the reply."""

    text: str = ""
    annotations: list[JsonObject] = []
    logprobs: list[TokenLogprob] = []


ItemStatus = Literal["in_progress", "completed", "incomplete"]


class OutputMessage(Struct, tag_field="type", tag="message", kw_only=True):
    """What the model says."""

    id: str
    status: ItemStatus = "in_progress"
    role: Literal["assistant"] = "assistant"
    content: list[OutputText] = []


class OutputCall(Struct, tag_field="type", tag="function_call", kw_only=True):
    """A call that the model made."""

    id: str
    call_id: str
    name: str
    arguments: str = ""
    status: ItemStatus = "in_progress"


OutputItem = OutputMessage | OutputCall


class InputTokensDetails(Struct, kw_only=True):
    """None is cached."""

    cached_tokens: int = 0
    cache_write_tokens: int = 0


class OutputTokensDetails(Struct, kw_only=True):
    """None is told apart as reasoning."""

    reasoning_tokens: int = 0


class ResponseUsage(Struct, kw_only=True):
    """Tokens of the reply."""

    input_tokens: int
    output_tokens: int
    total_tokens: int
    input_tokens_details: InputTokensDetails = field(default_factory=InputTokensDetails)
    output_tokens_details: OutputTokensDetails = field(default_factory=OutputTokensDetails)


class ResponseError(Struct, kw_only=True):
    """Why a reply failed."""

    code: str
    message: str


class IncompleteDetails(Struct, kw_only=True):
    """Why a reply is not whole."""

    reason: Literal["max_output_tokens"] = "max_output_tokens"


ResponseStatus = Literal["in_progress", "completed", "incomplete", "failed", "cancelled"]


class Response(Struct, kw_only=True):
    """A reply, and what was asked for."""

    id: str
    object: Literal["response"] = "response"
    created_at: int
    status: ResponseStatus
    error: ResponseError | None = None
    incomplete_details: IncompleteDetails | None = None
    model: str
    output: list[OutputItem]
    usage: ResponseUsage | None = None
    instructions: str | None = None
    max_output_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    text: ResponseText
    tools: list[ResponseTool]
    tool_choice: str | ResponseToolChoice
    parallel_tool_calls: bool
    previous_response_id: str | None = None
    store: bool
    background: bool
    truncation: str
    metadata: dict[str, str]
    reasoning: Reasoning | None = None
    top_logprobs: int | None = None
    service_tier: str | None = None
    user: str | None = None
    swarm: Provenance | UnsetType = UNSET


class ResponseEvent(Struct, kw_only=True, omit_defaults=True):
    """One event of a stream; which fields it has follows from its type."""

    type: str
    sequence_number: int
    response: Response | UnsetType = UNSET
    output_index: int | UnsetType = UNSET
    item: OutputItem | UnsetType = UNSET
    item_id: str | UnsetType = UNSET
    content_index: int | UnsetType = UNSET
    part: OutputText | UnsetType = UNSET
    delta: str | UnsetType = UNSET
    text: str | UnsetType = UNSET
    logprobs: list[TokenLogprob] | UnsetType = UNSET
    name: str | UnsetType = UNSET
    arguments: str | UnsetType = UNSET


class DeletedResponse(Struct, kw_only=True):
    """A reply was forgotten."""

    id: str
    object: Literal["response"] = "response"
    deleted: bool = True
