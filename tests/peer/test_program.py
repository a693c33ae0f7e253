"""What a peer decides before it serves: which blocks fit, which to take, and when it is ready."""

import asyncio
from types import SimpleNamespace

import psutil
import pytest

from swarm.errors import BrokenModel, DoesNotFit, NetworkError, UsageError
from swarm.model.config import read_config
from swarm.model.dtypes import parse_dtype
from swarm.model.weights import span_size_bytes
from swarm.network.directory import OwnDirectory
from swarm.network.libp2p import Libp2pConfig
from swarm.network.memory import MemorySwarm
from swarm.peer.announcer import RECORD_LIFE_S, Announcer
from swarm.peer.peer import _is_on_battery
from swarm.peer.program import PeerConfig, _choose_span, _make_plan, _profile, _reasons, _take_back
from swarm.security.identity import Identity, new_identity
from swarm.testing.clock import run_virtual
from swarm.testing.tiny_models import TinyModel, write_tiny_model
from swarm.values import Span


def config(directory, **settings) -> PeerConfig:
    return PeerConfig(
        model=directory.name,
        directory=directory,
        store_root=directory.parent,
        network=Libp2pConfig(),
        **settings,
    )


def memory_for(directory, blocks: int) -> int:
    """Memory in which so many blocks fit, with the caches' share."""
    block = span_size_bytes(read_config(directory), Span(0, 1), parse_dtype("fp32"))
    return int((blocks + 0.5) * block / 0.75)


def test_the_plan_counts_the_blocks_that_fit_beside_the_caches(tiny_directory):
    plan = _make_plan(config(tiny_directory, memory_bytes=memory_for(tiny_directory, 3)))
    assert (plan.fitting_blocks, plan.dtype) == (3, "fp32")


def test_a_narrower_dtype_makes_room_for_twice_as_many(tiny_directory):
    plan = _make_plan(config(tiny_directory, memory_bytes=memory_for(tiny_directory, 3), dtype="bf16"))
    assert plan.fitting_blocks in (6, 7)


def test_fewer_bits_make_room_for_more(tiny_directory):
    memory = memory_for(tiny_directory, 3)
    plan = _make_plan(config(tiny_directory, memory_bytes=memory, dtype="bf16", quantization="int8"))
    assert plan.fitting_blocks > 7


def test_a_span_that_does_not_fit_is_refused_with_what_does(tiny_directory):
    with pytest.raises(DoesNotFit, match=r"4 blocks \(1:5\).*room for 3\. Host 3 of them .*--blocks 1:4"):
        _make_plan(config(tiny_directory, memory_bytes=memory_for(tiny_directory, 3), span=Span(1, 5)))


def test_a_span_outside_the_model_is_refused(tiny_directory):
    with pytest.raises(UsageError, match="4:9 is outside the model, which has 6 blocks"):
        _make_plan(config(tiny_directory, span=Span(4, 9)))


def test_a_missing_file_of_the_span_is_named_before_the_swarm_hears_of_the_peer(tmp_path):
    directory = tmp_path / "sharded"
    write_tiny_model(directory, TinyModel(num_blocks=6, shards=2))
    _make_plan(config(directory))  # keeps the manifest
    (directory / "model-00002-of-00002.safetensors").unlink()
    with pytest.raises(BrokenModel, match=r"model-00002-of-00002\.safetensors, which holds the tensor"):
        _make_plan(config(directory, span=Span(0, 3)))


class Joining:
    """A peer that is about to choose its blocks, on a network in memory."""

    def __init__(self, net: MemorySwarm, identity: Identity, peer_config: PeerConfig) -> None:
        self.plan = _make_plan(peer_config)
        self.network, self.now = net.join(identity), net.now
        self.directory = OwnDirectory(self.network, identity, net.now)
        self.announcer = Announcer(self.directory, _profile(peer_config, self.plan, identity), net.now)

    async def choose(self) -> Span:
        await _choose_span(self.directory, self.announcer, self.plan, self.now)
        return self.announcer.profile.span

    async def states(self) -> list[str]:
        snapshot = await self.directory.snapshot(self.plan.manifest.digest, self.plan.config.num_blocks)
        return [record.state for record in snapshot.peers]


def network() -> MemorySwarm:
    loop = asyncio.get_running_loop()
    return MemorySwarm(0, now=lambda: 1e9 + loop.time())


@pytest.mark.parametrize("count", [2, 4, 7])
def test_peers_that_start_at_the_same_moment_leave_no_block_out(tiny_directory, count):
    async def main():
        net, half = network(), config(tiny_directory, memory_bytes=memory_for(tiny_directory, 3))
        joining = [Joining(net, new_identity(), half) for _ in range(count)]
        return set(map(str, await asyncio.gather(*(peer.choose() for peer in joining))))

    assert run_virtual(main()) == {"0:3", "3:6"}


def test_a_peer_that_could_not_load_takes_its_announcement_back(tiny_directory):
    async def main():
        peer = Joining(network(), new_identity(), config(tiny_directory))
        await peer.choose()
        before = await peer.states()
        await _take_back(peer.announcer)
        return before, await peer.states()

    assert run_virtual(main()) == (["joining"], ["draining"])


def test_a_peer_is_ready_when_it_is_online_and_the_directory_knows(tiny_directory):
    async def main():
        peer = Joining(network(), new_identity(), config(tiny_directory))
        reasons = [_reasons(peer.announcer, peer.network)]
        await peer.announcer.announce()
        reasons.append(_reasons(peer.announcer, peer.network))
        await peer.announcer.move_to("online")
        return [*reasons, _reasons(peer.announcer, peer.network)]

    assert run_virtual(main()) == [
        ["the peer is joining", "the directory has not taken the record"],
        ["the peer is joining"],
        [],
    ]


def test_a_peer_whose_records_the_directory_takes_no_more_is_ready_until_the_last_one_has_expired(
    tiny_directory,
):
    async def main():
        net = network()
        peer, loop = Joining(net, new_identity(), config(tiny_directory)), asyncio.get_running_loop()
        announcing = asyncio.create_task(peer.announcer.run())
        await peer.announcer.move_to("online")
        await asyncio.sleep(60.5)
        net.store = lambda key, sealed, sender: False  # every node refuses what it is given
        seen = [(loop.time(), _reasons(peer.announcer, peer.network))]
        while loop.time() < 120:
            await asyncio.sleep(0.5)
            if seen[-1][1] != (reasons := _reasons(peer.announcer, peer.network)):
                seen.append((loop.time(), reasons))
        del net.store
        await asyncio.sleep(10)
        announcing.cancel()
        return seen[:2], _reasons(peer.announcer, peer.network)

    [(_, before), (expired_at, after)], recovered = run_virtual(main())
    assert (before, recovered) == ([], [])
    assert after == ["the record has expired: the one that the directory took last is 30 s old"]
    assert expired_at == pytest.approx(60 + RECORD_LIFE_S, abs=1)


def test_a_record_of_a_time_to_come_counts_as_one_as_old():
    """The clock was set back: what the directory took then it does not know any more."""
    clock = [5000.0]
    announcer = Announcer(OwnDirectory(None, None, lambda: clock[0]), None, lambda: clock[0])
    announcer.announced_at = 5000.0
    clock[0] -= 3600
    assert announcer.record_age_s == 3600


def test_a_model_record_that_is_not_taken_leaves_the_peer_ready(tiny_directory, monkeypatch):
    async def refuse(self, record):
        raise NetworkError("The directory did not answer in time")

    monkeypatch.setattr(OwnDirectory, "announce_model", refuse)

    async def main():
        peer = Joining(network(), new_identity(), config(tiny_directory))
        await peer.announcer.move_to("online")
        return _reasons(peer.announcer, peer.network)

    assert run_virtual(main()) == []


@pytest.mark.parametrize("error", [FileNotFoundError(2, "No such file", "/sys/class/power_supply"), None])
def test_a_machine_that_does_not_tell_of_a_battery_has_none(monkeypatch, error):
    def fail():
        raise error

    if error is None:
        monkeypatch.delattr(psutil, "sensors_battery", raising=False)
    else:
        monkeypatch.setattr(psutil, "sensors_battery", fail)
    assert _is_on_battery() is False


@pytest.mark.parametrize(("plugged", "on_battery"), [(True, False), (False, True)])
def test_a_machine_is_on_battery_when_no_power_is_plugged_in(monkeypatch, plugged, on_battery):
    battery = SimpleNamespace(power_plugged=plugged)
    monkeypatch.setattr(psutil, "sensors_battery", lambda: battery)
    assert _is_on_battery() is on_battery


def test_a_peer_whose_clock_has_left_the_others_is_not_ready(tiny_directory, monkeypatch):
    async def main():
        peer = Joining(network(), new_identity(), config(tiny_directory))
        await peer.announcer.move_to("online")
        monkeypatch.setattr(type(peer.network), "behind_s", 61.0)
        return _reasons(peer.announcer, peer.network)

    [reason] = run_virtual(main())
    assert reason.startswith("The clock of this machine is 61 s behind those of the nodes around it.")
