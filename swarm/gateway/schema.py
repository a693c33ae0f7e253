"""The bodies of the HTTP interface, as OpenAI has them, with vLLM's names for what OpenAI does not know.

Pure: msgspec structs, and the source of the published OpenAPI document. Ranges stand here, so what does not
fit is refused with its name. What only advises is accepted and without effect.
"""

from typing import Annotated, Any, Literal

from msgspec import UNSET, Meta, Struct, UnsetType

Text = Annotated[str, Meta(min_length=1)]
TokenId = Annotated[int, Meta(ge=0, le=2**31 - 1)]
Count = Annotated[int, Meta(ge=1, le=2**31 - 1)]
Bias = Annotated[float, Meta(ge=-100, le=100)]
FunctionName = Annotated[str, Meta(pattern=r"^[A-Za-z0-9_.-]{1,128}$")]
JsonObject = dict[str, Any]


class StreamOptions(Struct, kw_only=True):
    """What a stream tells besides the reply."""

    include_usage: bool = False


class StructuredOutputs(Struct, kw_only=True):
    """A form that the reply must have; exactly one of these. Names are vLLM's."""

    json: JsonObject | None = None
    regex: Text | None = None
    choice: Annotated[list[Text], Meta(min_length=1, max_length=256)] | None = None
    grammar: Annotated[Text, Meta(description="A context-free grammar in Lark's notation.")] | None = None


class AnyRequest(Struct, kw_only=True):
    """What every dialect can ask for: OpenAI's names, then vLLM's, then our own."""

    model: Text
    temperature: Annotated[float, Meta(ge=0, le=2)] | None = None
    top_p: Annotated[float, Meta(gt=0, le=1)] | None = None
    stop: Text | Annotated[list[Text], Meta(max_length=16)] | None = None
    stream: bool | None = None
    seed: Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)] | None = None
    presence_penalty: Annotated[float, Meta(ge=-2, le=2)] | None = None
    frequency_penalty: Annotated[float, Meta(ge=-2, le=2)] | None = None
    logit_bias: Annotated[dict[str, Bias], Meta(max_length=4096)] | None = None
    top_k: Annotated[int, Meta(ge=-1, le=2**31 - 1)] | None = None
    min_p: Annotated[float, Meta(ge=0, le=1)] | None = None
    repetition_penalty: Annotated[float, Meta(gt=0, le=100)] | None = None
    min_tokens: Annotated[int, Meta(ge=0, le=2**31 - 1)] | None = None
    stop_token_ids: Annotated[list[TokenId], Meta(max_length=64)] | None = None
    ignore_eos: bool | None = None
    include_stop_str_in_output: bool | None = None
    skip_special_tokens: bool | None = None
    structured_outputs: StructuredOutputs | None = None
    include_swarm: Annotated[bool, Meta(description="Tell which peers answered.")] | None = None
    prompt_logprobs: (
        Annotated[int, Meta(ge=0, le=20, description="Score the prompt; not in a stream.")] | None
    ) = None
    background: (
        Annotated[bool, Meta(description="Go on without a reader; read it at /v1/responses/{id}.")] | None
    ) = None


def shared_fields(body: AnyRequest) -> dict[str, Any]:
    """What a body of one dialect says in the words that all of them have."""
    return {name: getattr(body, name) for name in AnyRequest.__struct_fields__}


class CommonRequest(AnyRequest, kw_only=True):
    """What chat and plain completions have in common."""

    max_tokens: Count | None = None
    n: Annotated[int, Meta(ge=1, le=16)] | None = None
    stream_options: StreamOptions | None = None
    user: str | None = None  # accepted and without effect, as these:
    metadata: JsonObject | None = None
    store: bool | None = None
    service_tier: str | None = None
    prompt_cache_key: str | None = None
    prompt_cache_retention: str | None = None
    safety_identifier: str | None = None


class ContentPart(Struct, kw_only=True):
    """A part of a message. Only text can be read."""

    type: str
    text: str | None = None


class FunctionCall(Struct, kw_only=True):
    """A call that the model made: `arguments` is JSON text."""

    name: str
    arguments: str


class ToolCall(Struct, kw_only=True):
    """A call of a tool in an assistant's message."""

    id: str
    type: Literal["function"] = "function"
    function: FunctionCall


class ChatMessage(Struct, kw_only=True):
    """One message. The last fields are copied by clients from replies and make no difference."""

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | Annotated[list[ContentPart], Meta(max_length=1024)] | None = None
    name: str | None = None
    tool_calls: Annotated[list[ToolCall], Meta(max_length=128)] | None = None
    tool_call_id: str | None = None
    reasoning_content: str | None = None
    refusal: str | None = None
    annotations: list[Any] | None = None


class FunctionDefinition(Struct, kw_only=True, omit_defaults=True):
    """A function the model may call; `parameters` is a JSON schema."""

    name: FunctionName
    description: str | None = None
    parameters: JsonObject | None = None
    strict: bool | None = None


class Tool(Struct, kw_only=True):
    """A tool the model may call."""

    type: Literal["function"] = "function"
    function: FunctionDefinition


class NamedFunction(Struct, kw_only=True):
    """The name of a function."""

    name: str


class NamedToolChoice(Struct, kw_only=True):
    """The tool that the reply must call."""

    type: Literal["function"] = "function"
    function: NamedFunction


class TextFormat(Struct, tag_field="type", tag="text"):
    """No particular form."""


class JsonObjectFormat(Struct, tag_field="type", tag="json_object"):
    """Any JSON object."""


class JsonSchema(Struct, kw_only=True):
    """A named schema. `strict` makes no difference: the reply always fits."""

    name: str
    description: str | None = None
    schema: JsonObject | None = None
    strict: bool | None = None


class JsonSchemaFormat(Struct, tag_field="type", tag="json_schema"):
    """JSON that fits a schema."""

    json_schema: JsonSchema


class ChatRequest(CommonRequest, kw_only=True):
    """The body of POST /v1/chat/completions."""

    messages: Annotated[list[ChatMessage], Meta(min_length=1, max_length=4096)]
    max_completion_tokens: Count | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Meta(ge=0, le=20)] | None = None
    tools: Annotated[list[Tool], Meta(max_length=128)] | None = None
    tool_choice: Literal["none", "auto", "required"] | NamedToolChoice | None = None
    parallel_tool_calls: bool | None = None
    response_format: TextFormat | JsonObjectFormat | JsonSchemaFormat | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    chat_template_kwargs: JsonObject | None = None
    allow_special_tokens: (
        Annotated[bool, Meta(description="Take what spells a control token in a message for that token.")]
        | None
    ) = None
    reasoning_effort: str | None = None  # handed to the chat template
    modalities: list[Literal["text"]] | None = None
    verbosity: str | None = None  # accepted and without effect, as this:
    prediction: JsonObject | None = None
    functions: Annotated[list[JsonObject], Meta(max_length=0)] | None = None  # the older form of tools
    function_call: Literal["none", "auto"] | None = None  # of `functions`


class CompletionRequest(CommonRequest, kw_only=True):
    """The body of POST /v1/completions. `prompt`: text, token ids, or a list of either."""

    prompt: Text | Annotated[list[Text | TokenId | list[TokenId]], Meta(min_length=1, max_length=2**20)]
    max_tokens: Annotated[int, Meta(ge=0, le=2**31 - 1)] | None = None
    logprobs: Annotated[int, Meta(ge=0, le=20)] | None = None
    echo: bool | None = None
    best_of: Annotated[int, Meta(ge=1, le=16)] | None = None
    suffix: str | None = None


class TokenizeRequest(Struct, kw_only=True):
    """The body of POST /tokenize: a `prompt`, or `messages` as a chat has them. Names are vLLM's."""

    model: Text
    prompt: str | None = None
    messages: Annotated[list[ChatMessage], Meta(min_length=1, max_length=4096)] | None = None
    tools: Annotated[list[Tool], Meta(max_length=128)] | None = None
    add_special_tokens: bool | None = None  # to a prompt; they are added unless this is false
    add_generation_prompt: bool | None = None
    chat_template_kwargs: JsonObject | None = None


class Tokenized(Struct, kw_only=True):
    """The answer to POST /tokenize."""

    tokens: list[int]
    count: int
    max_model_len: int


class DetokenizeRequest(Struct, kw_only=True):
    """The body of POST /detokenize."""

    model: Text
    tokens: Annotated[list[TokenId], Meta(max_length=2**20)]


class Detokenized(Struct, kw_only=True):
    """The answer to POST /detokenize."""

    prompt: str


class EmbeddingRequest(Struct, kw_only=True):
    """The body of POST /v1/embeddings. `input`: text, token ids, or a list of either."""

    model: Text
    input: Text | Annotated[list[Text | TokenId | list[TokenId]], Meta(min_length=1, max_length=2**20)]
    encoding_format: Literal["float", "base64"] | None = None
    dimensions: Count | None = None
    user: str | None = None  # accepted and without effect


class Embedding(Struct, kw_only=True):
    """One vector: numbers, or as base64 of little-endian fp32."""

    object: Literal["embedding"] = "embedding"
    index: int
    embedding: list[float] | str


class EmbeddingUsage(Struct, kw_only=True):
    """Tokens of all inputs."""

    prompt_tokens: int
    total_tokens: int


class Embeddings(Struct, kw_only=True):
    """The answer to POST /v1/embeddings."""

    object: Literal["list"] = "list"
    data: list[Embedding]
    model: str
    usage: EmbeddingUsage


class Usage(Struct, kw_only=True):
    """Tokens of all choices."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int


class TopLogprob(Struct, kw_only=True):
    """A token that was likely, and how likely."""

    token: str
    logprob: float
    bytes: list[int]


class TokenLogprob(TopLogprob, kw_only=True):
    """A token of the reply, and those it was chosen among."""

    top_logprobs: list[TopLogprob]


class ChatLogprobs(Struct, kw_only=True):
    """Of a chat: one entry a token."""

    content: list[TokenLogprob]
    refusal: None = None


class TextLogprobs(Struct, kw_only=True):
    """Of a plain completion: lists of the same length."""

    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float] | None]
    text_offset: list[int]


class PromptLogprob(Struct, kw_only=True):
    """A token of the prompt, or one that was likelier there; rank 1 is the likeliest. Names are vLLM's."""

    logprob: float
    rank: int
    decoded_token: str


class SwarmHop(Struct, kw_only=True):
    """A peer of the chain that answered; times and bytes are per token."""

    peer: str
    blocks: str
    dtype: str
    quant: str
    compute_ms: float
    network_ms: float
    bytes_per_token: int


class SwarmResume(Struct, kw_only=True):
    """A peer that was lost while it answered, and what that cost."""

    at_token: int
    lost_peer: str
    reason: str
    replayed_tokens: int
    stall_s: float


class ChoiceProvenance(Struct, kw_only=True):
    """How one choice came about."""

    index: int
    hops: list[SwarmHop]
    resumes: list[SwarmResume]
    ttft_s: float | None
    tokens_per_s: float | None


class Provenance(Struct, kw_only=True):
    """How a reply came about. `audited` says whether another peer has recomputed a part of it."""

    model: str
    manifest: str
    audited: bool
    choices: list[ChoiceProvenance]


FinishReason = Literal["stop", "length", "tool_calls"]


class ChatReplyMessage(Struct, kw_only=True):
    """What the model said."""

    role: Literal["assistant"] = "assistant"
    content: str | None
    refusal: None = None
    tool_calls: list[ToolCall] | UnsetType = UNSET


class ChatChoice(Struct, kw_only=True):
    """One of the `n` replies."""

    index: int
    message: ChatReplyMessage
    logprobs: ChatLogprobs | None = None
    finish_reason: FinishReason


class ChatCompletion(Struct, kw_only=True):
    """The answer to POST /v1/chat/completions without `stream`."""

    id: str
    object: Literal["chat.completion"] = "chat.completion"
    created: int
    model: str
    choices: list[ChatChoice]
    usage: Usage
    system_fingerprint: str
    prompt_logprobs: list[dict[str, PromptLogprob] | None] | UnsetType = UNSET
    swarm: Provenance | UnsetType = UNSET


class FunctionDelta(Struct, kw_only=True):
    """A part of a call."""

    name: str | UnsetType = UNSET
    arguments: str


class ToolCallDelta(Struct, kw_only=True):
    """A part of a call; id and name come with the first part."""

    index: int
    id: str | UnsetType = UNSET
    type: Literal["function"] | UnsetType = UNSET
    function: FunctionDelta


class ChatDelta(Struct, kw_only=True):
    """What is new."""

    role: Literal["assistant"] | UnsetType = UNSET
    content: str | UnsetType | None = UNSET
    tool_calls: list[ToolCallDelta] | UnsetType = UNSET


class ChatChunkChoice(Struct, kw_only=True):
    """What is new of one choice."""

    index: int
    delta: ChatDelta
    logprobs: ChatLogprobs | None = None
    finish_reason: FinishReason | None = None


class ChatChunk(Struct, kw_only=True):
    """One event of a chat's stream."""

    id: str
    object: Literal["chat.completion.chunk"] = "chat.completion.chunk"
    created: int
    model: str
    choices: list[ChatChunkChoice]
    system_fingerprint: str
    usage: Usage | UnsetType | None = UNSET
    swarm: Provenance | UnsetType = UNSET


class TextChoice(Struct, kw_only=True):
    """One completion, or what is new of it."""

    index: int
    text: str
    logprobs: TextLogprobs | None = None
    finish_reason: FinishReason | None = None
    prompt_logprobs: list[dict[str, PromptLogprob] | None] | UnsetType = UNSET


class TextCompletion(Struct, kw_only=True):
    """The answer to POST /v1/completions, and each event of its stream."""

    id: str
    object: Literal["text_completion"] = "text_completion"
    created: int
    model: str
    choices: list[TextChoice]
    system_fingerprint: str
    usage: Usage | UnsetType | None = UNSET
    swarm: Provenance | UnsetType = UNSET


class ModelEntry(Struct, kw_only=True):
    """A model, and how many of its blocks are online."""

    id: str
    object: Literal["model"] = "model"
    created: int
    owned_by: Literal["swarm"] = "swarm"
    max_model_len: int
    manifest: str
    num_blocks: int
    whole: bool
    missing: list[str]
    replicas: int


class ModelList(Struct, kw_only=True):
    """All models of this gateway."""

    object: Literal["list"] = "list"
    data: list[ModelEntry]


class ErrorDetail(Struct, kw_only=True):
    """What went wrong, and what to do about it."""

    message: str
    type: str
    param: str | None = None
    code: str | None = None
    detail: JsonObject | UnsetType = UNSET


class ErrorBody(Struct, kw_only=True):
    """The body of every answer of 400 and above."""

    error: ErrorDetail


class Health(Struct, kw_only=True):
    """Whether requests can be answered, and why not."""

    ready: bool
    reasons: list[str]


class Cancelled(Struct, kw_only=True):
    """The reply was stopped."""

    id: str
    object: Literal["response.cancelled"] = "response.cancelled"
