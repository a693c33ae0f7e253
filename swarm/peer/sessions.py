"""The sessions of one peer: who they are, where they stand, and what memory they may take.

A session's position is that of its cache, and nothing else. A session outlives its stream for a
bounded time, so that a client that lost its link, slept or crashed finds it again; a later take on
it (a higher epoch) fences the earlier one off. Knows no streams and no threads.
"""

from collections import Counter
from dataclasses import dataclass

from swarm.errors import SessionRefused
from swarm.model.cache import KVCache, bytes_per_token
from swarm.model.span import SpanModel
from swarm.values import PeerId, Span
from swarm.wire.messages import Open


@dataclass(slots=True, eq=False)
class PeerSession:
    """One conversation's state on this peer."""

    id: str
    owner: str  # the conversation's public key
    client: PeerId  # who took it up last
    span: Span
    cache: KVCache
    max_tokens: int
    epoch: int
    spare: bool
    last_used: float
    attached: bool = True
    rewinds: int = 0
    admitted_tokens: int = 0  # where the step that was let in last will end; it may wait for its turn yet

    @property
    def position(self) -> int:
        """How many tokens the cache holds."""
        return self.cache.position

    def require_epoch(self, epoch: int) -> None:
        """Raises `SessionRefused` when there is a later take than this one."""
        if self.epoch != epoch:
            raise _fenced()

    def rewind(self, position: int, times: int = 1) -> None:
        """Forget everything from `position` on. Raises `SessionRefused` for one not yet reached.

        `times`: how many of the client's rewinds that is.
        """
        if not 0 <= position <= self.position:
            raise SessionRefused(
                "position",
                f"Cannot go back to {position} from {self.position}.",
                "position",
                self.position,
            )
        self.cache.rewind(position)
        self.rewinds += times
        self.admitted_tokens = 0


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
        """Memory that all caches hold, and are about to hold for the steps that were let in."""
        return sum(self._size_bytes(session) for session in self._sessions.values())

    @property
    def lent_bytes(self) -> int:
        """Memory that the caches of all sessions may take."""
        return self._limits.cache_bytes

    @property
    def free_tokens(self) -> int:
        """How many more tokens fit, counted through the peer's whole span."""
        return max(0, self._limits.cache_bytes - self.used_bytes) // self._token_bytes(self._model.span)

    def all(self) -> tuple[PeerSession, ...]:
        """Every session held."""
        return tuple(self._sessions.values())

    def open(self, request: Open, client: PeerId, now: float) -> PeerSession:
        """Take up the session again if it is here, else begin it. Raises `SessionRefused`.

        From then on every earlier take on it is void; the caller waits for what runs of it.
        """
        span = Span(request.start, request.end)
        held = self._sessions.get(request.session)
        if held is not None and held.owner != request.owner:
            raise SessionRefused("owner", "This session is of another conversation.", "session")
        if held is not None and request.epoch <= held.epoch:
            raise _fenced()
        if held is None:
            self._make_room_for_one(client)
        # the first chain of a conversation is its first take; every later one resumes it
        self.resumed_total += request.epoch > 1 and request.role == "active"
        if held is not None:
            held.epoch, held.client = request.epoch, client
            if held.span == span:
                held.attached, held.last_used, held.admitted_tokens = True, now, 0
                held.spare = request.role == "spare"
                return held
        session = PeerSession(
            id=request.session,
            owner=request.owner,
            client=client,
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
        """Make room for a step, giving up sessions without a stream where that helps.

        Raises `SessionRefused`, and gives up none then.
        """
        end = session.position + tokens
        if end > session.max_tokens:
            raise SessionRefused(
                "context_length_exceeded",
                f"{end} tokens are more than the {session.max_tokens} granted.",
                "tokens",
            )
        grown_bytes = max(0, end * self._token_bytes(session.span) - self._size_bytes(session))
        room_bytes = self._limits.cache_bytes - grown_bytes
        if sum(self._size_bytes(each) for each in self._sessions.values() if each.attached) > room_bytes:
            raise SessionRefused("capacity", "This peer's memory for sessions is full.")
        while self.used_bytes > room_bytes:
            self._evict_one()
        session.admitted_tokens = end

    def promote(self, session: PeerSession) -> None:
        """A spare is active from now on."""
        self.resumed_total += session.spare
        session.spare = False

    def detach(self, session: PeerSession, epoch: int, now: float) -> None:
        """The stream of that take is gone; keep the session for a while."""
        if session.epoch == epoch:
            session.attached, session.last_used, session.admitted_tokens = False, now, 0

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

    def _size_bytes(self, session: PeerSession) -> int:
        return max(session.cache.size_bytes, session.admitted_tokens * self._token_bytes(session.span))

    def _token_bytes(self, span: Span) -> int:
        return bytes_per_token(self._model.config, len(span), self._model.dtype)

    def _make_room_for_one(self, client: PeerId) -> None:
        """Raises `SessionRefused` when there is no room, or this client has its share."""
        limit, held = self._limits.max_sessions, self._by_client()[client]
        if held >= max(1, limit // 2) and not self._evict_one(client):
            raise SessionRefused("capacity", f"This client holds its share of {held} sessions.")
        if len(self._sessions) >= limit and not self._evict_one():
            raise SessionRefused("capacity", f"This peer holds its limit of {limit} sessions.")

    def _by_client(self) -> Counter[PeerId]:
        return Counter(session.client for session in self._sessions.values())

    def _evict_one(self, client: PeerId | None = None) -> bool:
        """Give up a session without a stream: the oldest of that client, or of the one that has most."""
        held = self._by_client()
        detached = [
            session
            for session in self._sessions.values()
            if not session.attached and client in (None, session.client)
        ]
        if not detached:
            return False
        self.close(min(detached, key=lambda session: (-held[session.client], session.last_used)))
        return True


def _fenced() -> SessionRefused:
    return SessionRefused("fenced", "A later take on this session exists; this one is void.", "epoch")
