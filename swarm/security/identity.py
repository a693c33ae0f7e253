"""Who a node is: one Ed25519 key that names it, signs its records and encrypts its connections.

The key file is libp2p's own (protobuf ``PrivateKey``), and the peer id is the public key itself
(libp2p peer-ids spec: identity multihash of the protobuf ``PublicKey``), so a signature is checked
with nothing but the peer id. A private key is never printed and never world-readable.
"""

import contextlib
import os
import secrets
import stat
from pathlib import Path

import base58
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from swarm.errors import ConfigurationError
from swarm.values import PeerId

_KEY_BYTES = 32
_PRIVATE_PREFIX = bytes.fromhex("08011240")  # protobuf: type Ed25519, 64 bytes of data
_PUBLIC_PREFIX = bytes.fromhex("002408011220")  # identity multihash of 36 bytes: type Ed25519, 32 bytes
_MAX_PEER_ID_CHARS = 64


class Identity:
    """An Ed25519 key. `seed` is its 32 secret bytes."""

    __slots__ = ("_key", "peer_id")

    def __init__(self, seed: bytes) -> None:
        self._key = Ed25519PrivateKey.from_private_bytes(seed)
        self.peer_id = PeerId(base58.b58encode(_PUBLIC_PREFIX + self._public_bytes()).decode())

    def __repr__(self) -> str:
        return f"Identity({self.peer_id})"

    def sign(self, message: bytes) -> bytes:
        """The 64 bytes of the Ed25519 signature (RFC 8032)."""
        return self._key.sign(message)

    def to_bytes(self) -> bytes:
        """The libp2p key file: prefix, seed and public key. Secret."""
        return _PRIVATE_PREFIX + self._key.private_bytes_raw() + self._public_bytes()

    def _public_bytes(self) -> bytes:
        return self._key.public_key().public_bytes_raw()


def new_identity() -> Identity:
    """An identity nobody has had before."""
    return Identity(secrets.token_bytes(_KEY_BYTES))


def verify(peer_id: PeerId, message: bytes, signature: bytes) -> bool:
    """Whether `peer_id` signed the message. False, never an error, for anything malformed."""
    public_bytes = _public_bytes_of(peer_id)
    if public_bytes is None:
        return False
    try:
        Ed25519PublicKey.from_public_bytes(public_bytes).verify(signature, message)
    except (InvalidSignature, ValueError):
        return False
    return True


def is_peer_id(text: str) -> bool:
    """Whether the text is the peer id of an Ed25519 key, in its one canonical spelling."""
    return _public_bytes_of(text) is not None


def load_identity(path: Path) -> Identity:
    """Read a key file; raises `ConfigurationError` when it is missing, broken or readable by others."""
    try:
        with path.open("rb") as file:
            mode = os.fstat(file.fileno()).st_mode
            raw = file.read(1024)
    except OSError as error:
        raise ConfigurationError(
            f"The identity file {path} cannot be read: {error.strerror}", "Check its path and its owner."
        ) from error
    if mode & (stat.S_IRWXG | stat.S_IRWXO):
        raise ConfigurationError(
            f"The identity file {path} can be read or changed by other users", f"Run: chmod 600 {path}"
        )
    return _parse(raw, path)


def load_or_create_identity(path: Path) -> Identity:
    """Read the key file, or make one (mode 0600) where none is. Raises `ConfigurationError`.

    The file appears whole or not at all; of two processes that create it at once, both end up with
    the key of the one that was first.
    """
    if not path.exists():
        _write_once(path, new_identity())
    return load_identity(path)


def _parse(raw: bytes, path: Path) -> Identity:
    seed = raw[len(_PRIVATE_PREFIX) : len(_PRIVATE_PREFIX) + _KEY_BYTES]
    if len(seed) == _KEY_BYTES:
        identity = Identity(seed)
        if identity.to_bytes() == raw:
            return identity
    raise ConfigurationError(
        f"{path} is not an Ed25519 identity file, or it is damaged",
        "Restore it from a backup, or move it away: a new identity is made at the next start.",
    )


def _write_once(path: Path, identity: Identity) -> None:
    draft = path.with_name(f"{path.name}.{secrets.token_hex(4)}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        try:
            _write_secret(draft, identity.to_bytes())
            with contextlib.suppress(FileExistsError):  # another process was first
                os.link(draft, path)
        finally:
            draft.unlink(missing_ok=True)
    except OSError as error:
        raise ConfigurationError(
            f"The identity file {path} cannot be written: {error.strerror}",
            "Choose another place with --identity.",
        ) from error


def _write_secret(path: Path, content: bytes) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def _public_bytes_of(peer_id: str) -> bytes | None:
    if len(peer_id) > _MAX_PEER_ID_CHARS:
        return None
    try:
        raw = base58.b58decode(peer_id)
    except ValueError:
        return None
    if len(raw) != len(_PUBLIC_PREFIX) + _KEY_BYTES or not raw.startswith(_PUBLIC_PREFIX):
        return None
    # One spelling per key: two peer ids must never be the same peer.
    return raw[len(_PUBLIC_PREFIX) :] if base58.b58encode(raw).decode() == peer_id else None
