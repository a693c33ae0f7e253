"""The models a gateway serves: a client for each, and what is known of its coverage.

A watcher reads the directory every few seconds, so a request for a model with a hole is refused at
once, with how far it is, instead of waiting.
"""

import asyncio
import logging
import time
from functools import cached_property

from swarm.client.client import Client
from swarm.errors import NetworkError, SwarmError
from swarm.gateway.coldstart import Coverage, LoadingWatch
from swarm.gateway.constrain import Vocabulary
from swarm.gateway.encoding import Encoder, encoder_of
from swarm.gateway.grammars import Grammars
from swarm.gateway.manners import Manners
from swarm.gateway.prompts import learn_manners
from swarm.gateway.refusal import RETRY_LATER_S, Refusal
from swarm.gateway.schema import ModelEntry

WATCH_S = 5.0
UNKNOWN_RETRY_S = 30.0  # when nobody is loading what is missing

_log = logging.getLogger(__name__)


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
