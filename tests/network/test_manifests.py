"""Manifests that come from strangers: taken from anybody, and only when they have the digest asked for."""

import asyncio
import random
from dataclasses import replace

import pytest

from swarm.errors import ChannelClosed
from swarm.network.manifests import (
    DIGEST_CHARS,
    MANIFEST_PROTOCOL,
    MAX_MANIFEST_BYTES,
    ManifestServer,
    ask_for_manifest,
)
from swarm.network.memory import MemorySwarm
from swarm.security.identity import new_identity
from swarm.security.manifest import Manifest
from swarm.testing.clock import run_virtual
from swarm.values import ModelDigest
from swarm.wire.frames import MAX_HEADER_BYTES

LARGE = Manifest(
    config="0" * 64,
    tokenizer={"tokenizer.json": "1" * 64},
    tensors={f"model.layers.{block}.mlp.up_proj.weight": f"{block:064x}" for block in range(1024)},
)


def asked(handler, digest: str = LARGE.digest) -> Manifest | None:
    """What comes of asking a peer that answers with `handler`, and after it an honest one."""

    async def run():
        net = MemorySwarm(seed=1)
        asker, first = (net.join(new_identity()) for _ in range(2))
        await first.serve(MANIFEST_PROTOCOL, handler)
        return await ask_for_manifest(asker, [first.peer_id], ModelDigest(digest))

    return run_virtual(run())


def test_manifest_of_many_pieces_arrives_whole():
    assert len(LARGE.to_json()) > 10 * MAX_HEADER_BYTES
    assert asked(ManifestServer(LARGE)) == LARGE


def test_peer_of_another_model_gives_nothing():
    assert asked(ManifestServer(LARGE), "f" * 64) is None


async def lie(channel) -> None:
    """Another manifest, which is one."""
    await channel.receive_frame(DIGEST_CHARS)
    content = replace(LARGE, config="2" * 64).to_json().encode()
    await channel.send_frame(str(len(content)).encode())
    for start in range(0, len(content), MAX_HEADER_BYTES):
        await channel.send_frame(content[start : start + MAX_HEADER_BYTES])


async def go_on_for_ever(channel) -> None:
    await channel.receive_frame(DIGEST_CHARS)
    await channel.send_frame(str(MAX_MANIFEST_BYTES).encode())
    for _ in range(2 * MAX_MANIFEST_BYTES // MAX_HEADER_BYTES):
        await channel.send_frame(b" " * MAX_HEADER_BYTES)


async def babble(channel) -> None:
    await channel.send_frame(random.Random(1).randbytes(7))  # noqa: S311


async def announce_too_much(channel) -> None:
    await channel.send_frame(b"9999999")


async def nest(channel) -> None:
    await channel.send_frame(b"8192")
    await channel.send_frame(b"[" * MAX_HEADER_BYTES)


async def stay_silent(channel) -> None:
    await asyncio.sleep(10_000)


async def close(channel) -> None:
    channel.close()


@pytest.mark.parametrize(
    "handler", [lie, go_on_for_ever, announce_too_much, babble, nest, stay_silent, close]
)
def test_peer_that_gives_no_such_manifest_is_passed_over(handler):
    async def run():
        net = MemorySwarm(seed=1)
        asker, bad, good = (net.join(new_identity()) for _ in range(3))
        await bad.serve(MANIFEST_PROTOCOL, handler)
        await good.serve(MANIFEST_PROTOCOL, ManifestServer(LARGE))
        return await ask_for_manifest(asker, [bad.peer_id, good.peer_id], LARGE.digest)

    assert run_virtual(run()) == LARGE


def test_asker_that_takes_nothing_does_not_keep_others_from_it():
    async def run():
        net = MemorySwarm(seed=1)
        server, slow, other = (net.join(new_identity()) for _ in range(3))
        await server.serve(MANIFEST_PROTOCOL, ManifestServer(LARGE))
        silent = await slow.open_channel(server.peer_id, MANIFEST_PROTOCOL, 5.0)
        await asyncio.sleep(1)
        second = await slow.open_channel(server.peer_id, MANIFEST_PROTOCOL, 5.0)
        with pytest.raises(ChannelClosed):  # one question at a time
            await second.receive_frame(MAX_HEADER_BYTES)
        assert await ask_for_manifest(other, [server.peer_id], LARGE.digest) == LARGE
        with pytest.raises(ChannelClosed):  # in the end it is let go
            await silent.receive_frame(MAX_HEADER_BYTES)
        return await ask_for_manifest(slow, [server.peer_id], LARGE.digest)

    assert run_virtual(run()) == LARGE
