"""A conversation of several turns over one session, and what is needed to go on with it later.

Keeps the messages, renders them with the model's chat template, and lets the session keep what the
next prompt shares with the last one. A turn becomes part of the conversation when its reply is
complete; one that fails or is stopped leaves the messages as they were. `ConversationState` is the
library's resume token: plain data, for any later process.
"""

from dataclasses import dataclass, field
from typing import Any, Protocol, Unpack

import msgspec

from swarm.client.context import Context
from swarm.client.generation import Generation, Options, Request
from swarm.client.reply import Reply
from swarm.model.chat_template import Message
from swarm.model.sampling import Sampling
from swarm.session.opener import SessionState
from swarm.values import ModelDigest


class UnfinishedReply(msgspec.Struct, frozen=True):
    """A reply that was interrupted: what was asked, and the tokens there are.

    All that says how it goes on, but `Request.allowed`: a function is no data. Fields that came later
    have defaults, so that what was kept before can be read.
    """

    text: str  # of the user
    prompt_ids: tuple[int, ...]
    output_ids: tuple[int, ...]
    sampling: Sampling
    max_tokens: int | None
    stop: tuple[str, ...]
    stop_token_ids: frozenset[int]
    min_tokens: int = 0
    include_stop: bool = False
    skip_special_tokens: bool = True
    top_logprobs: int = 0
    prompt_logprobs: int | None = None


_OF_REQUEST = [name for name in UnfinishedReply.__struct_fields__ if name != "text"]


class ConversationState(msgspec.Struct, frozen=True):
    """A conversation as data. `session` says where peers may still hold what `ids` are."""

    manifest: str
    messages: list[dict[str, Any]]
    ids: tuple[int, ...] = ()
    session: SessionState | None = None
    unfinished: UnfinishedReply | None = None

    def to_bytes(self) -> bytes:
        """As JSON, for keeping."""
        return msgspec.json.encode(self)

    @staticmethod
    def from_bytes(saved: bytes) -> "ConversationState":
        """What `to_bytes` gave. Raises `msgspec.DecodeError` for anything else."""
        return msgspec.json.decode(saved, type=ConversationState)


class Ask(Protocol):
    """Begins a reply to a request in a context."""

    def __call__(self, request: Request, context: Context) -> Generation: ...


class Prepare(Protocol):
    """Makes a request of messages; options as `Client.generate`."""

    def __call__(self, messages: list[Message], **options: Unpack[Options]) -> Request: ...


@dataclass(slots=True)
class Conversation:
    """Messages and the session that holds them. Closing it frees the session."""

    manifest: ModelDigest
    context: Context
    prepare: Prepare
    ask: Ask
    messages: list[Message] = field(default_factory=list)
    _text: str = ""  # of the turn in the making
    _generation: Generation | None = None

    def say(self, text: str, **options: Unpack[Options]) -> Generation:
        """Ask for the next reply; options as `Client.generate`."""
        request = self.prepare([*self.messages, {"role": "user", "content": text}], **options)
        return self._begin(text, request)

    def go_on(self, unfinished: UnfinishedReply) -> Generation:
        """Go on with a reply that was interrupted; its first pieces are not given again."""
        request = Request(**{name: getattr(unfinished, name) for name in _OF_REQUEST})
        return self._begin(unfinished.text, request)

    def state(self) -> ConversationState:
        """The conversation as of now, for `Client.resume`, in mid-reply too."""
        return ConversationState(
            manifest=self.manifest,
            messages=[dict(message) for message in self.messages],
            ids=tuple(self.context.held_ids),
            session=self.context.session.export(),
            unfinished=self._unfinished(),
        )

    async def close(self) -> None:
        """Free the session on the peers."""
        await self.context.close()

    async def leave(self) -> None:
        """End here, but let the peers keep the session for a while, for `Client.resume`."""
        await self.context.leave()

    def _begin(self, text: str, request: Request) -> Generation:
        generation = self.ask(request, self.context)
        generation.on_reply = self._accept
        self._text, self._generation = text, generation
        return generation

    def _accept(self, reply: Reply) -> None:
        self.messages += [
            {"role": "user", "content": self._text},
            {"role": "assistant", "content": reply.text},
        ]
        self._generation = None

    def _unfinished(self) -> UnfinishedReply | None:
        if self._generation is None:
            return None
        kept = {name: getattr(self._generation.request, name) for name in _OF_REQUEST}
        return UnfinishedReply(self._text, **kept | {"output_ids": tuple(self._generation.token_ids)})
