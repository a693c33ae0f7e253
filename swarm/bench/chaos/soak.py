"""A soak: many sessions in a row through peers that die, sleep, lose their links and come back.

Every session has to end with the right tokens; meanwhile memory, streams, tasks and open files of
the peers and of the client have to stay flat.
"""

import asyncio
import os
import random
import signal
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

import psutil

from swarm.bench.chaos.harness import EXIT_TIMEOUT_S, Harness, HarnessPeer
from swarm.bench.chaos.leftovers import Baseline, left_behind
from swarm.bench.chaos.replies import Observed, ask, make_questions, observe
from swarm.bench.chaos.runner import Result
from swarm.bench.chaos.scenario_run import References
from swarm.client.client import Client
from swarm.errors import SwarmError
from swarm.network.memory import LinkConditions

CLIENTS, SESSIONS_AT_ONCE = 2, 4
QUESTIONS = 8  # different ones, each with its undisturbed reply
PROMPT_TOKENS, MAX_TOKENS = 60, 60
CALM_S = (0.5, 3.0)  # between two faults
MOST_TROUBLED = 2  # peers at once: each that comes back costs this machine seconds of computing
NAP_S = (0.5, 6.0)
CUT_S = (0.1, 3.0)
WARM_UP_SHARE = 0.2  # of the sessions, before memory is first looked at
GROWTH_LIMIT_BYTES = 48 * 2**20

OnProgress = Callable[[int, int], None]


@dataclass(slots=True)
class _Tally:
    """What has come of the sessions so far."""

    recoveries: int = 0
    stalls_s: list[float] = field(default_factory=list)
    wrong: int = 0
    problems: list[str] = field(default_factory=list)

    def take(self, reply: Observed, expected: Observed) -> None:
        self.recoveries += len(reply.resumes)
        self.stalls_s.append(reply.stall_s)
        if reply.error is not None:
            self.problems.append(str(reply.error))
        if reply.error is not None or reply.token_ids != expected.token_ids:
            self.wrong += 1


async def soak(harness: Harness, sessions: int, on_progress: OnProgress) -> Result:
    """Run so many sessions through random faults."""
    before, tally = await Baseline.take(harness), _Tally()
    questions = [
        question
        for round_ in range(QUESTIONS // 2)
        for question in make_questions(
            harness.config.vocab_size, PROMPT_TOKENS + round_, MAX_TOKENS, harness.config.seed
        )
    ]
    expected = await References(harness).of(questions)
    clients = [await harness.client() for _ in range(CLIENTS)]
    memory = _Memory(harness)
    trouble = _SoakTrouble(harness, tally.problems)
    troubling = asyncio.create_task(trouble.run())
    try:
        waiting = iter(range(sessions))

        async def work(client: Client) -> None:
            for number in waiting:
                index = number % len(questions)
                tally.take(await observe(ask(client, questions[index]), questions[index]), expected[index])
                if number == int(sessions * WARM_UP_SHARE):
                    memory.note()
                on_progress(len(tally.stalls_s), sessions)

        await asyncio.gather(*(work(clients[index % CLIENTS]) for index in range(SESSIONS_AT_ONCE)))
        trouble.over.set()
        await troubling  # what was broken last comes back
    finally:
        troubling.cancel()
        await asyncio.gather(troubling, return_exceptions=True)
        growth = memory.growth()
        for client in clients:
            await client.close()
        await harness.heal()
    leftovers = [*growth, *await left_behind(harness, before, harness.peers)]
    return Result(
        scenario="soak",
        sessions=len(tally.stalls_s),
        tokens_ok=not tally.wrong and len(tally.stalls_s) == sessions,
        recoveries=tally.recoveries,
        stalls_s=tuple(tally.stalls_s),
        left_behind=tuple(leftovers),
        error="; ".join(dict.fromkeys(tally.problems)) or None,
    )


class _SoakTrouble:
    """Random faults to random peers, one after the other and now and then at once, until it is `over`."""

    def __init__(self, harness: Harness, problems: list[str]) -> None:
        self._stage = harness
        self._problems = problems
        self._chance = random.Random(f"{harness.config.seed} soak")  # noqa: S311 - repeatable on purpose
        self._busy: set[HarnessPeer] = set()
        self.over = asyncio.Event()

    async def run(self) -> None:
        faults = [self._kill, self._freeze, self._cut, self._leave]
        async with asyncio.TaskGroup() as group:
            while not self.over.is_set():
                await asyncio.sleep(self._chance.uniform(*CALM_S))
                fault, peer = self._chance.choice(faults), self._chance.choice(self._stage.peers)
                if peer not in self._busy and len(self._busy) < MOST_TROUBLED:
                    group.create_task(self._do(fault, peer))

    async def _do(self, fault: Callable[[HarnessPeer], Awaitable[None]], peer: HarnessPeer) -> None:
        self._busy.add(peer)
        try:
            await fault(peer)
        except SwarmError as error:
            self._problems.append(f"{peer.name}: {error}")
        finally:
            self._busy.discard(peer)

    async def _kill(self, peer: HarnessPeer) -> None:
        peer.processes.kill_python()
        await self._stage.restart(peer)

    async def _freeze(self, peer: HarnessPeer) -> None:
        peer.processes.freeze()
        await asyncio.sleep(self._chance.uniform(*NAP_S))
        peer.processes.thaw()

    async def _cut(self, peer: HarnessPeer) -> None:
        peer.link.set_link(LinkConditions(cut=True))
        await asyncio.sleep(self._chance.uniform(*CUT_S))
        peer.link.set_link()

    async def _leave(self, peer: HarnessPeer) -> None:
        peer.process.send_signal(signal.SIGTERM)
        await peer.process.wait(EXIT_TIMEOUT_S)
        await self._stage.restart(peer)


class _Memory:
    """Resident memory of the client and of peers, from the end of the warm-up to the end."""

    def __init__(self, harness: Harness) -> None:
        self._stage = harness
        self._noted: dict[int, int] = {}

    def note(self) -> None:
        """This is what is to stay."""
        self._noted = {pid: self._resident(pid) for pid in (*self._stage.expected_pids, os.getpid())}

    def growth(self) -> list[str]:
        """Processes that live still and have grown by more than the limit."""
        grown = {
            pid: self._resident(pid) - size for pid, size in self._noted.items() if psutil.pid_exists(pid)
        }
        return [
            f"process {pid} has grown by {size / 2**20:.0f} MiB"
            for pid, size in grown.items()
            if size > GROWTH_LIMIT_BYTES
        ]

    @staticmethod
    def _resident(pid: int) -> int:
        return int(psutil.Process(pid).memory_info().rss)
