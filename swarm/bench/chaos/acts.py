"""Single faults, each done to the chain of a reply that is under way."""

import signal
from collections.abc import Callable, Sequence

from swarm.bench.chaos.harness import EXIT_TIMEOUT_S, HarnessPeer
from swarm.bench.chaos.scenario_run import Act, ScenarioRun
from swarm.network.memory import LinkConditions
from swarm.testing.faults import NodeProcesses
from swarm.testing.links import CLEAR

Choose = Callable[[ScenarioRun, Sequence[HarnessPeer]], Sequence[HarnessPeer]]  # the victims of a chain

SLOW_DELAY_S = 0.25


def any_one(run: ScenarioRun, chain: Sequence[HarnessPeer]) -> Sequence[HarnessPeer]:
    """A hop by chance."""
    return [run.chance.choice(chain)]


def first(run: ScenarioRun, chain: Sequence[HarnessPeer]) -> Sequence[HarnessPeer]:
    """The first hop."""
    return chain[:1]


def last(run: ScenarioRun, chain: Sequence[HarnessPeer]) -> Sequence[HarnessPeer]:
    """The last hop."""
    return chain[-1:]


def any_one_and_its_replicas(run: ScenarioRun, chain: Sequence[HarnessPeer]) -> Sequence[HarnessPeer]:
    """All peers of the blocks of a hop by chance, that hop first."""
    [hop] = any_one(run, chain)
    return [hop, *run.harness.replicas(hop)]


def every(run: ScenarioRun, chain: Sequence[HarnessPeer]) -> Sequence[HarnessPeer]:
    """All hops at once."""
    return chain


def kill(choose: Choose = any_one) -> Act:
    """SIGKILL of the program; its network daemon goes with it."""
    return _each(choose, lambda victim: victim.processes.kill_python())


def freeze(choose: Choose = any_one) -> Act:
    """The machine sleeps: everything of the node stands still, no connection breaks."""
    return _each(choose, lambda victim: victim.processes.freeze())


def orphan(choose: Choose = any_one) -> Act:
    """The program dies, its network daemon stays and answers pings."""
    return _each(choose, lambda victim: victim.processes.orphan_p2pd())


def kill_p2pd(choose: Choose = any_one) -> Act:
    """The peer's network daemon dies, the program lives."""
    return _each(choose, lambda victim: victim.processes.kill_p2pd())


def set_link(
    to_peer: LinkConditions = CLEAR, from_peer: LinkConditions = CLEAR, choose: Choose = any_one
) -> Act:
    """The link in front of the peer changes."""
    return _each(choose, lambda victim: victim.link.set_link(to_peer, from_peer))


async def kill_own_p2pd(run: ScenarioRun, chain: Sequence[HarnessPeer]) -> None:
    """The client's own network daemon dies: every hop loses its client."""
    run.disturbed.update(chain)
    NodeProcesses.of_this_process().kill_p2pd()


async def leave(run: ScenarioRun, chain: Sequence[HarnessPeer]) -> None:
    """A hop is told to leave, as by Ctrl-C; it has to be gone in time and without an error."""
    [victim] = any_one(run, chain)
    victim.process.send_signal(signal.SIGTERM)
    status = await victim.process.wait(EXIT_TIMEOUT_S)
    run.require(status == 0, f"{victim.name} left with exit status {status}")


async def kill_with_replacement(run: ScenarioRun, chain: Sequence[HarnessPeer]) -> None:
    """The middle hop dies, and the peer that takes over dies while or soon after it is replayed to."""
    victim = chain[1]
    await kill(lambda *_: [victim])(run, chain)
    heir = await run.harness.until_in_use(run.harness.replicas(victim))
    await kill(lambda *_: [heir])(run, chain)


async def slow_down(run: ScenarioRun, chain: Sequence[HarnessPeer]) -> None:
    """The link to one hop becomes slow, and stays alive."""
    link = LinkConditions(delay_s=SLOW_DELAY_S, jitter_s=SLOW_DELAY_S / 5)
    await set_link(link, link)(run, chain)


def _each(choose: Choose, hurt: Callable[[HarnessPeer], None]) -> Act:
    async def act(run: ScenarioRun, chain: Sequence[HarnessPeer]) -> None:
        victims = choose(run, chain)
        run.disturbed.update(victims)
        for victim in victims:
            hurt(victim)

    return act
