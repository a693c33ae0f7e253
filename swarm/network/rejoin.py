"""How a node finds its way back: whom to try, in which order, and how long to wait between tries.

Pure but for reading and writing the peer list. The list remembers nodes met before, so that a swarm
whose bootstrap is gone can still be found through any of them. It is a cache: a damaged one is
treated as empty.
"""

import contextlib
import hashlib
import logging
import os
import secrets
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import msgspec

from swarm.errors import UsageError
from swarm.network.addresses import JoinAddress, parse_join_address
from swarm.values import PeerId

MAX_KNOWN_PEERS = 64
MAX_AGE_S = 14 * 86400.0
MAX_ADDRESSES_PER_PEER = 4
MAX_CANDIDATES = 24
MAX_SHARED_LISTS = 16

_log = logging.getLogger(__name__)


class KnownPeer(msgspec.Struct, frozen=True):
    """A node that answered once, and where."""

    peer: str
    addresses: tuple[str, ...]  # full join addresses
    last_seen: float  # Unix seconds


PeerList = tuple[KnownPeer, ...]  # the most recently seen first


class _PeerFile(msgspec.Struct, frozen=True):
    """The list as it is kept, with what the node was told to join when it met them: another swarm's
    nodes must not be joined."""

    joined: tuple[str, ...]
    peers: PeerList


@dataclass(frozen=True, slots=True)
class Backoff:
    """Growing waits between tries: `first_s`, times `factor` each, up to `limit_s`."""

    first_s: float = 1.0
    factor: float = 2.0
    limit_s: float = 60.0

    def delay_s(self, attempt: int, chance: float) -> float:
        """The wait before try `attempt` (from 0). `chance` in [0, 1) spreads it over its upper half."""
        full = min(self.limit_s, self.first_s * self.factor ** min(attempt, 64))
        return full * (0.5 + chance / 2)


def remember(known: PeerList, seen: Iterable[KnownPeer]) -> PeerList:
    """The list with newer sightings taken in; the oldest fall off its end."""
    by_peer = {entry.peer: entry for entry in known}
    for entry in seen:
        if entry.addresses and (
            entry.peer not in by_peer or by_peer[entry.peer].last_seen <= entry.last_seen
        ):
            by_peer[entry.peer] = KnownPeer(
                entry.peer, entry.addresses[:MAX_ADDRESSES_PER_PEER], entry.last_seen
            )
    newest_first = sorted(by_peer.values(), key=lambda entry: (-entry.last_seen, entry.peer))
    return tuple(newest_first[:MAX_KNOWN_PEERS])


def candidates(
    configured: Iterable[JoinAddress], known: PeerList, own: PeerId, now: float
) -> tuple[JoinAddress, ...]:
    """Addresses to try: the configured ones first, then nodes met within the last two weeks."""
    found = dict.fromkeys(address for address in configured if address.peer != own)
    for entry in known:
        if now - entry.last_seen <= MAX_AGE_S:
            found.update(dict.fromkeys(_usable(entry, own)))
    return tuple(found)[:MAX_CANDIDATES]


def load_peer_list(path: Path, configured: Iterable[JoinAddress]) -> PeerList:
    """Read the nodes met while joining the same addresses; none when there is no list or it is damaged."""
    try:
        kept = msgspec.json.decode(path.read_bytes(), type=_PeerFile)
    except FileNotFoundError:
        return ()
    except (OSError, msgspec.DecodeError) as error:
        _log.warning("The peer list %s is ignored: %s", path, error)
        return ()
    return kept.peers if kept.joined == _texts(configured) else ()


def shared_peer_list(folder: Path, join: Iterable[str]) -> Path:
    """The list of all clients of this user that join the same addresses.

    The oldest lists of other swarms are removed, so that short-lived ones leave no more than a few behind.
    """
    name = hashlib.sha256("\n".join(sorted(join)).encode()).hexdigest()[:16]
    path = folder / f"{name}.json"
    with contextlib.suppress(OSError):  # of a disk that can only be read, or another that does the same
        others = sorted(folder.glob("*.json"), key=lambda each: each.stat().st_mtime, reverse=True)
        for old in [each for each in others if each != path][MAX_SHARED_LISTS - 1 :]:
            old.unlink(missing_ok=True)
    return path


def save_peer_list(path: Path, configured: Iterable[JoinAddress], known: PeerList) -> None:
    """Write the peer list, whole or not at all. A full disk is logged, not raised: it is a cache."""
    draft = path.with_name(f"{path.name}.{secrets.token_hex(4)}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        draft.write_bytes(msgspec.json.encode(_PeerFile(_texts(configured), known)))
        os.replace(draft, path)
    except OSError as error:
        with contextlib.suppress(OSError):  # of a disk that can only be read
            draft.unlink(missing_ok=True)
        _log.warning("The peer list %s cannot be written: %s", path, error.strerror)


def _texts(configured: Iterable[JoinAddress]) -> tuple[str, ...]:
    return tuple(sorted(map(str, configured)))


def _usable(entry: KnownPeer, own: PeerId) -> list[JoinAddress]:
    addresses = []
    for text in entry.addresses:
        try:
            address = parse_join_address(text)
        except UsageError:
            continue
        leads_back = f"/p2p/{own}/" in text  # whom this node relays for only comes to it
        if address.peer == entry.peer != own and not leads_back:
            addresses.append(address)
    return addresses
