"""A conversation's secret: whoever has it may take its sessions up, and nobody else.

Each hop knows the conversation by an id of its own, so what one peer of a chain knows opens nothing at
another. An `Open` is signed with the conversation's key, for one peer and one connection, so that it
cannot be used elsewhere.
"""

import hashlib
import secrets
from dataclasses import dataclass, field

from swarm.security.identity import Identity, verify
from swarm.values import PeerId

_SEED_BYTES = 32
_ID_DOMAIN, _CLAIM_DOMAIN = b"swarm session id 1\0", b"swarm session claim 1\0"


@dataclass(frozen=True, slots=True)
class SessionKey:
    """An Ed25519 key for one conversation. `seed` is its 32 secret bytes."""

    seed: bytes = field(repr=False)

    @classmethod
    def new(cls) -> "SessionKey":
        """A key nobody has had before."""
        return cls(secrets.token_bytes(_SEED_BYTES))

    @property
    def owner(self) -> PeerId:
        """The public key, as peers see it."""
        return Identity(self.seed).peer_id

    def id_at(self, peer: PeerId, first_block: int) -> str:
        """What the session on a peer is called: 32 hex digits that tell nothing of those on others."""
        name = f"{peer} {first_block}".encode()
        return hashlib.blake2b(_ID_DOMAIN + name, key=self.seed, digest_size=16).hexdigest()

    def claim(self, session: str, epoch: int, peer: PeerId, client: PeerId) -> bytes:
        """The signature that lets `client` take the session up on `peer`."""
        return Identity(self.seed).sign(_claimed(session, epoch, peer, client))


@dataclass(frozen=True, slots=True)
class OwnerProof:
    """What an `Open` says about who may take a session up."""

    owner: PeerId
    session: str
    epoch: int
    proof: bytes

    def holds(self, peer: PeerId, client: PeerId) -> bool:
        """Whether the owner let `client`, who opened the connection, take the session up on `peer`."""
        return verify(self.owner, _claimed(self.session, self.epoch, peer, client), self.proof)


def _claimed(session: str, epoch: int, peer: PeerId, client: PeerId) -> bytes:
    return _CLAIM_DOMAIN + f"{session} {epoch} {peer} {client}".encode()
