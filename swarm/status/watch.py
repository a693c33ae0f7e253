"""Watching one model: whose turn a canary is, what it showed, and how the answer is known.

Finds out by itself whether this machine has the model's files; with them the right answer is computed
once, in a thread, and until then peers are compared with each other.
"""

import asyncio
import logging
import secrets
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from swarm.errors import ModelError, SwarmError
from swarm.model.store import ensure_manifest, list_models
from swarm.network.transport import Network
from swarm.status.canary import Canary, CanaryRun
from swarm.status.proof_ledger import ProofLedger
from swarm.status.question import (
    MAX_TOKENS,
    PROMPT,
    CanaryQuestion,
    Fingerprints,
    MadeUpQuestion,
    PromptQuestion,
    compute_reference,
    load_ends,
)
from swarm.status.schedule import next_canary
from swarm.values import ModelDigest
from swarm.wire.records import ModelRecord, Snapshot

HURRY = 4  # times as often while a peer has not been exercised yet
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class CanarySettings:
    """How often, and where models may be found. `every_s` None: no canaries."""

    every_s: float | None = 20.0
    store_root: Path | None = None
    directories: tuple[Path, ...] = ()  # models besides those in the store


@dataclass(slots=True)
class ModelWatch:
    """Runs canaries through one model for as long as `run` runs. Reads the snapshot that is set on it."""

    network: Network
    record: ModelRecord
    settings: CanarySettings
    now: Callable[[], float]
    on_run: Callable[[CanaryRun], None]
    snapshot: Snapshot | None = None
    ledger: ProofLedger = field(default_factory=ProofLedger)
    _canary: Canary | None = None

    async def run(self) -> None:
        """Run canaries until cancelled."""
        if self.settings.every_s is None:
            return
        while True:
            await self.run_once()
            await asyncio.sleep(self.settings.every_s / (1 if self.exercised_since(0.0) else HURRY))

    async def run_all(self) -> None:
        """Run canaries until every online peer has had a turn, as far as there are chains for them."""
        started_at = self.now()
        for _ in self.snapshot.online() if self.snapshot else ():
            if self.exercised_since(started_at) or not await self.run_once():
                return

    async def run_once(self) -> bool:
        """Run one canary; False when there is no chain for one."""
        if self.snapshot is None:
            return False
        turn = next_canary(self.snapshot, self.ledger.exercised_at, self.ledger.failing)
        if turn is None:
            return False
        if self._canary is None:
            self._canary = await self._make_canary()
        run = await self._canary.run(turn.chain)
        self.ledger.note_run(run, turn, self.now())
        self.on_run(run)
        return True

    def exercised_since(self, at: float) -> bool:
        """Whether every online peer has had a turn after `at`."""
        online = self.snapshot.online() if self.snapshot else ()
        return all(self.ledger.exercised_at.get(record.peer, -1.0) >= at for record in online)

    async def _make_canary(self) -> Canary:
        seed = secrets.randbits(62)
        question = await asyncio.to_thread(self._make_question, seed)
        self.ledger.prompt = question.prompt
        self.ledger.expects = question.reference is not None
        fingerprints = Fingerprints(question.hidden_size, seed)
        return Canary(self.network, ModelDigest(self.record.model), question, fingerprints)

    def _make_question(self, seed: int) -> CanaryQuestion:
        root = self.settings.store_root
        directory = self._find_files()
        if root is None or directory is None:
            return MadeUpQuestion(self.record.hidden_size, seed)
        try:
            ends = load_ends(directory, root)
        except ModelError as error:
            _log.warning("The files of %s cannot be used: %s", self.record.name, error)
            return MadeUpQuestion(self.record.hidden_size, seed)
        prompt_ids = tuple(ends.tokenizer.encode(PROMPT))
        try:
            reference = compute_reference(directory, root, ends, prompt_ids, MAX_TOKENS)
        except SwarmError as error:
            _log.warning("The canary's answer for %s is not known: %s", self.record.name, error)
            return PromptQuestion(ends, prompt_ids)
        return PromptQuestion(ends, prompt_ids, reference)

    def _find_files(self) -> Path | None:
        """A directory on this machine that holds exactly this model, whatever its name."""
        root = self.settings.store_root
        if root is None:
            return None
        cached = [model.directory for model in list_models(root)]
        for directory in [*self.settings.directories, *cached]:
            try:
                if ensure_manifest(directory, root).digest == self.record.model:
                    return directory
            except SwarmError as error:
                _log.info("%s is passed over: %s", directory, error)
        return None
