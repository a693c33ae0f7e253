"""The addresses of the HTTP interface and what answers each. Wiring only: the work is done elsewhere."""

import secrets
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial

import msgspec
from aiohttp import web

from swarm.gateway import messages, responses, sse
from swarm.gateway.admission import Admission, Workbench
from swarm.gateway.body import BodyRules, read_body
from swarm.gateway.choices import Choice
from swarm.gateway.dialect import ChatDialect, Dialect, ReplyHeader, TextDialect
from swarm.gateway.embeddings import answer, embed
from swarm.gateway.messages import MessagesDialect
from swarm.gateway.messages_schema import CountTokensRequest, MessagesRequest, TokenCount
from swarm.gateway.metrics import GatewayMetrics
from swarm.gateway.middleware import KEY, NOTES
from swarm.gateway.models import HostedModel
from swarm.gateway.openapi import document
from swarm.gateway.refusal import Refusal, bad
from swarm.gateway.replies import Conversations, ReplyStore
from swarm.gateway.responses import ResponsesDialect
from swarm.gateway.responses_schema import DeletedResponse, ResponsesRequest
from swarm.gateway.schema import (
    Cancelled,
    ChatRequest,
    CommonRequest,
    CompletionRequest,
    Detokenized,
    DetokenizeRequest,
    EmbeddingRequest,
    Health,
    ModelList,
    Tokenized,
    TokenizeRequest,
)
from swarm.gateway.streams import LiveReply, ReplyPlan
from swarm.gateway.structured_output import Grammar, OutputFormat
from swarm.gateway.tools import make_parser
from swarm.gateway.translate import Runner, Task, chat_task, completion_task, count_chat, detokenize, tokenize
from swarm.metrics import CONTENT_TYPE

# So long a stream's headers wait for its first event, so that an early failure has a status of its own.
HEADERS_WAIT_S = 3.0

Keep = Callable[[str, Sequence[Choice]], None]  # of a reply that is whole: its id, what was said


@dataclass(frozen=True, slots=True)
class Api:
    """The handlers of one gateway."""

    models: Mapping[str, HostedModel]
    gate: Admission
    replies: ReplyStore
    conversations: Conversations
    instruments: GatewayMetrics
    bench: Workbench
    deadline_s: float
    rules: BodyRules

    def routes(self) -> Sequence[web.RouteDef]:
        """All addresses but the page's."""
        return [
            web.post("/v1/chat/completions", self.chat),
            web.post("/v1/completions", self.complete),
            web.post("/v1/responses", self.respond),
            web.post(messages.PATH, self.message),
            web.post(f"{messages.PATH}/count_tokens", self.count_tokens),
            web.get("/v1/responses/{id}", self.resume),
            web.delete("/v1/responses/{id}", self.delete),
            web.post("/v1/responses/{id}/cancel", self.cancel),
            web.post("/v1/embeddings", self.embed),
            web.post("/tokenize", self.tokenize),
            web.post("/detokenize", self.detokenize),
            web.get("/v1/models", self.list_models),
            web.get("/v1/models/{id:.+}", self.show_model),
            web.get("/livez", self.livez),
            web.get("/readyz", self.readyz),
            web.get("/health", self.readyz),
            web.get("/metrics", self.scrape),
            web.get("/openapi.json", self.openapi),
        ]

    async def chat(self, request: web.Request) -> web.StreamResponse:
        """POST /v1/chat/completions"""
        if "Last-Event-ID" in request.headers:
            return await self._go_on(request, request.headers["Last-Event-ID"])
        body = await read_body(request, ChatRequest, self.rules)
        return await self._converse(request, body, "chatcmpl-", lambda head, task: ChatDialect(head))

    async def respond(self, request: web.Request) -> web.StreamResponse:
        """POST /v1/responses"""
        if "Last-Event-ID" in request.headers:
            return await self._go_on(request, request.headers["Last-Event-ID"])
        body = await read_body(request, ResponsesRequest, self.rules)
        owner, earlier = request[KEY].name, body.previous_response_id
        chat = responses.chat_of(body, self.conversations.get(earlier, owner) if earlier else [])

        def begin(head: ReplyHeader, task: Task) -> Dialect:
            sampling = task.requests[0].sampling
            sampled = {"temperature": sampling.temperature, "top_p": sampling.top_p}
            return ResponsesDialect(head, msgspec.structs.replace(body, input=""), sampled)

        def keep(reply_id: str, choices: Sequence[Choice]) -> None:
            said = [*chat.messages[bool(body.instructions) :], choices[0].message()]
            self.conversations.add(reply_id, owner, said)

        with responses.naming():
            return await self._converse(request, chat, "resp_", begin, None if body.store is False else keep)

    async def message(self, request: web.Request) -> web.StreamResponse:
        """POST /v1/messages"""
        if "Last-Event-ID" in request.headers:
            return await self._go_on(request, request.headers["Last-Event-ID"])
        chat = messages.chat_of(await read_body(request, MessagesRequest, self.rules))
        return await self._converse(request, chat, "msg_", lambda head, task: MessagesDialect(head))

    async def count_tokens(self, request: web.Request) -> web.Response:
        """POST /v1/messages/count_tokens"""
        chat = messages.counted(await read_body(request, CountTokensRequest, self.rules))
        hosted = self._hosted(chat.model)
        return _json(TokenCount(input_tokens=await count_chat(chat, hosted, self._admit(request, chat))))

    async def complete(self, request: web.Request) -> web.StreamResponse:
        """POST /v1/completions"""
        if "Last-Event-ID" in request.headers:
            return await self._go_on(request, request.headers["Last-Event-ID"])
        body = await read_body(request, CompletionRequest, self.rules)
        hosted = self._hosted(body.model)
        task = await completion_task(body, hosted, self._admit(request, body))
        head = self._head("cmpl-", body, hosted, task)
        return await self._answer(request, body, hosted, task, TextDialect(head))

    async def resume(self, request: web.Request) -> web.StreamResponse:
        """GET /v1/responses/{id}"""
        reply = self.replies.get(request.match_info["id"], request[KEY].name)
        last_seen = request.headers.get("Last-Event-ID")
        by_itself = reply.plan.background and reply.plan.dialect.tells_state
        wants_stream = "text/event-stream" in request.headers.get("Accept", "")
        if last_seen is not None:
            return await self._go_on(request, last_seen, reply.id)
        if wants_stream or request.query.get("stream") == "true":
            return await self._stream(request, reply, _starting_after(request))
        if by_itself:
            return self._state(request, reply)
        return await self._whole(request, reply)

    async def cancel(self, request: web.Request) -> web.Response:
        """POST /v1/responses/{id}/cancel"""
        reply = self.replies.get(request.match_info["id"], request[KEY].name)
        reply.cancel()
        if reply.plan.dialect.tells_state:
            return self._state(request, reply)
        return _json(Cancelled(id=reply.id))

    async def delete(self, request: web.Request) -> web.Response:
        """DELETE /v1/responses/{id}"""
        reply_id, owner = request.match_info["id"], request[KEY].name
        known = self.conversations.discard(reply_id, owner)
        if not known or self.replies.find(reply_id, owner):
            reply = self.replies.get(reply_id, owner)
            reply.cancel()
            self.replies.discard(reply)
        return _json(DeletedResponse(id=reply_id))

    async def tokenize(self, request: web.Request) -> web.Response:
        """POST /tokenize"""
        body = await read_body(request, TokenizeRequest, self.rules)
        hosted = self._hosted(body.model)
        self.gate.check_rate(request[KEY])
        tokens = await tokenize(body, hosted, partial(self.bench.run, request[KEY]))
        room = hosted.client.model.config.context_length
        return _json(Tokenized(tokens=tokens, count=len(tokens), max_model_len=room))

    async def embed(self, request: web.Request) -> web.Response:
        """POST /v1/embeddings"""
        body = await read_body(request, EmbeddingRequest, self.rules)
        hosted = self._hosted(body.model)
        self.gate.check_rate(request[KEY])
        pooling, inputs = await embed(body, hosted, partial(self.bench.run, request[KEY]))
        await hosted.require_whole()
        slot = await self.gate.enter(request[KEY])
        self.instruments.note_prompt(hosted.name, sum(map(len, inputs)))
        try:
            return _json(await answer(body, hosted, pooling, inputs, self.deadline_s))
        finally:
            slot.release()

    async def detokenize(self, request: web.Request) -> web.Response:
        """POST /detokenize"""
        body = await read_body(request, DetokenizeRequest, self.rules)
        hosted = self._hosted(body.model)
        self.gate.check_rate(request[KEY])
        return _json(
            Detokenized(prompt=await detokenize(body, hosted, partial(self.bench.run, request[KEY])))
        )

    async def list_models(self, request: web.Request) -> web.Response:
        """GET /v1/models"""
        return _json(ModelList(data=[model.entry() for model in self.models.values()]))

    async def show_model(self, request: web.Request) -> web.Response:
        """GET /v1/models/{id}"""
        return _json(self._hosted(request.match_info["id"]).entry())

    async def livez(self, request: web.Request) -> web.Response:
        """GET /livez: the loop turns."""
        return web.Response(text="ok\n")

    async def readyz(self, request: web.Request) -> web.Response:
        """GET /readyz: at least one model can answer."""
        problems = [problem for model in self.models.values() if (problem := model.problem)]
        reasons = ["the gateway is about to stop"] if self.gate.draining else problems
        ready = not self.gate.draining and len(problems) < len(self.models)
        return _json(Health(ready=ready, reasons=reasons), 200 if ready else 503)

    async def scrape(self, request: web.Request) -> web.Response:
        """GET /metrics"""
        return web.Response(body=self.instruments.metrics.render(), headers={"Content-Type": CONTENT_TYPE})

    async def openapi(self, request: web.Request) -> web.Response:
        """GET /openapi.json"""
        return web.json_response(document(list(self.models)))

    def _hosted(self, name: str) -> HostedModel:
        hosted = self.models.get(name)
        if hosted is None:
            raise Refusal(
                404,
                f"There is no model {name[:80]!r} here",
                f"There are: {', '.join(self.models)}.",
                reason="model_not_found",
                param="model",
            )
        return hosted

    def _head(self, kind: str, body: CommonRequest, hosted: HostedModel, task: Task) -> ReplyHeader:
        return ReplyHeader(
            id=f"{kind}{secrets.token_hex(16)}",
            created=int(time.time()),
            model=hosted.name,
            fingerprint=f"swarm-{hosted.client.model.manifest[:12]}",
            prompt_tokens=task.prompt_tokens,
            usage_in_stream=bool(body.stream and body.stream_options and body.stream_options.include_usage),
        )

    def _admit(self, request: web.Request, body: CommonRequest) -> Runner:
        """Count the request, before any work is done for it. Raises a `Refusal`."""
        if body.stream_options is not None and not body.stream:
            raise bad("stream_options", "stream_options is set without stream", "Set stream to true.")
        self.gate.check_rate(request[KEY])
        return partial(self.bench.run, request[KEY])

    async def _converse(
        self,
        request: web.Request,
        chat: ChatRequest,
        kind: str,
        begin: Callable[[ReplyHeader, Task], Dialect],
        keep: Keep | None = None,
    ) -> web.StreamResponse:
        """Answer a chat, in whatever dialect it was asked for."""
        hosted = self._hosted(chat.model)
        task = await chat_task(chat, hosted, self._admit(request, chat))
        dialect = begin(self._head(kind, chat, hosted, task), task)
        return await self._answer(request, chat, hosted, task, dialect, keep)

    async def _answer(
        self,
        request: web.Request,
        body: CommonRequest,
        hosted: HostedModel,
        task: Task,
        dialect: Dialect,
        keep: Keep | None = None,
    ) -> web.StreamResponse:
        await hosted.require_whole()
        reply = await self._new_reply(request, body, hosted, task, dialect)
        if keep is not None:
            reply.plan = replace(reply.plan, on_end=partial(keep, reply.id))
        slot = await self.gate.enter(request[KEY])
        self.instruments.note_prompt(hosted.name, task.prompt_tokens)
        self.replies.add(reply)
        reply.start(slot)
        if body.stream:
            return await self._stream(request, reply)
        if body.background and dialect.tells_state:
            return self._state(request, reply)
        return await self._whole(request, reply)

    async def _new_reply(
        self, request: web.Request, body: CommonRequest, hosted: HostedModel, task: Task, dialect: Dialect
    ) -> LiveReply:
        vocabulary = await hosted.vocabulary() if task.tells_logprobs else None
        plan = ReplyPlan(
            head=dialect.head,
            dialect=dialect,
            client=hosted.client,
            owner=request[KEY].name,
            grammar=await self._grammar(request, hosted, task.form) if task.form else None,
            include_swarm=bool(body.include_swarm) or request.headers.get("X-Include-Swarm") == "true",
            background=bool(body.background),
            deadline_s=self.deadline_s,
        )
        choices = [
            Choice(
                index=index,
                request=each,
                echo=task.echoes[index] if task.echoes else "",
                new_call_id=lambda: f"{dialect.call_prefix}_{secrets.token_hex(12)}",
                parser=make_parser(task.tool_style, task.tool_names) if task.tool_style else None,
                token_bytes=vocabulary.token_bytes if vocabulary and task.top_logprobs is not None else None,
                prompt_scores=task.prompt_scores(index, vocabulary.token_bytes) if vocabulary else None,
            )
            for index, each in enumerate(task.requests)
        ]
        return LiveReply(plan, choices, self.instruments, task.size_bytes)

    async def _grammar(self, request: web.Request, hosted: HostedModel, form: OutputFormat) -> Grammar:
        grammars = await hosted.grammars()
        return await grammars.compile(form.grammar, form.param, request[KEY])

    async def _go_on(
        self, request: web.Request, last_seen: str, expected_id: str | None = None
    ) -> web.StreamResponse:
        """The rest of a stream that broke."""
        place = sse.parse_event_id(last_seen)
        if expected_id not in (None, place.reply_id):
            raise bad("Last-Event-ID", "Last-Event-ID is of another reply", "Ask at the address of that one.")
        return await self._stream(request, self.replies.get(place.reply_id, request[KEY].name), place.number)

    async def _wake(self, request: web.Request, reply: LiveReply) -> None:
        """Let a suspended reply go on."""
        if reply.finished or reply.running:
            return
        reply.start(await self.gate.enter(request[KEY]))

    async def _stream(self, request: web.Request, reply: LiveReply, after: int = -1) -> web.StreamResponse:
        with self._reading(request, reply):
            await self._wake(request, reply)
            await reply.first_event(HEADERS_WAIT_S)
            response = web.StreamResponse(
                headers={
                    "Content-Type": sse.CONTENT_TYPE,
                    "Cache-Control": "no-cache",
                    "X-Accel-Buffering": "no",
                }
            )
            await response.prepare(request)
            async for event in reply.events(after):
                await response.write(event)
            await response.write_eof()
        return response

    def _state(self, request: web.Request, reply: LiveReply) -> web.Response:
        """A reply as it is now, of one that needs no reader to go on."""
        with self._reading(request, reply):
            return _answer_of(reply.so_far())

    async def _whole(self, request: web.Request, reply: LiveReply) -> web.Response:
        with self._reading(request, reply):
            await self._wake(request, reply)
            return _answer_of(await reply.whole())

    @contextmanager
    def _reading(self, request: web.Request, reply: LiveReply) -> Iterator[None]:
        request[NOTES] |= {"reply": reply.id, "model": reply.plan.head.model}
        try:
            with reply.reading():
                yield
        finally:
            self.replies.sweep()


def _starting_after(request: web.Request) -> int:
    text = request.query.get("starting_after", "-1")
    if not (text == "-1" or (text.isascii() and text.isdecimal() and len(text) < 10)):
        raise bad("starting_after", f"starting_after is {text[:20]!r}", "Send the number of an event.")
    return int(text)


def _json(value: msgspec.Struct, status: int = 200) -> web.Response:
    return _answer_of(msgspec.json.encode(value), status)


def _answer_of(body: bytes, status: int = 200) -> web.Response:
    return web.Response(body=body, status=status, content_type="application/json")
