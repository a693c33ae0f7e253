"""The directory: what is announced is found, and nothing that comes back is trusted."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest
from msgspec import structs

from swarm.errors import NetworkError
from swarm.network.admission import MODELS_KEY
from swarm.network.directory import MAX_SPONSORS, Directory, OwnDirectory
from swarm.network.memory import MemorySwarm
from swarm.security.identity import Identity, new_identity
from swarm.testing.clock import run_virtual
from swarm.values import ModelDigest
from swarm.wire.records import ModelRecord, PeerRecord

MODEL = ModelDigest("ab" * 32)


def now() -> float:
    return 1e9 + asyncio.get_running_loop().time()


@pytest.fixture
def directory() -> Callable[[MemorySwarm], tuple[OwnDirectory, Identity]]:
    def join(swarm: MemorySwarm) -> tuple[OwnDirectory, Identity]:
        identity = new_identity()
        return OwnDirectory(swarm.join(identity), identity, now), identity

    return join


Join = Callable[[MemorySwarm], tuple[OwnDirectory, Identity]]
Make = Callable[..., PeerRecord]


def play(act: Callable[[MemorySwarm], Awaitable[None]]) -> None:
    async def run() -> None:
        await act(MemorySwarm(seed=1, now=now))

    run_virtual(run())


def sponsorship(identity: Identity, **changes: object) -> ModelRecord:
    fields: dict[str, object] = {
        "peer": identity.peer_id, "model": MODEL, "issued_at": now(), "expires_at": now() + 45,
        "sequence": 1, "name": "tiny", "num_blocks": 80, "hidden_size": 64, "model_type": "llama",
    }  # fmt: skip
    return ModelRecord(**(fields | changes))


@pytest.mark.parametrize(("start", "end"), [(0, 1), (31, 33), (0, 80), (79, 80), (32, 64)])
def test_announced_span_is_in_the_snapshot_once(
    directory: Join, make_record: Make, start: int, end: int
) -> None:
    async def act(swarm: MemorySwarm) -> None:
        own, identity = directory(swarm)
        record = make_record(identity, issued_at=now(), start=start, end=end)
        assert await own.announce(record)
        other, _ = directory(swarm)
        snapshot = await other.snapshot(MODEL, 80)
        assert snapshot.peers == (record,)
        assert (snapshot.model, snapshot.num_blocks, snapshot.taken_at) == (MODEL, 80, now())

    play(act)


def test_snapshot_is_in_order_of_the_blocks(directory: Join, make_record: Make) -> None:
    async def act(swarm: MemorySwarm) -> None:
        for start in (64, 0, 32):
            own, identity = directory(swarm)
            await own.announce(make_record(identity, issued_at=now(), start=start, end=start + 10))
        assert [record.start for record in (await own.snapshot(MODEL, 80)).peers] == [0, 32, 64]

    play(act)


def test_peer_that_moved_is_listed_where_it_is_now(directory: Join, make_record: Make) -> None:
    async def act(swarm: MemorySwarm) -> None:
        own, identity = directory(swarm)
        await own.announce(make_record(identity, issued_at=now(), start=0, end=10, sequence=1))
        await own.announce(make_record(identity, issued_at=now(), start=40, end=50, sequence=2))
        assert [str(record.span) for record in (await own.snapshot(MODEL, 80)).peers] == ["40:50"]

    play(act)


def test_withdrawn_peer_is_draining_at_once_and_gone_with_its_record(
    directory: Join, make_record: Make
) -> None:
    async def act(swarm: MemorySwarm) -> None:
        own, identity = directory(swarm)
        record = make_record(identity, issued_at=now())
        await own.announce(record)
        assert await own.withdraw(structs.replace(record, sequence=2))
        (left,) = (await own.snapshot(MODEL, 80)).peers
        assert left.state == "draining"
        await asyncio.sleep(46)
        assert (await own.snapshot(MODEL, 80)).peers == ()

    play(act)


def test_record_of_another_wire_version_stays_visible(directory: Join, make_record: Make) -> None:
    async def act(swarm: MemorySwarm) -> None:
        own, identity = directory(swarm)
        await own.announce(make_record(identity, issued_at=now(), wire_version=99))
        assert [record.wire_version for record in (await own.snapshot(MODEL, 80)).peers] == [99]

    play(act)


def test_span_beyond_the_model_is_not_believed(directory: Join, make_record: Make) -> None:
    async def act(swarm: MemorySwarm) -> None:
        own, identity = directory(swarm)
        assert await own.announce(make_record(identity, issued_at=now(), start=0, end=20))
        assert (await own.snapshot(MODEL, 10)).peers == ()

    play(act)


def test_peers_of_other_models_are_not_listed(directory: Join, make_record: Make) -> None:
    async def act(swarm: MemorySwarm) -> None:
        own, identity = directory(swarm)
        await own.announce(make_record(identity, issued_at=now(), model="cd" * 32))
        assert (await own.snapshot(MODEL, 80)).peers == ()

    play(act)


def test_record_that_the_directory_refuses_is_told(directory: Join, make_record: Make) -> None:
    async def act(swarm: MemorySwarm) -> None:
        own, identity = directory(swarm)
        assert not await own.announce(make_record(identity, issued_at=now() + 100))

    play(act)


def test_directory_of_a_node_that_left_is_a_network_error(directory: Join) -> None:
    async def act(swarm: MemorySwarm) -> None:
        identity = new_identity()
        network = swarm.join(identity)
        await network.close()
        with pytest.raises(NetworkError):
            await Directory(network, now).snapshot(MODEL, 80)

    play(act)


def test_sponsored_model_is_listed(directory: Join) -> None:
    async def act(swarm: MemorySwarm) -> None:
        own, identity = directory(swarm)
        record = sponsorship(identity)
        assert await own.announce_model(record)
        assert await Directory(swarm.join(new_identity()), now).models() == (record,)

    play(act)


def test_ninth_sponsor_is_not_needed_until_one_goes(directory: Join) -> None:
    async def act(swarm: MemorySwarm) -> None:
        network = swarm.join(new_identity())
        for _ in range(MAX_SPONSORS):
            own, identity = directory(swarm)
            assert await own.announce_model(sponsorship(identity))
        late, late_identity = directory(swarm)
        assert not await late.announce_model(sponsorship(late_identity))
        assert await own.announce_model(sponsorship(identity, sequence=2, expires_at=now() + 60))
        assert len((await network.fetch(MODELS_KEY)).records) == MAX_SPONSORS
        await asyncio.sleep(46)
        assert await late.announce_model(sponsorship(late_identity))

    play(act)


def test_sponsors_that_say_something_else_do_not_count(directory: Join) -> None:
    async def act(swarm: MemorySwarm) -> None:
        for _ in range(MAX_SPONSORS):
            liar, identity = directory(swarm)
            assert await liar.announce_model(sponsorship(identity, num_blocks=1))
        honest, identity = directory(swarm)
        assert await honest.announce_model(sponsorship(identity))

    play(act)


def test_model_is_described_as_most_sponsors_do(directory: Join) -> None:
    async def act(swarm: MemorySwarm) -> None:
        for name in ("true", "false", "true"):
            own, identity = directory(swarm)
            await own.announce_model(sponsorship(identity, name=name))
        assert [record.name for record in await own.models()] == ["true"]

    play(act)
