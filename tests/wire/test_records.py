"""Records: signed, owned, short-lived; and snapshots of them."""

import math
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from swarm.errors import InvalidRecord
from swarm.security.identity import Identity, new_identity, verify
from swarm.values import ModelDigest, Span
from swarm.wire.records import MAX_LIFE_S, ModelRecord, PeerRecord, Record, Snapshot, seal, unseal

NOW = 1_000_000.0
OWNER = Identity(bytes(range(32)))
PEER_RECORD = PeerRecord(
    peer=OWNER.peer_id, model="ab" * 32, issued_at=NOW, expires_at=NOW + 45, sequence=7, start=0, end=10,
    state="online", dtype="bf16", quantization="none", decode_tokens_per_s=20.0,
    prefill_tokens_per_s=400.0, free_tokens=4096, queue_depth=0, wire_version=1, software="0.1.0",
)  # fmt: skip
MODEL_RECORD = ModelRecord(
    peer=OWNER.peer_id, model="ab" * 32, issued_at=NOW, expires_at=NOW + 45, sequence=7, name="tiny",
    num_blocks=10, hidden_size=64, model_type="llama",
)  # fmt: skip
# The sealed bytes of PEER_RECORD in wire version 1.
GOLDEN = (
    "92c501c3de0017a474797065a470656572a470656572d934313244334b6f6f574134586f70314a6154334d48"
    "7877594d6b436570597376346950566f704d5877437a35694859644266655342a56d6f64656cd94061626162"
    "6162616261626162616261626162616261626162616261626162616261626162616261626162616261626162"
    "61626162616261626162616261626162a96973737565645f6174cb412e848000000000aa657870697265735f"
    "6174cb412e84da00000000a873657175656e636507a5737461727400a3656e640aa57374617465a66f6e6c69"
    "6e65a56474797065a462663136ac7175616e74697a6174696f6ea46e6f6e65b36465636f64655f746f6b656e"
    "735f7065725f73cb4034000000000000b470726566696c6c5f746f6b656e735f7065725f73cb407900000000"
    "0000ab667265655f746f6b656e73cd1000ab71756575655f646570746800b073657373696f6e735f72657375"
    "6d656400a67274745f6d7380a9726561636861626c65a6646972656374aa6f6e5f62617474657279c2aa7374"
    "61727465645f6174cb0000000000000000ac776972655f76657273696f6e01a8736f667477617265a5302e31"
    "2e30ab7075626c69635f6e616d65a0c44000cab53276703e902fa3fb59c4ef871f1ec7e99c1edd0e5942d1fa"
    "e81907bee2bab6c8dccba6beea70681dcae6c0f111a89b4e94be41f45304126454da2b8f08"
)


def _sealed(**changes: object) -> bytes:
    return seal(structs.replace(PEER_RECORD, **changes), OWNER.sign)


def test_sealed_record_has_exactly_its_golden_bytes() -> None:
    assert seal(PEER_RECORD, OWNER.sign).hex() == GOLDEN


@pytest.mark.parametrize("record", [PEER_RECORD, MODEL_RECORD], ids=["peer", "model"])
def test_sealed_record_comes_back(record: Record) -> None:
    assert unseal(seal(record, OWNER.sign), verify, NOW) == record


def test_record_signed_by_another_is_refused() -> None:
    with pytest.raises(InvalidRecord, match="not signed"):
        unseal(seal(PEER_RECORD, new_identity().sign), verify, NOW)


def test_signature_made_for_another_purpose_is_refused() -> None:
    def sign_without_domain(message: bytes) -> bytes:
        return OWNER.sign(message.partition(b"\0")[2])

    with pytest.raises(InvalidRecord, match="not signed"):
        unseal(seal(PEER_RECORD, sign_without_domain), verify, NOW)


@given(st.integers(0, 10_000), st.integers(0, 7))
def test_record_with_any_bit_changed_is_refused(place: int, bit: int) -> None:
    sealed = bytearray(seal(PEER_RECORD, OWNER.sign))
    sealed[place % len(sealed)] ^= 1 << bit
    with pytest.raises(InvalidRecord):
        unseal(bytes(sealed), verify, NOW)


@given(st.binary(max_size=300))
def test_random_bytes_are_an_invalid_record(raw: bytes) -> None:
    with pytest.raises(InvalidRecord):
        unseal(raw, verify, NOW)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"expires_at": NOW}, "expired"),
        ({"expires_at": math.nan}, "expired"),
        ({"issued_at": NOW + 10}, "future"),
        ({"issued_at": math.nan}, "future"),
        ({"expires_at": NOW + MAX_LIFE_S + 1}, "life"),
        ({"issued_at": NOW - 60, "expires_at": NOW + 31}, "life"),
        ({"model": "ab"}, "digest"),
        ({"model": "/" * 64}, "digest"),
        ({"start": 5, "end": 5}, "span"),
        ({"start": -1}, "span"),
        ({"end": 20_000}, "span"),
        ({"public_name": "x" * 65}, "too long"),
        ({"rtt_ms": {str(peer): 1.0 for peer in range(17)}}, "too long"),
        ({"decode_tokens_per_s": math.inf}, "out of range"),
        ({"prefill_tokens_per_s": math.nan}, "out of range"),
        ({"rtt_ms": {"peer": -1.0}}, "out of range"),
    ],
    ids=str,
)
def test_record_that_makes_no_sense_is_refused(changes: dict[str, object], reason: str) -> None:
    with pytest.raises(InvalidRecord, match=reason):
        unseal(_sealed(**changes), verify, NOW)


def test_grace_forgives_clocks_that_differ() -> None:
    sealed = _sealed()
    for moment in (NOW + 47, NOW - 5):
        with pytest.raises(InvalidRecord):
            unseal(sealed, verify, moment)
        assert unseal(sealed, verify, moment, grace_s=3.0) == PEER_RECORD


@pytest.fixture
def snapshot() -> Callable[..., Snapshot]:
    def build(*spans: tuple[int, int, str]) -> Snapshot:
        peers = tuple(
            structs.replace(PEER_RECORD, peer=str(index), start=start, end=end, state=state)
            for index, (start, end, state) in enumerate(spans)
        )
        return Snapshot(ModelDigest("ab" * 32), 6, peers, NOW)

    return build


def test_coverage_counts_online_peers_only(snapshot: Callable[..., Snapshot]) -> None:
    taken = snapshot((0, 3, "online"), (1, 5, "online"), (0, 6, "draining"), (0, 6, "joining"))
    assert taken.coverage() == [1, 2, 2, 1, 1, 0]
    assert taken.holes() == [Span(5, 6)]


def test_snapshot_without_a_peer_keeps_the_rest(snapshot: Callable[..., Snapshot]) -> None:
    taken = snapshot((0, 3, "online"), (3, 6, "online"))
    assert taken.without([taken.peers[0].peer_id]).holes() == [Span(0, 3)]
