"""Replies by id, for as long as a reader may come back, and within a bounded memory."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field

import msgspec

from swarm.gateway.refusal import Refusal
from swarm.gateway.schema import ChatMessage
from swarm.gateway.streams import LiveReply

KEPT_S = 300.0  # how long a reader may stay away
KEPT_BYTES = 64 * 2**20  # of all that they hold
CONVERSATION_BYTES = 64 * 2**20  # of all conversations that may be gone on with
CONVERSATION_BYTES_PER_KEY = 16 * 2**20
KEEPING_BYTES = 4096  # counted for each besides its words: many short ones cost time, too


@dataclass(slots=True)
class ReplyStore:
    """Replies by id, for as long as a reader may come back."""

    kept_s: float = KEPT_S
    kept_bytes: int = KEPT_BYTES
    _replies: dict[str, LiveReply] = field(default_factory=dict)

    def add(self, reply: LiveReply) -> None:
        """Keep a reply, and drop those that nobody came back to."""
        self.sweep()
        self._replies[reply.id] = reply

    def get(self, reply_id: str, owner: str) -> LiveReply:
        """The reply of that id, if it belongs to that key. Raises a `Refusal` of status 404."""
        reply = self.find(reply_id, owner)
        if reply is None:
            raise Refusal(
                404,
                f"There is no reply {reply_id!r}, or no longer",
                f"Replies are kept for {self.kept_s:.0f} s.",
                reason="not_found",
                param="id",
            )
        return reply

    def find(self, reply_id: str, owner: str) -> LiveReply | None:
        """The reply of that id, if there is one and it belongs to that key."""
        self.sweep()
        reply = self._replies.get(reply_id)
        return reply if reply is not None and reply.plan.owner == owner else None

    def discard(self, reply: LiveReply) -> None:
        """Forget a reply."""
        self._replies.pop(reply.id, None)

    def busy(self) -> list[LiveReply]:
        """Those that hold peers."""
        return [reply for reply in self._replies.values() if reply.busy]

    def sweep(self) -> None:
        """Drop idle replies, the oldest first, until the rest is young enough and small enough."""
        idle = [reply for reply in self._replies.values() if reply.idle_since is not None and not reply.busy]
        idle.sort(key=lambda reply: reply.idle_since or 0.0)
        held = sum(reply.size_bytes for reply in self._replies.values())
        oldest_kept = _now() - self.kept_s
        for reply in idle:
            if held <= self.kept_bytes and (reply.idle_since or 0.0) > oldest_kept:
                break
            held -= reply.size_bytes
            self.discard(reply)


@dataclass(frozen=True, slots=True)
class _KeptConversation:
    owner: str
    messages: bytes  # as JSON

    @property
    def size_bytes(self) -> int:
        """What keeping it takes, itself included."""
        return len(self.messages) + KEEPING_BYTES


@dataclass(slots=True)
class Conversations:
    """What was said up to the end of a reply, by the reply's id, so that another may go on from there.

    The one that was used longest ago makes room: of a key that holds more than its share, then of all.
    """

    kept_bytes: int = CONVERSATION_BYTES
    kept_bytes_per_key: int = CONVERSATION_BYTES_PER_KEY
    _kept: dict[str, _KeptConversation] = field(default_factory=dict)  # the one used last is last

    def add(self, reply_id: str, owner: str, messages: Sequence[ChatMessage]) -> None:
        """Keep a conversation."""
        self._kept[reply_id] = _KeptConversation(owner, msgspec.json.encode(messages))
        self._shrink(
            [each for each, kept in self._kept.items() if kept.owner == owner], self.kept_bytes_per_key
        )
        self._shrink(list(self._kept), self.kept_bytes)

    def get(self, reply_id: str, owner: str) -> list[ChatMessage]:
        """What was said. Raises a `Refusal` of status 400."""
        found = self._kept.get(reply_id)
        if found is None or found.owner != owner:
            raise Refusal(
                400,
                f"There is no response {reply_id[:80]!r} to go on from, or no longer",
                "Send the whole conversation as input. They are kept in memory, and not with store: false.",
                reason="previous_response_not_found",
                param="previous_response_id",
            )
        self._kept[reply_id] = self._kept.pop(reply_id)
        return msgspec.json.decode(found.messages, type=list[ChatMessage])

    def discard(self, reply_id: str, owner: str) -> bool:
        """Forget a conversation; whether there was one of that key."""
        found = self._kept.get(reply_id)
        if found is None or found.owner != owner:
            return False
        del self._kept[reply_id]
        return True

    def _shrink(self, ids: list[str], limit_bytes: int) -> None:
        held = sum(self._kept[each].size_bytes for each in ids)
        for each in ids:
            if held <= limit_bytes:
                return
            held -= self._kept.pop(each).size_bytes


def _now() -> float:
    return asyncio.get_running_loop().time()
