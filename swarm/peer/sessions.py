"""The sessions of one peer: who they are, where they stand, and what memory they may take.

A session's position is that of its cache, and nothing else. A session outlives its stream for a
bounded time, so that a client that lost its link, slept or crashed finds it again; a later take on
it (a higher epoch) fences the earlier one off. Knows no streams and no threads.
"""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from swarm.errors import SessionRefused
from swarm.model.cache import KVCache, bytes_per_token, grown_capacity, least_capacity
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
    granted_tokens: int = 0  # what its cache has room for, or will have when the step that was let in is done
    ended: SessionRefused | None = None  # why this peer gave it up

    @property
    def position(self) -> int:
        """How many tokens the cache holds."""
        return self.cache.position

    def require_epoch(self, epoch: int) -> None:
        """Raises `SessionRefused` when there is a later take than this one, or the session was given up."""
        if self.ended is not None:
            raise self.ended
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
        self._sessions: dict[str, PeerSession] = {}  # in the order they came
        self._used_bytes = 0
        self.resumed_total = 0  # taken up here after a loss, a leave or a pause

    def __len__(self) -> int:
        return len(self._sessions)

    @property
    def used_bytes(self) -> int:
        """Memory that all caches hold, and are about to hold for the steps that were let in."""
        return self._used_bytes

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

        From then on every earlier take on it is void; the caller waits for what runs of it, and then calls
        `settle`.
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
                held.attached, held.last_used = True, now
                held.spare = request.role == "spare"
                return held
            self.close(held)
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

    def reserve(self, session: PeerSession, tokens: int) -> list[PeerSession]:
        """Make room for a step. Gives the sessions that were given up for it although they are in use.

        Only what grows takes room. Where there is none, sessions without a stream go first, then whoever
        came last. Raises `SessionRefused`, and gives up none, when that is this one.
        """
        end = session.position + tokens
        if end > session.max_tokens:
            raise SessionRefused(
                "context_length_exceeded",
                f"{end} tokens are more than the {session.max_tokens} granted.",
                "tokens",
            )
        if end <= session.granted_tokens:
            return []
        if self._sessions.get(session.id) is not session:
            raise session.ended or _no_memory()  # nobody makes room for what is gone
        given_up = self._to_be_given_up(session, self._growth_bytes(session, least_capacity(end)))
        for each in given_up:
            each.ended = _no_memory()
            self.close(each)
        wanted = grown_capacity(session.granted_tokens, end)
        fits = self._growth_bytes(session, wanted) <= self._free_bytes
        self._grant(session, wanted if fits else least_capacity(end))
        session.cache.plan(session.granted_tokens)
        return [each for each in given_up if each.attached]

    def rewind(self, session: PeerSession, position: int, times: int = 1) -> None:
        """As `PeerSession.rewind`; what was granted for a step that is void is free again."""
        session.rewind(position, times)
        self.settle(session)

    def settle(self, session: PeerSession) -> None:
        """Nothing of the session is under way: count what its cache has."""
        self._grant(session, session.cache.capacity)

    def promote(self, session: PeerSession) -> None:
        """A spare is active from now on."""
        self.resumed_total += session.spare
        session.spare = False

    def detach(self, session: PeerSession, epoch: int, now: float) -> None:
        """The stream of that take is gone; keep the session for a while."""
        if session.epoch == epoch:
            session.attached, session.last_used = False, now
            self.settle(session)

    def close(self, session: PeerSession) -> None:
        """Free everything of a session."""
        if self._sessions.get(session.id) is session:
            self._grant(session, 0)
            del self._sessions[session.id]

    def expired(self, now: float) -> list[PeerSession]:
        """Sessions that nobody has used for longer than the limits allow."""
        return [
            session
            for session in self._sessions.values()
            if now - session.last_used > (self._limits.idle_s if session.attached else self._limits.linger_s)
        ]

    def _grant(self, session: PeerSession, tokens: int) -> None:
        if self._sessions.get(session.id) is session:
            self._used_bytes += self._growth_bytes(session, tokens)
            session.granted_tokens = tokens

    def _growth_bytes(self, session: PeerSession, tokens: int) -> int:
        return (tokens - session.granted_tokens) * self._token_bytes(session.span)

    @property
    def _free_bytes(self) -> int:
        return self._limits.cache_bytes - self._used_bytes

    def _to_be_given_up(self, session: PeerSession, needed_bytes: int) -> list[PeerSession]:
        """Who goes so that there is room for a session's growth. Raises `SessionRefused`."""
        going: list[PeerSession] = []
        free_bytes = self._free_bytes
        for each in self._in_order_of_going(session):
            if needed_bytes <= free_bytes:
                break
            going.append(each)
            free_bytes += each.granted_tokens * self._token_bytes(each.span)
        if needed_bytes > free_bytes:
            raise _no_memory()
        return going

    def _in_order_of_going(self, session: PeerSession) -> Iterator[PeerSession]:
        """Who goes before this session does: those without a stream, the longest unused first; then the
        latest comers, and before all of a client that has more than half of the memory."""
        others = [each for each in self._sessions.values() if each is not session]
        yield from sorted((each for each in others if not each.attached), key=lambda each: each.last_used)
        greedy = self._greedy_client()
        latest_first = [
            each for each in reversed(self._sessions.values()) if each.attached or each is session
        ]
        for each in sorted(latest_first, key=lambda each: each.client != greedy):
            if each is session:
                return
            yield each

    def _greedy_client(self) -> PeerId | None:
        """Who has more than half of the memory."""
        by_client: Counter[PeerId] = Counter()
        for each in self._sessions.values():
            by_client[each.client] += each.granted_tokens * self._token_bytes(each.span)
        client, used_bytes = by_client.most_common(1)[0]
        return client if used_bytes > self._limits.cache_bytes // 2 else None

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


def _no_memory() -> SessionRefused:
    return SessionRefused("capacity", "This peer's memory for sessions is full.")


def _fenced() -> SessionRefused:
    return SessionRefused("fenced", "A later take on this session exists; this one is void.", "epoch")
