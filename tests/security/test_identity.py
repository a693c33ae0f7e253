"""Identities: the libp2p key file, signatures, and what is refused."""

import os
import stat
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swarm.errors import ConfigurationError
from swarm.security.identity import (
    Identity,
    is_peer_id,
    load_identity,
    load_or_create_identity,
    new_identity,
    verify,
)
from swarm.values import PeerId

# RFC 8032, section 7.1, test 2, and the libp2p peer id of its public key.
RFC_SEED = bytes.fromhex("4ccd089b28ff96da9db6c346ec114e0f5b8a319f35aba624da8cf6ed4fb8a6fb")
RFC_PUBLIC = bytes.fromhex("3d4017c3e843895a92b70aa74d1b7ebc9c982ccf2ec4968cc0cd55f12af4660c")
RFC_SIGNATURE = bytes.fromhex(
    "92a009a9f0d4cab8720e820b5f642540a2b27b5416503f8fb3762223ebdb69da"
    "085ac1e43e15996e458f3613d0f11d8c387b2eaeb4302aeeb00d291612bb0c00"
)


def test_signature_equals_the_one_of_the_rfc() -> None:
    assert Identity(RFC_SEED).sign(b"\x72") == RFC_SIGNATURE


def test_key_file_is_libp2p_s_protobuf() -> None:
    assert Identity(RFC_SEED).to_bytes() == bytes.fromhex("08011240") + RFC_SEED + RFC_PUBLIC


def test_peer_id_starts_as_ed25519_ids_do() -> None:
    assert new_identity().peer_id.startswith("12D3KooW")


def test_new_identities_differ() -> None:
    assert new_identity().peer_id != new_identity().peer_id


def test_secret_is_not_in_the_text_of_an_identity() -> None:
    assert repr(Identity(RFC_SEED)) == f"Identity({Identity(RFC_SEED).peer_id})"


def test_signature_is_verified_with_the_peer_id_alone() -> None:
    identity = new_identity()
    assert verify(identity.peer_id, b"message", identity.sign(b"message"))


def test_signature_of_another_message_or_peer_is_refused() -> None:
    identity, other = new_identity(), new_identity()
    assert not verify(identity.peer_id, b"other", identity.sign(b"message"))
    assert not verify(other.peer_id, b"message", identity.sign(b"message"))


@given(st.text(), st.binary(), st.binary())
def test_garbage_is_refused_without_an_error(peer: str, message: bytes, signature: bytes) -> None:
    assert not verify(PeerId(peer), message, signature)


@given(st.binary(max_size=80))
def test_garbage_signature_of_a_real_peer_is_refused(signature: bytes) -> None:
    assert not verify(Identity(RFC_SEED).peer_id, b"message", signature)


def test_peer_id_has_one_spelling() -> None:
    peer = Identity(RFC_SEED).peer_id
    assert is_peer_id(peer)
    for other_spelling in (peer + "\n", " " + peer, "1" + peer, peer[:-1], peer + "é"):
        assert not is_peer_id(other_spelling)


def test_identity_is_made_once_and_then_loaded(tmp_path: Path) -> None:
    path = tmp_path / "keys" / "identity"
    first = load_or_create_identity(path)
    assert load_or_create_identity(path).peer_id == first.peer_id
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert os.listdir(path.parent) == ["identity"]


def test_identity_that_others_can_read_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "identity"
    load_or_create_identity(path)
    path.chmod(0o644)
    with pytest.raises(ConfigurationError, match="chmod 600"):
        load_identity(path)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"not a key",
        Identity(RFC_SEED).to_bytes()[:-1],
        Identity(RFC_SEED).to_bytes() + b"\0",
        bytes.fromhex("08011240") + RFC_SEED + bytes(32),
        bytes.fromhex("08001240") + RFC_SEED + RFC_PUBLIC,
    ],
)
def test_damaged_identity_is_refused_and_kept(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "identity"
    path.write_bytes(content)
    path.chmod(0o600)
    with pytest.raises(ConfigurationError, match="damaged"):
        load_or_create_identity(path)
    assert path.read_bytes() == content


def test_missing_identity_says_which_file(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="nowhere"):
        load_identity(tmp_path / "nowhere")


def test_identity_in_a_place_that_cannot_be_written_says_so(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigurationError, match="cannot be written"):
        load_or_create_identity(tmp_path / "file" / "identity")
