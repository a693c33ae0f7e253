"""The OpenAPI document, made from the very structs that bodies are read into and written from.

Pure.
"""

from collections.abc import Sequence
from typing import Any

import msgspec

from swarm.config import software_version
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
)  # fmt: skip
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
        "data": {"type": "string", "description": "A chunk, or an error, as JSON; the last is [DONE]."},
    },
    "required": ["data"],
}


def document(models: Sequence[str]) -> Schema:
    """The whole document (OpenAPI 3.1) of a gateway that serves these models."""
    _, components = msgspec.json.schema_components(_BODIES, ref_template="#/components/schemas/{name}")
    for kind in (ChatRequest, CompletionRequest, TokenizeRequest, DetokenizeRequest, EmbeddingRequest):
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
        "/v1/responses/{id}": {
            "get": {
                "operationId": "resume",
                "summary": "Read a reply, from wherever its reader lost it.",
                "parameters": [reply_id, last_seen, stream, after],
                "responses": _answers(_reply_body(ChatCompletion, TextCompletion), _GENERATION_ERRORS),
            }
        },
        "/v1/responses/{id}/cancel": {
            "post": {
                "operationId": "cancel",
                "summary": "Stop a reply.",
                "parameters": [reply_id],
                "responses": _answers(_json_body(Cancelled), (401, 403, 404)),
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


def _generation(name: str, request: type, whole: type, chunk: type) -> Schema:
    last_seen = _parameter("Last-Event-ID", "header", {"type": "string"}, required=False)
    return {
        "operationId": name,
        "summary": "Generate; with `stream` as server-sent events, whose last is [DONE].",
        "parameters": [last_seen],
        "requestBody": {"required": True, **_json_body(request)},
        "responses": _answers(_reply_body(whole, chunk), _GENERATION_ERRORS),
    }


def _asking(name: str, summary: str, request: type, answer: type) -> Schema:
    return {
        "operationId": name,
        "summary": summary,
        "requestBody": {"required": True, **_json_body(request)},
        "responses": _answers(_json_body(answer), _GENERATION_ERRORS),
    }


def _reading(name: str, summary: str, body: type, errors: tuple[int, ...]) -> Schema:
    return {"operationId": name, "summary": summary, "responses": _answers(_json_body(body), errors)}


def _answers(good: Schema, errors: tuple[int, ...]) -> Schema:
    answers: Schema = {"200": {"description": "Done.", **good}}
    for status in errors:
        answer: Schema = {"description": _ERRORS[status], **_json_body(ErrorBody)}
        if status in (429, 503):
            answer["headers"] = _RETRY_AFTER
        answers[str(status)] = answer
    return answers


def _reply_body(whole: type, chunk: type) -> Schema:
    kinds = [_reference(kind) for kind in dict.fromkeys((whole, chunk))]
    either: Schema = kinds[0] if len(kinds) == 1 else {"anyOf": kinds}
    events = {"text/event-stream": {"schema": _EVENT}}
    return {"content": {"application/json": {"schema": either}, **events}}


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
