"""How a reply is written for a client: chat or plain completion, whole or in events.

Pure. A dialect turns `News` into the events of a stream, and choices into one body; everything else about a
reply is the same for all of them. Those of other interfaces have files of their own.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import ClassVar

import msgspec
from msgspec import UNSET, Struct, UnsetType

from swarm.gateway import sse
from swarm.gateway.choices import Choice, News, completion_tokens
from swarm.gateway.refusal import Refusal
from swarm.gateway.schema import (
    ChatChoice,
    ChatChunk,
    ChatChunkChoice,
    ChatCompletion,
    ChatDelta,
    ChatLogprobs,
    ChatReplyMessage,
    FunctionCall,
    FunctionDelta,
    Provenance,
    TextChoice,
    TextCompletion,
    TextLogprobs,
    TokenLogprob,
    ToolCall,
    ToolCallDelta,
    Usage,
)
from swarm.gateway.scores import characters, joined, text_logprobs


@dataclass(frozen=True, slots=True)
class ReplyHeader:
    """What every event and every answer of one reply says."""

    id: str
    created: int
    model: str
    fingerprint: str  # of the weights: the same seed gives the same reply on the same fingerprint
    prompt_tokens: int
    usage_in_stream: bool = False

    def usage(self, choices: Sequence[Choice]) -> Usage:
        """Tokens so far."""
        produced = completion_tokens(choices)
        return Usage(
            prompt_tokens=self.prompt_tokens,
            completion_tokens=produced,
            total_tokens=self.prompt_tokens + produced,
        )


class Dialect(ABC):
    """One way to write a reply. It hears of everything in order, so it may keep what it has told.

    A stream that breaks off ends as OpenAI's do where a dialect does not say otherwise.
    """

    head: ReplyHeader
    call_prefix: ClassVar[str] = "call"  # of the ids of calls
    ping: ClassVar[bytes] = sse.PING  # while nothing else comes
    tells_state: ClassVar[bool] = False  # `whole` can be told of a reply that has not ended, or has failed

    @abstractmethod
    def events(self, news: News) -> list[bytes]:
        """The events of a stream for what is new."""

    @abstractmethod
    def aside(self, swarm: Provenance) -> list[bytes]:
        """Who answers, told in the midst of a stream."""

    @abstractmethod
    def last(self, choices: Sequence[Choice], swarm: Provenance | UnsetType) -> list[bytes]:
        """The end of a stream that tells all."""

    @abstractmethod
    def whole(self, choices: Sequence[Choice], swarm: Provenance | UnsetType) -> Struct:
        """The body of a reply."""

    def failed(self, refusal: Refusal, choices: Sequence[Choice]) -> list[bytes]:
        """The end of a stream that breaks off."""
        return [sse.event(refusal.body())]


class OpenAiDialect(Dialect):
    """What streams of chats and of plain completions have in common."""

    @abstractmethod
    def chunk(self, usage: Usage | None = None, swarm: Provenance | UnsetType = UNSET) -> Struct:
        """An event without choices."""

    def aside(self, swarm: Provenance) -> list[bytes]:
        return [_data(self.chunk(swarm=swarm))]

    def last(self, choices: Sequence[Choice], swarm: Provenance | UnsetType) -> list[bytes]:
        usage = self.head.usage(choices) if self.head.usage_in_stream else None
        more = [_data(self.chunk(usage, swarm))] if usage is not None or swarm is not UNSET else []
        return [*more, sse.event(sse.DONE)]


@dataclass(frozen=True, slots=True)
class ChatDialect(OpenAiDialect):
    """POST /v1/chat/completions."""

    head: ReplyHeader

    def events(self, news: News) -> list[bytes]:
        deltas: list[tuple[ChatDelta, tuple[TokenLogprob, ...]]] = []
        if news.first:
            deltas.append((ChatDelta(role="assistant", content=""), ()))
        if news.text or news.logprobs:
            deltas.append((ChatDelta(content=news.text), news.logprobs))
        for numbered in news.calls:
            start = FunctionDelta(name=numbered.call.name, arguments="")
            opening = ToolCallDelta(index=numbered.index, id=numbered.id, type="function", function=start)
            rest = ToolCallDelta(
                index=numbered.index, function=FunctionDelta(arguments=numbered.call.arguments)
            )
            deltas += [(ChatDelta(tool_calls=[opening]), ()), (ChatDelta(tool_calls=[rest]), ())]
        events: list[Struct] = [
            self._chunk([ChatChunkChoice(index=news.index, delta=delta, logprobs=_chat_logprobs(logprobs))])
            for delta, logprobs in deltas
        ]
        if news.finish_reason is not None:
            last = ChatChunkChoice(index=news.index, delta=ChatDelta(), finish_reason=news.finish_reason)
            events.append(self._chunk([last]))
        return [_data(event) for event in events]

    def chunk(self, usage: Usage | None = None, swarm: Provenance | UnsetType = UNSET) -> Struct:
        chunk = self._chunk([])
        chunk.usage, chunk.swarm = usage or chunk.usage, swarm
        return chunk

    def whole(self, choices: Sequence[Choice], swarm: Provenance | UnsetType) -> Struct:
        head = self.head
        return ChatCompletion(
            id=head.id,
            created=head.created,
            model=head.model,
            choices=[self._choice(choice) for choice in choices],
            usage=head.usage(choices),
            system_fingerprint=head.fingerprint,
            prompt_logprobs=choices[0].prompt_logprobs,
            swarm=swarm,
        )

    def _choice(self, choice: Choice) -> ChatChoice:
        calls = [
            ToolCall(
                id=numbered.id,
                function=FunctionCall(name=numbered.call.name, arguments=numbered.call.arguments),
            )
            for numbered in choice.calls
        ]
        text = choice.text
        message = ChatReplyMessage(content=None if calls and not text else text, tool_calls=calls or UNSET)
        return ChatChoice(
            index=choice.index,
            message=message,
            logprobs=_chat_logprobs(choice.logprobs),
            finish_reason=choice.finish_reason or "stop",
        )

    def _chunk(self, choices: list[ChatChunkChoice]) -> ChatChunk:
        head = self.head
        return ChatChunk(
            id=head.id,
            created=head.created,
            model=head.model,
            choices=choices,
            system_fingerprint=head.fingerprint,
            usage=None if head.usage_in_stream else UNSET,
        )


@dataclass(frozen=True, slots=True)
class TextDialect(OpenAiDialect):
    """POST /v1/completions."""

    head: ReplyHeader

    def events(self, news: News) -> list[bytes]:
        text = news.echo + news.text
        if not (text or news.logprobs or news.finish_reason):
            return []
        choice = TextChoice(
            index=news.index,
            text=text,
            logprobs=joined(news.echo_logprobs, _text_logprobs(news.logprobs, news.offset)),
            finish_reason=news.finish_reason,
        )
        return [_data(self._body([choice], None if self.head.usage_in_stream else UNSET))]

    def chunk(self, usage: Usage | None = None, swarm: Provenance | UnsetType = UNSET) -> Struct:
        body = self._body([], usage or (None if self.head.usage_in_stream else UNSET))
        body.swarm = swarm
        return body

    def whole(self, choices: Sequence[Choice], swarm: Provenance | UnsetType) -> Struct:
        told = [
            TextChoice(
                index=choice.index,
                text=choice.echo + choice.text,
                logprobs=joined(choice.echo_logprobs, _text_logprobs(choice.logprobs, len(choice.echo))),
                finish_reason=choice.finish_reason,
                prompt_logprobs=choice.prompt_logprobs,
            )
            for choice in choices
        ]
        body = self._body(told, self.head.usage(choices))
        body.swarm = swarm
        return body

    def _body(self, choices: list[TextChoice], usage: Usage | UnsetType | None) -> TextCompletion:
        head = self.head
        return TextCompletion(
            id=head.id,
            created=head.created,
            model=head.model,
            choices=choices,
            system_fingerprint=head.fingerprint,
            usage=usage,
        )


def _data(event: Struct) -> bytes:
    return sse.event(msgspec.json.encode(event))


def _chat_logprobs(logprobs: Sequence[TokenLogprob]) -> ChatLogprobs | None:
    return ChatLogprobs(content=list(logprobs)) if logprobs else None


def _text_logprobs(logprobs: Sequence[TokenLogprob], offset: int) -> TextLogprobs | None:
    offsets = [*accumulate(map(characters, logprobs), initial=offset)][:-1]
    return text_logprobs(logprobs, offsets) if logprobs else None
