"""The grammars of one model: compiled off the event loop, within bounds, and kept for the next who asks.

A grammar is tried first in a process that can be ended (`trial`); only one that came through is compiled
here. What a refused one was refused for is kept too, so that asking again costs nothing.
"""

import asyncio
import contextlib
import hashlib
import json
import sys
import weakref
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections import OrderedDict

from swarm.gateway.admission import Admission, AdmissionLimits, Workbench
from swarm.gateway.auth import ApiKey
from swarm.gateway.refusal import RETRY_LATER_S, Refusal, bad
from swarm.gateway.structured_output import Grammar, Vocabulary

MAX_KEPT = 16
MAX_ALIVE = 64  # kept ones, and those of replies in the making
MAX_ANSWER_S = 15.0  # of the trial, on a machine where its processor time is long in coming
_LIMITS = AdmissionLimits(max_running=1, max_waiting=64, max_wait_s=30.0)
_TOO_MUCH = "it takes too much time or memory to compile"


class Grammars:
    """Belongs to one event loop. `close` ends the trial's process."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._vocabulary = vocabulary
        self._trial = _Trial(vocabulary)
        self._gate = Admission(_LIMITS)
        self._bench = Workbench(self._gate)
        self._kept: OrderedDict[bytes, Grammar | str] = OrderedDict()
        self._alive: weakref.WeakSet[Grammar] = weakref.WeakSet()

    async def compile(self, text: str, param: str, key: ApiKey) -> Grammar:
        """The grammar, ready to be followed. Raises a `Refusal`: 400 naming `param`, 503 when all is busy."""
        digest = hashlib.sha256(text.encode(errors="surrogatepass")).digest()
        found = self._kept.get(digest)
        if found is None or (isinstance(found, Grammar) and found.spoilt):
            found = await self._compile(text, key)
            self._kept[digest] = found
        self._kept.move_to_end(digest)
        while len(self._kept) > MAX_KEPT:
            self._kept.popitem(last=False)
        if isinstance(found, str):
            raise bad(param, f"{param} cannot be followed: {found}", "Ask for a simpler form.")
        return found

    async def close(self) -> None:
        """End the trial's process."""
        await self._trial.close()

    async def _compile(self, text: str, key: ApiKey) -> Grammar | str:
        if len(self._alive) >= MAX_ALIVE:
            raise _busy(f"{MAX_ALIVE} grammars are in use")
        slot = await self._gate.enter(key)
        try:
            problem = await self._trial.problem_of(text)
        finally:
            slot.release()
        if problem is not None:
            return problem
        grammar = await self._bench.run(key, lambda: self._vocabulary.compile(text))
        self._alive.add(grammar)
        return grammar


class _Trial:
    """The process that tries grammars, started when one is to be tried and again when one has ended it."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._vocabulary = vocabulary
        self._process: Process | None = None

    async def problem_of(self, text: str) -> str | None:
        """Why a grammar is refused, or None. To be asked one at a time."""
        try:
            async with asyncio.timeout(MAX_ANSWER_S):
                if self._process is None and not await self._start():
                    await self.close()
                    raise _busy("Grammars cannot be tried on this machine")
                answer = await self._ask(text)
        except TimeoutError:
            await self.close()
            raise _busy("The grammar could not be tried in time") from None
        except ConnectionError:
            answer = b""
        except asyncio.CancelledError:
            await self.close()  # an answer that nobody waits for would be taken for the next one's
            raise
        if not answer:
            await self.close()
            return _TOO_MUCH
        problem: str | None = json.loads(answer)
        return problem.strip().splitlines()[0] if problem else None

    async def close(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()

    async def _start(self) -> bytes:
        """The line that says that it is ready; empty when it cannot start."""
        self._process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "swarm.gateway.trial",
            stdin=PIPE, stdout=PIPE, stderr=DEVNULL,
            start_new_session=True,  # Ctrl-C lets replies end, and they may need it
        )  # fmt: skip
        return await self._ask(self._vocabulary.description())

    async def _ask(self, value: object) -> bytes:
        """The line that answers; empty when the process has ended."""
        process = self._process
        assert process is not None  # noqa: S101 - it has been started
        assert process.stdin is not None  # noqa: S101 - these are pipes
        assert process.stdout is not None  # noqa: S101
        process.stdin.write(json.dumps(value).encode() + b"\n")
        await process.stdin.drain()
        return await process.stdout.readline()


def _busy(what: str) -> Refusal:
    return Refusal(503, what, "Try again in a moment.", reason="overloaded", retry_after_s=RETRY_LATER_S)
