"""What a node keeps for the directory is bounded, and a flood does not crowd out who was there."""

import random
from collections.abc import Callable

import pytest

from swarm.network.storage import RecordStorage
from swarm.security.identity import Identity
from swarm.wire.records import ModelRecord, PeerRecord

NOW = 1e9
KEY = f"peers/{'ab' * 32}/0"
Make = Callable[..., PeerRecord]


def storage(**limits: int) -> RecordStorage:
    return RecordStorage(random.Random(1), **limits)  # noqa: S311 - repeatable on purpose


def keep(kept: RecordStorage, record: PeerRecord | ModelRecord, key: str = KEY, now: float = NOW) -> bool:
    return kept.put(key, record, f"{record.peer} {record.sequence}".encode(), now)


@pytest.fixture
def peer(make_record: Make) -> Make:
    identity = Identity(bytes(32))

    def make(name: str, **changes: object) -> PeerRecord:
        return make_record(identity, **({"peer": name, "issued_at": NOW} | changes))

    return make


def told(kept: RecordStorage, now: float = NOW, **limits: int) -> set[str]:
    return {sealed.decode().split()[0] for sealed in kept.get(KEY, now, **limits)}


def test_record_is_told_until_it_expires(peer: Make) -> None:
    kept = storage()
    assert keep(kept, peer("a"))
    assert told(kept, NOW + 44) == {"a"}
    assert told(kept, NOW + 45) == set()
    assert kept.size_bytes == 0


def test_newer_record_takes_the_place_and_an_older_one_does_not(peer: Make) -> None:
    kept = storage()
    assert keep(kept, peer("a", sequence=2))
    assert not keep(kept, peer("a", sequence=1))
    assert keep(kept, peer("a", sequence=3))
    assert kept.get(KEY, NOW) == [b"a 3"]


def test_the_same_record_again_is_kept_already(peer: Make) -> None:
    kept = storage()
    assert keep(kept, peer("a"))
    assert keep(kept, peer("a"))


def test_peer_that_invents_models_has_only_its_last(peer: Make) -> None:
    kept = storage()
    for number in range(1000):
        digest = f"{number:064x}"
        assert keep(kept, peer("a", model=digest, sequence=number), f"peers/{digest}/0")
    assert kept.size_bytes == len(b"a 999")
    assert not keep(kept, peer("a", sequence=5))


def test_one_peer_has_a_bounded_number_of_places(peer: Make) -> None:
    kept = storage()
    places = [keep(kept, peer("a", sequence=number), f"peers/{number}") for number in range(100)]
    assert sum(places) == 40


def test_flooded_key_keeps_whom_it_had(peer: Make) -> None:
    kept = storage(max_per_key=100)
    honest = {f"honest{number}" for number in range(20)}
    for name in honest:
        keep(kept, peer(name))
    for number in range(5000):
        keep(kept, peer(f"flood{number}"), now=NOW + 1 + number / 1000)
    assert honest <= told(kept, NOW + 10)
    assert len(told(kept, NOW + 10)) == 100


def test_renewing_keeps_the_seniority(peer: Make) -> None:
    kept = storage(max_per_key=100)
    keep(kept, peer("honest"))
    for number in range(50):
        keep(kept, peer(f"early{number}"), now=NOW + 1)
    keep(kept, peer("honest", sequence=2), now=NOW + 2)
    for number in range(5000):
        keep(kept, peer(f"flood{number}"), now=NOW + 3)
    assert "honest" in told(kept, NOW + 3)


def test_flood_over_many_keys_stays_within_the_bytes(peer: Make) -> None:
    kept = storage(max_bytes=1000)
    keep(kept, peer("honest"))
    for number in range(2000):
        keep(kept, peer(f"{number}", model=f"{number:064x}"), f"peers/{number}", NOW + 1)
    assert kept.size_bytes <= 1000
    assert told(kept) == {"honest"}


def test_answer_over_its_bound_holds_a_part(peer: Make) -> None:
    kept = storage()
    for number in range(100):
        keep(kept, peer(f"{number:02}"))
    first, second = told(kept, max_bytes=40), told(kept, max_bytes=40)
    assert len(first) == len(second) == 10
    assert first != second
