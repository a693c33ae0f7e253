"""What one machine would add to a swarm that runs: asked of its directory, answered by placement's rules."""

import time
from collections.abc import Sequence
from dataclasses import dataclass

from swarm.bench.plan.estimate import Needs
from swarm.network.directory import Directory
from swarm.network.libp2p import Libp2pConfig, Libp2pNetwork
from swarm.peer.placement.choice import Ability, Role, choose, role_of
from swarm.peer.placement.cover import Claims, Cover
from swarm.security.identity import new_identity
from swarm.values import ModelDigest, PeerId, listed, short_id, spans_of
from swarm.wire.records import Snapshot


@dataclass(frozen=True, slots=True)
class Added:
    """What a machine would add."""

    fits: bool
    blocks: str | None
    role: Role | None
    advice: tuple[str, ...]


async def fetch(model: ModelDigest, num_blocks: int, join: Sequence[str]) -> Snapshot:
    """The swarm's records of a model. Raises `JoinFailed`, or another `NetworkError`."""
    network = await Libp2pNetwork.start(Libp2pConfig(join=tuple(join), client=True), new_identity())
    try:
        return await Directory(network, time.time).snapshot(model, num_blocks)
    finally:
        await network.close()


def what_it_adds(snapshot: Snapshot, need: Needs, fitting: int, reads_gb_per_s: float) -> Added:
    """Which blocks it would take, and what that changes."""
    ability = Ability(PeerId("this machine"), fitting, reads_gb_per_s * 1e9 / need.block_bytes)
    claims = Claims.of(snapshot, snapshot.taken_at)
    if not fitting:
        return Added(False, None, None, ("Not one block fits in its memory.",))
    choice = choose(claims, snapshot.num_blocks, ability)
    role, why = role_of(claims, ability, choice.span)
    cover = Cover.of(claims, snapshot.num_blocks)
    filled = spans_of(block for block in choice.span if not cover.claimed[block])
    low = min(int(cover.claimed[block]) for block in choice.span)
    advice = [f"It would host blocks {choice.span}, {len(choice.span)} of {snapshot.num_blocks}."]
    if filled:
        advice.append(f"Nobody hosts blocks {listed([str(span) for span in filled])} without it.")
    else:
        advice.append(f"The least hosted of them would then have {low + 1} peers instead of {low}.")
    advice += [f"It would be a spare: {why}"] if role == "spare" else []
    advice += _unused(snapshot)
    return Added(True, str(choice.span), role, tuple(advice))


def _unused(snapshot: Snapshot) -> list[str]:
    """The peers that clients have no reason to use, and why."""
    told = []
    for record in snapshot.peers:
        if record.reachable == "no":
            told.append(f"Peer …{short_id(record.peer)} is not used: nobody can dial it.")
        elif not record.speaks_ours:
            told.append(f"Peer …{short_id(record.peer)} is not used: it speaks another wire version.")
        elif record.state == "online" and record.decode_tokens_per_s:
            claims = Claims.of(snapshot.without([record.peer_id]), snapshot.taken_at)
            speed = record.decode_tokens_per_s * len(record.span)
            role, why = role_of(claims, Ability(record.peer_id, len(record.span), speed), record.span)
            told += [f"Peer …{short_id(record.peer)} is seldom used: {why}"] if role == "spare" else []
    return told
