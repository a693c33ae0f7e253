"""A conversation of several turns over one session.

Keeps the messages, renders them with the model's chat template, and lets the session keep what the
next prompt shares with the last one. A turn that fails or is stopped leaves the messages as they were.
"""

from dataclasses import dataclass, field
from typing import Any, Protocol

from swarm.client.context import Context
from swarm.client.generation import Generation
from swarm.client.reply import Reply
from swarm.model.chat_template import Message


class Ask(Protocol):
    """Begins a reply to messages in a context; options as `Client.generate`."""

    def __call__(self, messages: list[Message], context: Context, **options: Any) -> Generation: ...


@dataclass(slots=True)
class Conversation:
    """Messages and the session that holds them. Closing it frees the session."""

    context: Context
    ask: Ask
    messages: list[Message] = field(default_factory=list)

    def say(self, text: str, **options: Any) -> Generation:
        """Ask for the next reply. Call `accept` with it to make the turn part of the conversation."""
        return self.ask([*self.messages, {"role": "user", "content": text}], self.context, **options)

    def accept(self, text: str, reply: Reply) -> None:
        """Add a finished turn to the conversation."""
        self.messages += [{"role": "user", "content": text}, {"role": "assistant", "content": reply.text}]

    async def close(self) -> None:
        """Free the session on the peers."""
        await self.context.close()
