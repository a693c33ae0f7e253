"""The models a gateway serves: a client for each, and what is known of its coverage.

A watcher reads the directory every few seconds, so a request for a model with a hole is refused at
once, with how far it is, instead of waiting.
"""

import asyncio
import logging
import time
from dataclasses import dataclass, field
from functools import cached_property

from swarm.client.client import Client
from swarm.errors import NetworkError, SwarmError
from swarm.gateway.grammars import Grammars
from swarm.gateway.manners import Manners
from swarm.gateway.prompts import Encoder, encoder_of, learn_manners
from swarm.gateway.refusal import RETRY_LATER_S, Refusal
from swarm.gateway.schema import ModelEntry
from swarm.gateway.structured_output import Vocabulary
from swarm.values import PeerId, Span, spans_of
from swarm.wire.records import Snapshot

WATCH_S = 5.0
UNKNOWN_RETRY_S = 30.0  # when nobody is loading what is missing

_log = logging.getLogger(__name__)
FIRST_LOADING_S = 30.0  # before any peer has been seen to load
SHORTEST_ESTIMATE_S = 2.0
_SMOOTHING = 0.3


@dataclass(frozen=True, slots=True)
class Coverage:
    """The state of a model. `estimate_s` is None when whole, and when nobody loads what is missing."""

    num_blocks: int
    online_blocks: int
    missing: tuple[Span, ...]
    loading: tuple[Span, ...]  # of the missing ones
    replicas: int  # online peers of the weakest block
    estimate_s: float | None

    @property
    def whole(self) -> bool:
        """Whether every block is online."""
        return not self.missing


@dataclass(slots=True)
class LoadingWatch:
    """Remembers who is loading since when."""

    typical_s: float = FIRST_LOADING_S
    _since: dict[PeerId, float] = field(default_factory=dict)

    def observe(self, snapshot: Snapshot, now: float) -> Coverage:
        """Take a snapshot in; gives what it means."""
        joining = {record.peer_id: record.span for record in snapshot.peers if record.state == "joining"}
        online = {record.peer_id for record in snapshot.online()}
        for peer, since in self._since.items():
            if peer in online:
                self.typical_s += _SMOOTHING * (now - since - self.typical_s)
        self._since = {peer: self._since.get(peer, now) for peer in joining}
        counts = snapshot.coverage()
        missing = {block for block, count in enumerate(counts) if not count}
        loading = {block for span in joining.values() for block in span} & missing
        return Coverage(
            num_blocks=snapshot.num_blocks,
            online_blocks=snapshot.num_blocks - len(missing),
            missing=tuple(spans_of(missing)),
            loading=tuple(spans_of(loading)),
            replicas=min(counts),
            estimate_s=self._estimate_s(now) if missing and loading == missing else None,
        )

    def _estimate_s(self, now: float) -> float:
        latest = max(self._since.values())
        return max(SHORTEST_ESTIMATE_S, self.typical_s - (now - latest))


class HostedModel:
    """One model of a gateway."""

    def __init__(self, client: Client) -> None:
        self.client = client
        self.name = client.model.name
        self.coverage: Coverage | None = None
        self.created = int(time.time())
        self._watch = LoadingWatch()
        self._problem: SwarmError | None = None
        self._vocabulary: Vocabulary | None = None
        self._grammars: Grammars | None = None
        self._making = asyncio.Lock()

    @cached_property
    def encoder(self) -> Encoder:
        """The tokenizer with its bounds; takes some milliseconds at first use."""
        return encoder_of(self.client.model.tokenizer, self.client.model.config.context_length)

    @cached_property
    def manners(self) -> Manners:
        """What the chat template takes; it is rendered some ten times at first use."""
        return learn_manners(self.client.model.tokenizer)

    @property
    def _answers(self) -> bool:
        """Whether every block is online, or can be run here."""
        return self.coverage is not None and (self.coverage.whole or self.client.options.local_fallback)

    @property
    def problem(self) -> str | None:
        """Why the model cannot answer now."""
        if self.coverage is None:
            reason = self._problem.what if self._problem else "the directory has not been read yet"
            return f"{self.name}: {reason}"
        if not self._answers:
            return f"{self.name}: no live peer hosts blocks {', '.join(map(str, self.coverage.missing))}"
        return None

    async def vocabulary(self) -> Vocabulary:
        """The tokens as bytes, made at first use."""
        async with self._making:
            if self._vocabulary is None:
                model = self.client.model
                self._vocabulary = await asyncio.to_thread(
                    Vocabulary, model.tokenizer, model.config.vocab_size, model.config.stop_token_ids
                )
            return self._vocabulary

    async def grammars(self) -> Grammars:
        """The grammars over the vocabulary."""
        vocabulary = await self.vocabulary()
        if self._grammars is None:
            self._grammars = Grammars(vocabulary)
        return self._grammars

    async def close(self) -> None:
        """End what was started for the model; its client is closed by whoever made it."""
        if self._grammars is not None:
            await self._grammars.close()

    async def watch(self) -> None:
        """Keep the coverage up to date, for ever."""
        while True:
            await self.refresh()
            await asyncio.sleep(WATCH_S)

    async def refresh(self) -> None:
        """Read the directory now."""
        try:
            snapshot = await self.client.snapshot()
        except SwarmError as error:
            if self._problem is None or self._problem.what != error.what:
                _log.warning("%s cannot be served: %s", self.name, error)
            self._problem = error
            if not isinstance(error, NetworkError):
                self.coverage = None
            return
        self._problem = None
        self.coverage = self._watch.observe(snapshot, asyncio.get_running_loop().time())

    async def require_whole(self) -> None:
        """Raises a `Refusal` with how far the model is, unless every block is online."""
        if not self._answers:
            await self.refresh()
        coverage = self.coverage
        if coverage is None:
            what = self._problem or NetworkError("The directory does not answer", "Try again in a moment.")
            raise Refusal(503, what.what, what.fix, reason=what.code, retry_after_s=RETRY_LATER_S)
        if not self._answers:
            raise _cold(self.name, coverage)

    def entry(self) -> ModelEntry:
        """The model as /v1/models shows it."""
        model, coverage = self.client.model, self.coverage
        return ModelEntry(
            id=self.name,
            created=self.created,
            max_model_len=model.config.context_length,
            manifest=model.manifest,
            num_blocks=model.config.num_blocks,
            whole=bool(coverage and coverage.whole),
            missing=[str(span) for span in coverage.missing]
            if coverage
            else [f"0:{model.config.num_blocks}"],
            replicas=coverage.replicas if coverage else 0,
        )


def _cold(name: str, coverage: Coverage) -> Refusal:
    missing = ", ".join(map(str, coverage.missing))
    when = (
        f"peers are loading them, about {coverage.estimate_s:.0f} s more"
        if coverage.estimate_s is not None
        else "nobody is loading all of them"
    )
    return Refusal(
        503,
        f"{coverage.online_blocks} of the {coverage.num_blocks} blocks of {name} are online; "
        f"no live peer hosts blocks {missing}, and {when}",
        "Try again later, or start a peer for them (swarm peer).",
        reason="no_route",
        retry_after_s=coverage.estimate_s if coverage.estimate_s is not None else UNKNOWN_RETRY_S,
        detail={
            "online_blocks": coverage.online_blocks,
            "num_blocks": coverage.num_blocks,
            "missing": [str(span) for span in coverage.missing],
            "loading": [str(span) for span in coverage.loading],
            "estimate_s": coverage.estimate_s,
        },
    )
