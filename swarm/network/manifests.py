"""The manifest protocol: a peer gives the manifest of its model to whoever knows the model's digest.

What comes is a manifest only when it has that digest, so it may come from anybody.
"""

import asyncio
from collections import Counter
from collections.abc import Iterable

from swarm.errors import BrokenModel, NetworkError, ProtocolError, UnknownModel
from swarm.network.channel import Channel
from swarm.network.directory import Directory
from swarm.network.transport import Network
from swarm.security.manifest import Manifest, parse_manifest
from swarm.values import ModelDigest, PeerId
from swarm.wire.frames import MAX_HEADER_BYTES

MANIFEST_PROTOCOL = "/swarm/manifest/1"
DIGEST_CHARS = 64
MAX_MANIFEST_BYTES = 2**22  # 1024 blocks of 14 tensors, each with its name and digest, take 2 MB
_SIZE_DIGITS = 7
ANSWER_TIMEOUT_S = 60.0
OPEN_TIMEOUT_S = 5.0
MOST_AT_ONCE = 16  # questions answered for all others together, one for each
MOST_ASKED = 8


class ManifestServer:
    """Answers who asks for the manifest of this peer's model."""

    def __init__(self, manifest: Manifest) -> None:
        self._digest = manifest.digest.encode()
        self._content = manifest.to_json().encode()
        self._asking: Counter[PeerId] = Counter()

    async def __call__(self, channel: Channel) -> None:
        """A digest comes; its manifest goes, in pieces after its size. Nothing for who asks too much."""
        peer = channel.peer
        if self._asking[peer] or self._asking.total() >= MOST_AT_ONCE:
            return
        self._asking[peer] += 1
        try:
            async with asyncio.timeout(ANSWER_TIMEOUT_S):
                content = self._content if await channel.receive_frame(DIGEST_CHARS) == self._digest else b""
                await channel.send_frame(str(len(content)).encode())
                for start in range(0, len(content), MAX_HEADER_BYTES):
                    await channel.send_frame(content[start : start + MAX_HEADER_BYTES])
        except TimeoutError:
            channel.abort()  # the other end takes its time
        finally:
            self._asking[peer] -= 1
            self._asking += Counter()  # keeps those that still ask, and no others


async def find_manifest(network: Network, directory: Directory, digest: ModelDigest) -> Manifest:
    """The manifest of a model, from a peer that hosts it. Raises `UnknownModel` and `NetworkError`."""
    named = next((each for each in await directory.models() if each.model == digest), None)
    if named is not None:
        snapshot = await directory.snapshot(digest, named.num_blocks)
        found = await ask_for_manifest(network, [record.peer_id for record in snapshot.peers], digest)
        if found is not None:
            return found
    raise UnknownModel(
        f"No peer of this swarm gives the manifest of {digest}",
        "Compare the digest with what `swarm status` shows, or give --manifest a file.",
    )


async def ask_for_manifest(network: Network, peers: Iterable[PeerId], digest: ModelDigest) -> Manifest | None:
    """The manifest of that digest from the first of a few peers that gives it."""
    for peer in list(peers)[:MOST_ASKED]:
        try:
            async with asyncio.timeout(ANSWER_TIMEOUT_S):
                text = (await _ask(network, peer, digest)).decode()
            manifest = parse_manifest(text, f"what peer {peer} gives")
        except (TimeoutError, NetworkError, ProtocolError, BrokenModel, ValueError):
            continue
        if manifest.digest == digest:
            return manifest
    return None


async def _ask(network: Network, peer: PeerId, digest: ModelDigest) -> bytes:
    channel = await network.open_channel(peer, MANIFEST_PROTOCOL, OPEN_TIMEOUT_S)
    try:
        await channel.send_frame(digest.encode())
        said = await channel.receive_frame(_SIZE_DIGITS)
        size_bytes = int(said) if said.isdigit() else 0
        if not 0 < size_bytes <= MAX_MANIFEST_BYTES:
            raise ProtocolError(f"Peer {peer} gives no manifest")
        content = bytearray()
        while len(content) < size_bytes:
            content += await channel.receive_frame(MAX_HEADER_BYTES)
        return bytes(content)
    finally:
        channel.close()
