"""Replies by id, for as long as a reader may come back, and within a bounded memory."""

import asyncio
from dataclasses import dataclass, field

from swarm.gateway.refusal import Refusal
from swarm.gateway.streams import LiveReply

KEPT_S = 300.0  # how long a reader may stay away
KEPT_BYTES = 64 * 2**20  # of all that they hold


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
        self.sweep()
        reply = self._replies.get(reply_id)
        if reply is None or reply.plan.owner != owner:
            raise Refusal(
                404,
                f"There is no reply {reply_id!r}, or no longer",
                f"Replies are kept for {self.kept_s:.0f} s.",
                reason="not_found",
                param="id",
            )
        return reply

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


def _now() -> float:
    return asyncio.get_running_loop().time()
