"""The OpenAPI document, made from the very structs that bodies are read into and written from.

Pure.
"""

from collections.abc import Sequence
from typing import Any

import msgspec

from swarm.config import software_version
from swarm.gateway import messages
from swarm.gateway.messages_schema import (
    AnthropicMessage,
    CountTokensRequest,
    MessagesError,
    MessagesEvent,
    MessagesRequest,
    TokenCount,
)
from swarm.gateway.responses_schema import DeletedResponse, Response, ResponseEvent, ResponsesRequest
from swarm.gateway.schema import (
    Cancelled,
    ChatChunk,
    ChatCompletion,
    ChatRequest,
    CompletionRequest,
    Detokenized,
    DetokenizeRequest,
    EmbeddingRequest,
    Embeddings,
    ErrorBody,
    Health,
    ModelEntry,
    ModelList,
    TextCompletion,
    Tokenized,
    TokenizeRequest,
)

_BODIES = (
    ChatRequest, CompletionRequest, ChatCompletion, ChatChunk, TextCompletion,
    ModelEntry, ModelList, ErrorBody, Health, Cancelled,
    TokenizeRequest, Tokenized, DetokenizeRequest, Detokenized, EmbeddingRequest, Embeddings,
    ResponsesRequest, Response, ResponseEvent, DeletedResponse,
    MessagesRequest, AnthropicMessage, MessagesEvent, MessagesError, CountTokensRequest, TokenCount,
)  # fmt: skip
_ASKED_OF_A_MODEL = tuple(kind for kind in _BODIES if kind.__name__.endswith("Request"))
_ERRORS = {
    400: "The request cannot be served as it is; `param` names the field.",
    401: "There is no valid API key.",
    403: "The request does not come from this machine.",
    404: "There is no such thing here.",
    409: "The reply was cancelled.",
    413: "The body is too large.",
    415: "The body is not JSON.",
    429: "The key's limit is reached; see Retry-After.",
    503: "The swarm cannot answer now; see Retry-After.",
    504: "The reply took too long.",
}
_GENERATION_ERRORS = tuple(_ERRORS)
_RETRY_AFTER = {"Retry-After": {"schema": {"type": "integer"}, "description": "Seconds to wait."}}

Schema = dict[str, Any]

_EVENT: Schema = {  # of a stream, as a reader of server-sent events has it
    "type": "object",
    "properties": {
        "id": {"type": "string", "description": "What to send as Last-Event-ID."},
        "data": {
            "type": "string",
            "description": "An event, or an error, as JSON; of chats and completions the last is [DONE].",
        },
    },
    "required": ["data"],
}


def document(models: Sequence[str]) -> Schema:
    """The whole document (OpenAPI 3.1) of a gateway that serves these models."""
    _, components = msgspec.json.schema_components(_BODIES, ref_template="#/components/schemas/{name}")
    for kind in _ASKED_OF_A_MODEL:
        components[kind.__name__]["properties"]["model"] = {"type": "string", "enum": list(models)}
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "swarm gateway",
            "version": software_version(),
            "description": "OpenAI's interface to a swarm.",
        },
        "paths": _paths(),
        "components": {
            "schemas": components,
            "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}},
        },
        "security": [{"key": []}, {}],
    }


def _paths() -> Schema:
    reply_id = _parameter("id", "path", {"type": "string"})
    last_seen = _parameter("Last-Event-ID", "header", {"type": "string"}, required=False)
    stream = _parameter("stream", "query", {"type": "string", "enum": ["true", "false"]}, required=False)
    after = _parameter("starting_after", "query", {"type": "integer", "minimum": 0}, required=False)
    health = _answers(_json_body(Health), (403,)) | {
        "503": {"description": "Not ready.", **_json_body(Health)}
    }
    return {
        "/v1/chat/completions": {"post": _generation("chat", ChatRequest, ChatCompletion, ChatChunk)},
        "/v1/completions": {
            "post": _generation("complete", CompletionRequest, TextCompletion, TextCompletion)
        },
        messages.PATH: {
            "post": _generation("message", MessagesRequest, AnthropicMessage, MessagesEvent, MessagesError)
        },
        f"{messages.PATH}/count_tokens": {
            "post": _asking("countTokens", "Count tokens.", CountTokensRequest, TokenCount, MessagesError)
        },
        "/v1/responses": {"post": _generation("respond", ResponsesRequest, Response, ResponseEvent)},
        "/v1/responses/{id}": {
            "get": {
                "operationId": "resume",
                "summary": "Read a reply, from wherever its reader lost it.",
                "parameters": [reply_id, last_seen, stream, after],
                "responses": _answers(
                    _reply_body(ChatCompletion, TextCompletion, Response, AnthropicMessage),
                    _GENERATION_ERRORS,
                ),
            },
            "delete": {
                "operationId": "delete",
                "summary": "Forget a reply.",
                "parameters": [reply_id],
                "responses": _answers(_json_body(DeletedResponse), (401, 403, 404)),
            },
        },
        "/v1/responses/{id}/cancel": {
            "post": {
                "operationId": "cancel",
                "summary": "Stop a reply.",
                "parameters": [reply_id],
                "responses": _answers(_either(Cancelled, Response), (401, 403, 404)),
            }
        },
        "/v1/embeddings": {"post": _asking("embed", "Texts to vectors.", EmbeddingRequest, Embeddings)},
        "/tokenize": {"post": _asking("tokenize", "Text or a chat to tokens.", TokenizeRequest, Tokenized)},
        "/detokenize": {"post": _asking("detokenize", "Tokens to text.", DetokenizeRequest, Detokenized)},
        "/v1/models": {"get": _reading("listModels", "List the models.", ModelList, (401, 403))},
        "/v1/models/{id}": {
            "get": _reading("showModel", "Show one model.", ModelEntry, (401, 403, 404))
            | {"parameters": [_parameter("id", "path", {"type": "string"})]}
        },
        "/livez": {"get": {"operationId": "livez", "responses": _answers(_text_body(), (403,))}},
        "/readyz": {"get": {"operationId": "readyz", "responses": health}},
        "/health": {"get": {"operationId": "health", "responses": health}},
        "/metrics": {"get": {"operationId": "metrics", "responses": _answers(_text_body(), (401, 403))}},
        "/openapi.json": {
            "get": {"operationId": "openapi", "responses": _answers(_content({"type": "object"}), (403,))}
        },
    }


def _generation(name: str, request: type, whole: type, chunk: type, error: type = ErrorBody) -> Schema:
    last_seen = _parameter("Last-Event-ID", "header", {"type": "string"}, required=False)
    return {
        "operationId": name,
        "summary": "Generate; with `stream` as server-sent events.",
        "parameters": [last_seen],
        "requestBody": {"required": True, **_json_body(request)},
        "responses": _answers(_reply_body(whole, chunk), _GENERATION_ERRORS, error),
    }


def _asking(name: str, summary: str, request: type, answer: type, error: type = ErrorBody) -> Schema:
    return {
        "operationId": name,
        "summary": summary,
        "requestBody": {"required": True, **_json_body(request)},
        "responses": _answers(_json_body(answer), _GENERATION_ERRORS, error),
    }


def _reading(name: str, summary: str, body: type, errors: tuple[int, ...]) -> Schema:
    return {"operationId": name, "summary": summary, "responses": _answers(_json_body(body), errors)}


def _answers(good: Schema, errors: tuple[int, ...], error: type = ErrorBody) -> Schema:
    answers: Schema = {"200": {"description": "Done.", **good}}
    for status in errors:
        answer: Schema = {"description": _ERRORS[status], **_json_body(error)}
        if status in (429, 503):
            answer["headers"] = _RETRY_AFTER
        answers[str(status)] = answer
    return answers


def _reply_body(*kinds: type) -> Schema:
    body = _either(*kinds)
    body["content"]["text/event-stream"] = {"schema": _EVENT}
    return body


def _either(*kinds: type) -> Schema:
    bodies = [_reference(kind) for kind in dict.fromkeys(kinds)]
    return _content(bodies[0] if len(bodies) == 1 else {"anyOf": bodies})


def _json_body(kind: type) -> Schema:
    return _content(_reference(kind))


def _content(schema: Schema) -> Schema:
    return {"content": {"application/json": {"schema": schema}}}


def _text_body() -> Schema:
    return {"content": {"text/plain": {"schema": {"type": "string"}}}}


def _reference(kind: type) -> Schema:
    return {"$ref": f"#/components/schemas/{kind.__name__}"}


def _parameter(name: str, place: str, schema: Schema, *, required: bool = True) -> Schema:
    return {"name": name, "in": place, "required": required, "schema": schema}
