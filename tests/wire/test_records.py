"""Records: signed, owned, short-lived; and snapshots of them."""

import math
from collections.abc import Callable

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from swarm.errors import InvalidRecord, StaleRecord
from swarm.security.identity import Identity, new_identity, verify
from swarm.values import ModelDigest, Span
from swarm.wire.records import (
    MAX_BLOCKS,
    MAX_LIFE_S,
    MAX_SEALED_BYTES,
    ModelRecord,
    PeerRecord,
    Record,
    Snapshot,
    check_life,
    seal,
    unseal,
)

NOW = 1_000_000.0
OWNER = Identity(bytes(range(32)))
PEER_RECORD = PeerRecord(
    peer=OWNER.peer_id, model="ab" * 32, issued_at=NOW, expires_at=NOW + 45, sequence=7, start=0, end=10,
    state="online", dtype="bf16", quantization="none", kernels="0a1b2c3d4e5f", decode_tokens_per_s=20.0,
    prefill_tokens_per_s=400.0, free_tokens=4096, queue_depth=0, wire_version=1, software="0.1.0",
)  # fmt: skip
MODEL_RECORD = ModelRecord(
    peer=OWNER.peer_id, model="ab" * 32, issued_at=NOW, expires_at=NOW + 45, sequence=7, name="tiny",
    num_blocks=10, hidden_size=64, model_type="llama",
)  # fmt: skip
# The sealed bytes of PEER_RECORD in wire version 1.
GOLDEN = (
    "92c501d0de0017a474797065a470656572a470656572d934313244334b6f6f574134586f70314a6154334d487877594d6b43"
    "6570597376346950566f704d5877437a35694859644266655342a56d6f64656cd94061626162616261626162616261626162"
    "616261626162616261626162616261626162616261626162616261626162616261626162616261626162616261626162a969"
    "73737565645f6174cb412e848000000000aa657870697265735f6174cb412e84da00000000a873657175656e636507a57374"
    "61727400a3656e640aa57374617465a66f6e6c696e65a56474797065a462663136ac7175616e74697a6174696f6ea46e6f6e"
    "65a76b65726e656c73ac306131623263336434653566b36465636f64655f746f6b656e735f7065725f73cb40340000000000"
    "00b470726566696c6c5f746f6b656e735f7065725f73cb4079000000000000ab667265655f746f6b656e73cd1000ab717565"
    "75655f646570746800b073657373696f6e735f726573756d656400a9726561636861626c65a6646972656374aa6f6e5f6261"
    "7474657279c2aa737461727465645f6174cb0000000000000000ac776972655f76657273696f6e01a8736f667477617265a5"
    "302e312e30ab7075626c69635f6e616d65a0c440d341099118ed062e99c96fe51d0991d4ecfe4016309e24feff106532143b"
    "03f10048d830e8f662b0f5b6320e44f84f038b69541d3b891c2efd253eb4499cb609"
)


def _sealed(**changes: object) -> bytes:
    return seal(structs.replace(PEER_RECORD, **changes), OWNER.sign)


def test_sealed_record_has_exactly_its_golden_bytes() -> None:
    assert seal(PEER_RECORD, OWNER.sign).hex() == GOLDEN


@pytest.mark.parametrize("record", [PEER_RECORD, MODEL_RECORD], ids=["peer", "model"])
def test_sealed_record_comes_back(record: Record) -> None:
    assert unseal(seal(record, OWNER.sign), verify) == record


def test_record_signed_by_another_is_refused() -> None:
    with pytest.raises(InvalidRecord, match="not signed"):
        unseal(seal(PEER_RECORD, new_identity().sign), verify)


def test_signature_made_for_another_purpose_is_refused() -> None:
    def sign_without_domain(message: bytes) -> bytes:
        return OWNER.sign(message.partition(b"\0")[2])

    with pytest.raises(InvalidRecord, match="not signed"):
        unseal(seal(PEER_RECORD, sign_without_domain), verify)


@given(st.integers(0, 10_000), st.integers(0, 7))
def test_record_with_any_bit_changed_is_refused(place: int, bit: int) -> None:
    sealed = bytearray(seal(PEER_RECORD, OWNER.sign))
    sealed[place % len(sealed)] ^= 1 << bit
    with pytest.raises(InvalidRecord):
        unseal(bytes(sealed), verify)


@given(st.binary(max_size=300))
def test_random_bytes_are_an_invalid_record(raw: bytes) -> None:
    with pytest.raises(InvalidRecord):
        unseal(raw, verify)


@pytest.mark.parametrize(
    "nested", [b"\x91", b"\x81\xa1x", b"\xc7\x01\x40"], ids=["arrays", "maps", "extensions"]
)
@pytest.mark.parametrize("place", ["envelope", "payload", "field that is skipped"])
def test_nesting_is_refused_at_any_depth(nested: bytes, place: str) -> None:
    deep = nested * (MAX_SEALED_BYTES // 8)
    payload = deep if place == "payload" else b"\x82\xa4type\xa4peer\xa1?" + deep
    sealed = deep if place == "envelope" else msgspec.msgpack.encode((payload, b""))
    with pytest.raises(InvalidRecord):
        unseal(sealed, verify)


def test_record_over_the_limit_is_refused_unread() -> None:
    with pytest.raises(InvalidRecord, match="over the limit"):
        unseal(bytes(MAX_SEALED_BYTES + 1), verify)


def test_longest_record_that_makes_sense_fits() -> None:
    wide = "\N{GRINNING FACE}" * 64
    largest = structs.replace(PEER_RECORD, public_name=wide, software="9" * 32, free_tokens=2**53)
    assert unseal(seal(largest, OWNER.sign), verify) == largest
    named = structs.replace(MODEL_RECORD, name="\N{GRINNING FACE}" * 200)
    assert unseal(seal(named, OWNER.sign), verify) == named


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("issued_at", math.nan), ("expires_at", math.inf), ("sequence", -1), ("sequence", 2**63),
        ("model", "ab"), ("model", "/" * 64), ("model", "ab" * 32 + "\n"), ("peer", ""), ("peer", "x" * 65),
        ("start", -1), ("start", 10), ("end", MAX_BLOCKS + 1), ("dtype", "x" * 33), ("dtype", "bf16\n"),
        ("decode_tokens_per_s", math.inf), ("decode_tokens_per_s", 1e300), ("prefill_tokens_per_s", math.nan),
        ("prefill_tokens_per_s", -0.1), ("free_tokens", -(2**63)), ("queue_depth", -(2**62)),
        ("sessions_resumed", -1), ("started_at", -math.inf), ("wire_version", -1), ("public_name", "x" * 65),
        ("software", "0.1\x1b[2J"),
    ],
)  # fmt: skip
def test_peer_record_with_a_value_out_of_range_is_refused(field: str, value: object) -> None:
    with pytest.raises(InvalidRecord):
        unseal(_sealed(**{field: value}), verify)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("num_blocks", 0),
        ("num_blocks", MAX_BLOCKS + 1),
        ("hidden_size", -1),
        ("name", ""),
        ("name", "x" * 201),
    ],
)
def test_model_record_with_a_value_out_of_range_is_refused(field: str, value: object) -> None:
    with pytest.raises(InvalidRecord):
        unseal(seal(structs.replace(MODEL_RECORD, **{field: value}), OWNER.sign), verify)


@pytest.mark.parametrize("changes", [{"expires_at": NOW + MAX_LIFE_S + 1}, {"issued_at": NOW - 60}])
def test_record_with_a_long_life_is_refused(changes: dict[str, float]) -> None:
    with pytest.raises(InvalidRecord, match="life"):
        unseal(_sealed(**changes), verify)


@pytest.mark.parametrize(("moment", "reason"), [(NOW + 47, "expired"), (NOW - 5, "future")])
def test_record_of_another_time_is_stale_unless_clocks_may_differ(moment: float, reason: str) -> None:
    with pytest.raises(StaleRecord, match=reason):
        check_life(PEER_RECORD, moment)
    check_life(PEER_RECORD, moment, grace_s=3.0)


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
