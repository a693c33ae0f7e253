"""A real swarm in one process is seen as it is: broken, frozen and lone peers within a minute."""

import asyncio
import time
from dataclasses import dataclass, field

import pytest
import torch
from msgspec import structs

from swarm.network.directory import Directory, OwnDirectory
from swarm.peer.metrics import PeerMetrics
from swarm.security.identity import new_identity
from swarm.status.canary import CanaryRun
from swarm.status.observer import Observer
from swarm.status.watch import CanarySettings
from swarm.testing.swarm import InProcessSwarm
from swarm.values import Span
from swarm.wire.records import MAX_BLOCKS, ModelRecord

FILES, NO_FILES = "with the model's files", "with a join address alone"


@dataclass
class Watcher:
    """An observer on a node of its own; canaries run when a test says so."""

    swarm: InProcessSwarm
    observer: Observer
    runs: list[CanaryRun] = field(default_factory=list)

    async def look(self):
        await self.observer.crawl()
        await self.observer.prove()
        [model] = (await self.observer.state()).models
        return model


def watch(swarm: InProcessSwarm, knowledge: str) -> Watcher:
    root = swarm.directory.parent.parent if knowledge == FILES else None
    network = swarm.net.join(new_identity())
    settings = CanarySettings(every_s=None, store_root=root)
    return Watcher(swarm, Observer(network, Directory(network, swarm.now), settings, swarm.now))


@pytest.fixture
def swarm(tiny_model):
    return InProcessSwarm(tiny_model, now=time.time)


def answer_noise(hosted) -> None:
    """Computes as before and answers something else of the same size."""
    model = hosted.peer.executor._model
    honest = model.forward

    def forward(batch, span=None):
        return [torch.randn_like(rows) * rows.std() for rows in honest(batch, span)]

    model.forward = forward


def conditions(model) -> dict[str, str]:
    return {peer.peer: peer.condition for peer in model.peers}


@pytest.mark.parametrize("knowledge", [FILES, NO_FILES])
async def test_honest_peers_with_replicas_are_healthy(swarm, knowledge):
    async with swarm:
        await swarm.add_peers([Span(0, 3), Span(3, 6), Span(0, 2), Span(2, 6)])
        model = await watch(swarm, knowledge).look()
        assert model.health == "healthy", model.reasons
        assert set(conditions(model).values()) == {"proven"}
        assert model.proof == ("expected" if knowledge == FILES else "agreement")
        assert model.tokens_per_s > 0


@pytest.mark.parametrize("knowledge", [FILES, NO_FILES])
async def test_a_lone_peer_that_answers_noise_is_found_and_leaves_a_hole(swarm, knowledge):
    async with swarm:
        honest, liar, other = await swarm.add_peers([Span(0, 2), Span(2, 4), Span(4, 6)])
        answer_noise(liar)
        watcher = watch(swarm, knowledge)
        await watcher.look()
        model = await watcher.look()  # without files it takes a second question to tell
        assert model.health == "broken"
        assert model.missing == ("2:4",)
        assert conditions(model)[liar.id] == "failing"
        assert conditions(model)[honest.id] == "proven"
        assert conditions(model)[other.id] == "proven"


@pytest.mark.parametrize("knowledge", [FILES, NO_FILES])
async def test_noise_beside_honest_replicas_degrades_and_names_the_peer(swarm, knowledge):
    async with swarm:
        peers = await swarm.add_peers([Span(0, 3), Span(3, 6), Span(0, 3), Span(3, 6), Span(3, 6)])
        answer_noise(peers[4])
        watcher = watch(swarm, knowledge)
        await watcher.look()
        model = await watcher.look()
        assert model.health == "degraded"
        assert conditions(model) == {p.id: "proven" for p in peers[:4]} | {peers[4].id: "failing"}
        assert model.coverage == (2, 2, 2, 2, 2, 2)


async def test_a_frozen_peer_is_found_and_its_replica_keeps_the_model_alive(swarm):
    async with swarm:
        peers = await swarm.add_peers([Span(0, 3), Span(3, 6), Span(3, 6)])
        watcher = watch(swarm, FILES)
        await watcher.look()
        swarm.net.freeze(peers[2].id)
        model = await watcher.look()
        assert conditions(model)[peers[2].id] == "failing"
        assert conditions(model)[peers[1].id] == "proven"
        assert model.health == "degraded"


async def test_behind_a_frozen_lone_peer_the_others_are_still_proven_where_the_answer_is_known(swarm):
    async with swarm:
        first, frozen, last = await swarm.add_peers([Span(0, 2), Span(2, 4), Span(4, 6)])
        watcher = watch(swarm, FILES)
        await watcher.observer.crawl()
        swarm.net.freeze(frozen.id)
        model = await watcher.look()
        assert model.health == "broken"
        assert conditions(model) == {first.id: "proven", frozen.id: "failing", last.id: "proven"}


async def test_a_peer_that_recovers_is_proven_again(swarm):
    async with swarm:
        peers = await swarm.add_peers([Span(0, 6), Span(0, 6)])
        watcher = watch(swarm, FILES)
        await watcher.observer.crawl()
        swarm.net.freeze(peers[0].id)
        assert conditions(await watcher.look())[peers[0].id] == "failing"
        swarm.net.thaw(peers[0].id)
        await watcher.look()
        assert (await watcher.look()).health == "healthy"


async def test_a_peer_that_left_is_shown_as_gone_and_its_blocks_as_missing(swarm):
    async with swarm:
        _, leaving = await swarm.add_peers([Span(0, 3), Span(3, 6)])
        watcher = watch(swarm, FILES)
        assert (await watcher.look()).health == "degraded"
        await leaving.leave(0.1)
        await asyncio.sleep(0)
        model = await watcher.look()
        assert model.health == "broken"
        assert model.missing == ("3:6",)
        assert conditions(model)[leaving.id] in ("draining", "gone")


async def test_a_swarm_without_models_is_seen_and_empty(swarm):
    async with swarm:
        watcher = watch(swarm, NO_FILES)
        await watcher.observer.crawl()
        state = await watcher.observer.state()
        assert (state.models, state.blind, state.health) == ((), False, "unknown")


async def test_what_the_page_counts_is_what_the_peers_counted(swarm, monkeypatch):
    made = []

    def instruments() -> PeerMetrics:
        made.append(PeerMetrics())
        return made[-1]

    monkeypatch.setattr("swarm.testing.swarm.PeerMetrics", instruments)
    async with swarm:
        peers = await swarm.add_peers([Span(0, 3), Span(3, 6), Span(0, 3)])
        watcher = watch(swarm, FILES)
        await watcher.look()
        model = await watcher.look()
        counted = {}
        for hosted, counters in zip(peers, made, strict=True):
            lines = counters.metrics.render().decode().splitlines()
            counted[hosted.id] = {line.split()[0]: float(line.split()[1]) for line in lines if line[0] != "#"}
        for peer in model.peers:
            mine = counted[peer.peer]
            assert peer.canary_steps == mine["swarm_steps_total"] > 0
            assert peer.canary_tokens == mine["swarm_step_tokens_total"]
            assert peer.canary_compute_s == pytest.approx(mine["swarm_step_compute_seconds_sum"], rel=0.05)


async def test_claims_without_peers_are_no_models(swarm):
    async with swarm:
        await swarm.add_peers([Span(0, 3), Span(3, 6)])
        for number in range(30):
            liar = new_identity()
            directory = OwnDirectory(swarm.net.join(liar), liar, swarm.now)
            assert await directory.announce_model(claim(liar, number, swarm.now()))
        watcher = watch(swarm, NO_FILES)
        model = await watcher.look()
        assert model.name == swarm.model.name
        assert (await watcher.observer.state()).models_left_out == 30


async def test_a_proven_model_keeps_its_shape_whatever_others_say(swarm):
    async with swarm:
        await swarm.add_peers([Span(0, 3), Span(3, 6)])
        watcher = watch(swarm, FILES)
        assert (await watcher.look()).num_blocks == 6
        for number in range(20):
            liar = new_identity()
            directory = OwnDirectory(swarm.net.join(liar), liar, swarm.now)
            record = claim(liar, number, swarm.now())
            await directory.announce_model(structs.replace(record, model=swarm.model.manifest))
        assert (await watcher.look()).num_blocks == 6


def claim(identity, number: int, now: float) -> ModelRecord:
    """A model that nobody hosts."""
    return ModelRecord(
        peer=identity.peer_id, model=f"{number:064x}", issued_at=now, expires_at=now + 60, sequence=1,
        name="a", num_blocks=MAX_BLOCKS, hidden_size=64, model_type="llama",
    )  # fmt: skip
