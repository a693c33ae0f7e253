"""Fetching models for commands: with progress, and told how it goes on when it is interrupted."""

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from swarm.cli.output import note, progress
from swarm.cli.runtime import run_command
from swarm.config import store_root
from swarm.values import Span

if TYPE_CHECKING:
    from swarm.security.manifest import Manifest

MANIFEST_HELP = (
    "The model's manifest, as `swarm model manifest --json` prints it where all of the model is; "
    "with it a model of the hub is fetched only in the parts that are needed."
)


def pull_whole(name: str, manifests: Sequence[Path]) -> Path:
    """Fetch all of a model. Raises `ManifestMismatch` when manifests are given and none is its own."""
    from swarm.model import store

    wanted = _read(manifests)
    with _telling_what_is_kept(name), progress(unit_is_bytes=True) as show:
        directory = store.pull(name, store_root(), show)
        if wanted:  # is it that?
            run_command(store.pull_without_weights(name, store_root(), wanted, show))
    return directory


def pull_parts(name: str, span: Span | None, ends: bool, manifests: Sequence[Path]) -> Path:
    """Fetch the files that hold a span, or the ends, or both."""
    wanted = _read(manifests)

    async def pull() -> Path:
        from swarm.model import parts, store
        from swarm.model.config import read_config

        root = store_root()
        with progress(unit_is_bytes=True) as show:
            directory = await store.pull_without_weights(name, root, wanted, show)
            config = read_config(directory)
            absent = set(
                parts.missing_of_ends(directory, store.ensure_manifest(directory, root)) if ends else ()
            )
            if span is not None:
                config.check_span(span)
                absent |= set(parts.missing_of_span(directory, config, span))
            await parts.fetch(directory, sorted(absent), show)
        return directory

    with _telling_what_is_kept(name):
        return run_command(pull())


def find_model(name: str, manifests: Sequence[Path]) -> Path:
    """The directory of a model that is here, or with its manifest given, of one that is to be fetched."""
    from swarm.model import store

    if not manifests:
        return store.resolve(name, store_root())
    wanted = _read(manifests)
    with _telling_what_is_kept(name), progress(unit_is_bytes=True) as show:
        return run_command(store.pull_without_weights(name, store_root(), wanted, show))


async def fetch_ends(names: Sequence[str], manifests: Sequence[Path]) -> None:
    """Fetch what a client needs of models of the hub that are not here, or only in other parts."""
    from swarm.model import parts, store

    wanted, root = _read(manifests), store_root()
    for name in names:
        with _telling_what_is_kept(name), progress(unit_is_bytes=True) as show:
            if wanted:
                directory = await store.pull_without_weights(name, root, wanted, show)
            else:
                directory = store.resolve(name, root)
            if parts.can_be_fetched(directory):
                absent = parts.missing_of_ends(directory, store.ensure_manifest(directory, root))
                await parts.fetch(directory, absent, show)


@contextmanager
def _telling_what_is_kept(name: str) -> Iterator[None]:
    from swarm.model.hub import parse_hub_name

    try:
        yield
    except (KeyboardInterrupt, asyncio.CancelledError):
        if parse_hub_name(name):
            note("What has arrived is kept: the same command goes on with it.")
        raise


def _read(paths: Sequence[Path]) -> "list[Manifest]":
    from swarm.security.manifest import read_manifest

    return [read_manifest(path) for path in paths]
