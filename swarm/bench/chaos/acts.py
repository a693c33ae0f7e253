"""Single faults, each done to the chain of a reply that is under way."""

import signal
from collections.abc import Callable, Sequence

from swarm.bench.chaos.scene import Act, Scene
from swarm.bench.chaos.stage import EXIT_TIMEOUT_S, StagedPeer
from swarm.network.memory import LinkConditions
from swarm.testing.faults import NodeProcesses
from swarm.testing.links import CLEAR

Choose = Callable[[Scene, Sequence[StagedPeer]], Sequence[StagedPeer]]  # the victims of a chain

SLOW_DELAY_S = 0.25


def any_one(scene: Scene, chain: Sequence[StagedPeer]) -> Sequence[StagedPeer]:
    """A hop by chance."""
    return [scene.chance.choice(chain)]


def first(scene: Scene, chain: Sequence[StagedPeer]) -> Sequence[StagedPeer]:
    """The first hop."""
    return chain[:1]


def last(scene: Scene, chain: Sequence[StagedPeer]) -> Sequence[StagedPeer]:
    """The last hop."""
    return chain[-1:]


def any_one_and_its_replicas(scene: Scene, chain: Sequence[StagedPeer]) -> Sequence[StagedPeer]:
    """All peers of the blocks of a hop by chance, that hop first."""
    [hop] = any_one(scene, chain)
    return [hop, *scene.stage.replicas(hop)]


def every(scene: Scene, chain: Sequence[StagedPeer]) -> Sequence[StagedPeer]:
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


async def kill_own_p2pd(scene: Scene, chain: Sequence[StagedPeer]) -> None:
    """The client's own network daemon dies: every hop loses its client."""
    scene.disturbed.update(chain)
    NodeProcesses.of_this_process().kill_p2pd()


async def leave(scene: Scene, chain: Sequence[StagedPeer]) -> None:
    """A hop is told to leave, as by Ctrl-C; it has to be gone in time and without an error."""
    [victim] = any_one(scene, chain)
    victim.process.send_signal(signal.SIGTERM)
    status = await victim.process.wait(EXIT_TIMEOUT_S)
    scene.require(status == 0, f"{victim.name} left with exit status {status}")


async def kill_with_replacement(scene: Scene, chain: Sequence[StagedPeer]) -> None:
    """The middle hop dies, and the peer that takes over dies while or soon after it is replayed to."""
    victim = chain[1]
    await kill(lambda *_: [victim])(scene, chain)
    heir = await scene.stage.until_in_use(scene.stage.replicas(victim))
    await kill(lambda *_: [heir])(scene, chain)


async def slow_down(scene: Scene, chain: Sequence[StagedPeer]) -> None:
    """The link to one hop becomes slow, and stays alive."""
    link = LinkConditions(delay_s=SLOW_DELAY_S, jitter_s=SLOW_DELAY_S / 5)
    await set_link(link, link)(scene, chain)


def _each(choose: Choose, hurt: Callable[[StagedPeer], None]) -> Act:
    async def act(scene: Scene, chain: Sequence[StagedPeer]) -> None:
        victims = choose(scene, chain)
        scene.disturbed.update(victims)
        for victim in victims:
            hurt(victim)

    return act
