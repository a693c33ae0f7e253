"""The sessions of one peer: who they are, where they stand, and what memory they may take.

A session's position is that of its cache, and nothing else. A session outlives its stream for a
bounded time, so that a client that lost its link, slept or crashed finds it again; a later take on
it (a higher epoch) fences the earlier one off. Knows no streams and no threads.
"""

from dataclasses import dataclass, field

from swarm.errors import SessionRefused
from swarm.model.cache import KVCache, bytes_per_token
from swarm.model.span import SpanModel
from swarm.values import Span
from swarm.wire.messages import Open, Output


@dataclass(slots=True, eq=False)
class PeerSession:
    """One conversation's state on this peer."""

    id: str
    span: Span
    cache: KVCache
    max_tokens: int
    epoch: int
    spare: bool
    last_used: float
    attached: bool = True
    rewinds: int = 0
    answered: tuple[Output, bytes] | None = field(default=None, repr=False)  # of the last step

    @property
    def position(self) -> int:
        """How many tokens the cache holds."""
        return self.cache.position


@dataclass(frozen=True, slots=True)
class SessionLimits:
    """What a peer lends to sessions."""

    cache_bytes: int
    context_tokens: int
    linger_s: float = 120.0  # how long a session without a stream is kept
    idle_s: float = 1800.0  # how long one with a stream may do nothing
    max_sessions: int = 1024


class SessionTable:
    """All sessions of a peer, by id. Times are seconds of one monotonic clock."""

    def __init__(self, model: SpanModel, limits: SessionLimits) -> None:
        self._model = model
        self._limits = limits
        self._sessions: dict[str, PeerSession] = {}
        self.resumed_total = 0  # taken up here after a loss, a leave or a pause

    def __len__(self) -> int:
        return len(self._sessions)

    @property
    def used_bytes(self) -> int:
        """Memory that all caches hold now."""
        return sum(session.cache.size_bytes for session in self._sessions.values())

    @property
    def free_tokens(self) -> int:
        """How many more tokens fit, counted through the peer's whole span."""
        token_bytes = bytes_per_token(self._model.config, len(self._model.span), self._model.dtype)
        return max(0, self._limits.cache_bytes - self.used_bytes) // token_bytes

    def all(self) -> tuple[PeerSession, ...]:
        """Every session held."""
        return tuple(self._sessions.values())

    def open(self, request: Open, now: float) -> PeerSession:
        """Take up the session again if it is here, else begin it. Raises `SessionRefused`.

        The caller has made sure that no step of it is running.
        """
        span = Span(request.start, request.end)
        session = self._sessions.get(request.session)
        if session is not None and request.epoch <= session.epoch:
            raise SessionRefused("fenced", "A later take on this session exists; this one is void.", "epoch")
        # the first chain of a conversation is its first take; every later one resumes it
        self.resumed_total += request.epoch > 1 and request.role == "active"
        if session is not None and session.span == span:
            session.epoch, session.attached, session.last_used = request.epoch, True, now
            session.spare = request.role == "spare"
            return session
        if len(self._sessions) >= self._limits.max_sessions and not self._evict_one():
            raise SessionRefused("capacity", f"This peer holds its limit of {len(self._sessions)} sessions.")
        session = PeerSession(
            id=request.session,
            span=span,
            cache=self._model.new_cache(span),
            max_tokens=min(request.max_tokens, self._limits.context_tokens),
            epoch=request.epoch,
            spare=request.role == "spare",
            last_used=now,
        )
        self._sessions[request.session] = session
        return session

    def reserve(self, session: PeerSession, tokens: int) -> None:
        """Make room for a step, giving up sessions without a stream if need be. Raises `SessionRefused`."""
        if session.position + tokens > session.max_tokens:
            raise SessionRefused(
                "context_length_exceeded",
                f"{session.position + tokens} tokens are more than the {session.max_tokens} granted.",
                "tokens",
            )
        token_bytes = bytes_per_token(self._model.config, len(session.span), self._model.dtype)
        while self.used_bytes + tokens * token_bytes > self._limits.cache_bytes:
            if not self._evict_one():
                raise SessionRefused("capacity", "This peer's memory for sessions is full.")

    def promote(self, session: PeerSession) -> None:
        """A spare is active from now on."""
        session.spare = False
        self.resumed_total += 1

    def detach(self, session: PeerSession, epoch: int, now: float) -> None:
        """The stream of that take is gone; keep the session for a while."""
        if session.epoch == epoch:
            session.attached, session.last_used = False, now

    def close(self, session: PeerSession) -> None:
        """Free everything of a session."""
        if self._sessions.get(session.id) is session:
            del self._sessions[session.id]

    def expired(self, now: float) -> list[PeerSession]:
        """Sessions that nobody has used for longer than the limits allow."""
        return [
            session
            for session in self._sessions.values()
            if now - session.last_used > (self._limits.idle_s if session.attached else self._limits.linger_s)
        ]

    def _evict_one(self) -> bool:
        detached = [session for session in self._sessions.values() if not session.attached]
        if not detached:
            return False
        self.close(min(detached, key=lambda session: session.last_used))
        return True
