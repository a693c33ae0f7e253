"""Fetching models for commands: with progress, and told how it goes on when it is interrupted."""

import asyncio
import re
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from swarm.cli.output import OnProgress, note, progress, when_long
from swarm.cli.runtime import run_command
from swarm.config import known_peers_folder, store_root
from swarm.errors import SwarmError, UsageError
from swarm.values import ModelDigest, Span

if TYPE_CHECKING:
    from swarm.security.manifest import Manifest

MANIFEST_HELP = (
    "The model's manifest: what `swarm model manifest --json` prints where all of the model is, or its "
    "digest, to get it from the swarm. With it only the parts of a hub's model that are needed are fetched."
)
_DIGEST = re.compile(r"[0-9a-f]{64}")


def pull_whole(name: str, manifests: Sequence[str], join: Sequence[str]) -> Path:
    """Fetch all of a model. Raises `ManifestMismatch` when manifests are given and none is its own."""
    from swarm.model import store

    with _telling_what_is_kept(name), progress(unit_is_bytes=True) as show:
        directory = store.pull(name, store_root(), show)
        if manifests:
            run_command(_find(name, manifests, join, show))  # is it that?
    return directory


def pull_parts(
    name: str, span: Span | None, ends: bool, manifests: Sequence[str], join: Sequence[str]
) -> Path:
    """Fetch the files that hold a span, or the ends, or both."""

    async def pull(show: OnProgress) -> Path:
        from swarm.model import parts, store
        from swarm.model.config import read_config

        directory = await _find(name, manifests, join, show)
        config, absent = read_config(directory), set[str]()
        if ends:
            absent |= set(parts.missing_of_ends(directory, store.ensure_manifest(directory, store_root())))
        if span is not None:
            config.check_span(span)
            absent |= set(parts.missing_of_span(directory, config, span))
        await parts.fetch(directory, sorted(absent), show)
        return directory

    with _telling_what_is_kept(name), progress(unit_is_bytes=True) as show:
        return run_command(pull(show))


def find_model(name: str, manifests: Sequence[str], join: Sequence[str]) -> Path:
    """The directory of a model that is here, or with its manifest given, of one that is to be fetched."""
    from swarm.model import store

    if not manifests:
        return store.resolve(name, store_root())
    with _telling_what_is_kept(name), progress(unit_is_bytes=True) as show:
        return run_command(_find(name, manifests, join, show))


async def fetch_ends(names: Sequence[str], manifests: Sequence[str], join: Sequence[str]) -> None:
    """Fetch what a client needs of models of the hub that are not here, or only in other parts."""
    from swarm.model import parts, store

    root = store_root()
    for name in names:
        with _telling_what_is_kept(name), progress(unit_is_bytes=True) as show:
            if manifests:
                directory = await _find(name, manifests, join, show)
            else:
                directory = store.resolve(name, root)
            manifest = await store.manifest_beside(directory, root, when_long(show))
            if parts.can_be_fetched(directory):
                await parts.fetch(directory, parts.missing_of_ends(directory, manifest), show)


async def _find(name: str, given: Sequence[str], join: Sequence[str], show: OnProgress) -> Path:
    """The directory of a model, begun if need be, with one of the manifests given."""
    from swarm.model import store

    manifests = [await _manifest(name, each, join) for each in given]
    return await store.pull_without_weights(name, store_root(), manifests, show)


async def _manifest(name: str, given: str, join: Sequence[str]) -> "Manifest":
    """A manifest by its file, or by its digest: the one that is kept here, or one that the swarm has."""
    from swarm.security.manifest import read_manifest

    if not _DIGEST.fullmatch(given):
        return read_manifest(Path(given))
    if (kept := _kept(name)) is not None and kept.digest == given:
        return kept
    if not join:
        raise UsageError("The manifest of a digest comes from a swarm", "Name a node of it with --join.")
    note(f"Asking the swarm for the manifest {given[:12]} ...")
    return await _from_swarm(ModelDigest(given), join)


async def _from_swarm(digest: ModelDigest, join: Sequence[str]) -> "Manifest":
    from swarm.network.directory import Directory
    from swarm.network.libp2p import Libp2pConfig, Libp2pNetwork
    from swarm.network.manifests import find_manifest
    from swarm.network.rejoin import shared_peer_list
    from swarm.security.identity import new_identity

    peer_list = shared_peer_list(known_peers_folder(), join)
    config = Libp2pConfig(join=tuple(join), client=True, peer_list=peer_list)
    network = await Libp2pNetwork.start(config, new_identity())
    try:
        return await find_manifest(network, Directory(network, time.time), digest)
    finally:
        await network.close()


def _kept(name: str) -> "Manifest | None":
    from swarm.model import store
    from swarm.security.manifest import load_manifest

    try:
        return load_manifest(store.resolve(name, store_root()))
    except SwarmError:  # it is not here, or not whole
        return None


@contextmanager
def _telling_what_is_kept(name: str) -> Iterator[None]:
    from swarm.model.hub import parse_hub_name

    try:
        yield
    except (KeyboardInterrupt, asyncio.CancelledError):
        if parse_hub_name(name):
            note("What has arrived is kept: the same command goes on with it.")
        raise
