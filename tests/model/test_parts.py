"""Models of the hub that are here in part: what is fetched for a span or the ends, what vouches for it."""

import asyncio
import json
from dataclasses import replace

import pytest
import torch
from click.testing import CliRunner
from hub_server import files_cut_by_block, serving
from huggingface_hub import constants

from swarm.cli.model import command
from swarm.client.model import load_client_model
from swarm.errors import BrokenModel, ConfigurationError, ManifestMismatch, UnknownModel, UsageError
from swarm.model import parts, store
from swarm.model.compute import InlineCompute
from swarm.model.config import read_config
from swarm.model.weights import build_manifest, load_span
from swarm.security.manifest import MANIFEST_FILE
from swarm.session.local import LocalBlocks
from swarm.session.plan import Numerics
from swarm.testing.tiny_models import TinyModel, write_tiny_model
from swarm.values import Span

BLOCKS = 6


def shards(*numbers: int) -> list[str]:
    """Names of files: 1 has the embedding, 2 to 7 have the blocks, 8 the norm and the lm_head."""
    return [f"model-{number:05d}-of-{BLOCKS + 2:05d}.safetensors" for number in numbers]


@pytest.fixture(scope="module")
def original(tmp_path_factory):
    """The whole model somewhere else, in one file."""
    directory = tmp_path_factory.mktemp("original") / "model"
    write_tiny_model(directory, TinyModel(num_blocks=BLOCKS))
    return directory


@pytest.fixture(scope="module")
def manifest(original):
    """Its manifest, as somebody makes it who has all of it."""
    return build_manifest(original)


@pytest.fixture
def manifest_file(manifest, tmp_path):
    path = tmp_path / "manifest.json"
    path.write_text(manifest.to_json())
    return path


@pytest.fixture
def hub(original, tmp_path, monkeypatch):
    """A hub that has the model in a file for each block."""
    with serving(files_cut_by_block(original)) as server:
        monkeypatch.setattr(constants, "ENDPOINT", server.url)
        monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hf" / "hub"))
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
        yield server


@pytest.fixture
def root(tmp_path, monkeypatch):
    monkeypatch.setenv("SWARM_HOME", str(tmp_path / "home"))
    return tmp_path / "home" / "cache"


@pytest.fixture
def run(root):
    """Runs `swarm model` in this process; gives its stdout."""

    def invoke(*arguments: object) -> str:
        result = CliRunner().invoke(command, [str(each) for each in arguments])
        if isinstance(result.exception, Exception):
            raise result.exception
        assert result.exit_code == 0, result.output
        return result.stdout

    return invoke


def test_only_the_files_of_the_blocks_are_fetched(hub, run, root, manifest, manifest_file):
    run("pull", "org/tiny", "--blocks", "1:3", "--manifest", manifest_file)
    assert hub.weights_asked == shards(3, 4)
    directory = store.resolve("org/tiny", root)
    assert store.ensure_manifest(directory, root).digest == manifest.digest
    config = read_config(directory)
    load_span(directory, config, Span(1, 3), dtype=torch.float32, manifest=manifest)
    with pytest.raises(BrokenModel, match="missing"):
        load_span(directory, config, Span(0, 1), dtype=torch.float32, manifest=manifest)


def test_only_the_files_of_the_ends_are_fetched_for_a_client(hub, run, root, manifest, manifest_file):
    run("pull", "org/tiny", "--ends", "--manifest", manifest_file)
    assert hub.weights_asked == shards(1, 8)
    assert load_client_model("org/tiny", root).manifest == manifest.digest


def test_what_else_is_wanted_later_is_added(hub, run, root, manifest, manifest_file):
    run("pull", "org/tiny", "--blocks", "0:2", "--manifest", manifest_file)
    run("pull", "org/tiny", "--blocks", "1:3", "--ends")
    assert hub.weights_asked == shards(1, 2, 3, 4, 8)
    whole = json.loads(run("pull", "org/tiny", "--json"))
    assert hub.weights_asked == shards(*range(1, BLOCKS + 3))
    assert whole["manifest"] == manifest.digest
    run("pull", "org/tiny", "--blocks", "0:6", "--ends")
    assert hub.weights_asked == shards(*range(1, BLOCKS + 3))


def test_part_that_is_in_the_cache_already_is_fetched_from_nobody(
    hub, run, root, tmp_path, manifest_file, monkeypatch
):
    run("pull", "org/tiny", "--blocks", "0:2", "--manifest", manifest_file)
    monkeypatch.setenv("SWARM_HOME", str(tmp_path / "other"))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    run("pull", "org/tiny", "--blocks", "0:2", "--manifest", manifest_file)
    assert hub.weights_asked == shards(2, 3)


def test_manifest_in_the_repository_will_do(hub, run, root, manifest):
    hub.files[MANIFEST_FILE] = manifest.to_json().encode()
    run("pull", "org/tiny", "--ends")
    assert run("manifest", "org/tiny").strip() == manifest.digest
    assert hub.weights_asked == shards(1, 8)


def test_manifest_in_the_repository_that_is_of_another_model_is_refused(hub, run, root, manifest):
    hub.files[MANIFEST_FILE] = replace(manifest, tokenizer={}).to_json().encode()
    with pytest.raises(ManifestMismatch, match="manifest in its repository is not that of org/tiny"):
        run("pull", "org/tiny", "--ends")
    assert run("pull", "org/tiny") == f"{root / 'models' / 'org--tiny'}\n"
    assert run("manifest", "org/tiny").strip() == manifest.digest


def test_index_that_names_a_pickle_fetches_none(hub, run, root, manifest, manifest_file):
    index = json.loads(hub.files["model.safetensors.index.json"])
    index["weight_map"]["model.layers.0.mlp.up_proj.weight"] = "pytorch_model.bin"
    hub.files |= {"model.safetensors.index.json": json.dumps(index).encode(), "pytorch_model.bin": b"pickle"}
    run("pull", "org/tiny", "--blocks", "0:1", "--manifest", manifest_file)
    assert not any(each.path.endswith(".bin") for each in hub.asked)
    directory = store.resolve("org/tiny", root)
    with pytest.raises(BrokenModel, match=r"pytorch_model\.bin.*missing"):
        load_span(directory, read_config(directory), Span(0, 1), dtype=torch.float32, manifest=manifest)


def test_part_without_a_manifest_is_refused_and_nothing_is_left(hub, run, root):
    with pytest.raises(UnknownModel, match=r"repository holds no swarm-manifest.*--manifest the digest"):
        run("pull", "org/tiny", "--blocks", "0:2")
    assert hub.weights_asked == []
    assert list((root / "models").iterdir()) == []


def test_manifest_of_another_model_is_refused(hub, run, root, manifest, tmp_path):
    other = tmp_path / "other.json"
    other.write_text(replace(manifest, config="0" * 64).to_json())
    with pytest.raises(ManifestMismatch, match="not that of org/tiny"):
        run("pull", "org/tiny", "--blocks", "0:2", "--manifest", other)
    assert list((root / "models").iterdir()) == []


def test_model_that_is_here_is_held_to_the_manifest_given(hub, run, root, manifest, manifest_file, tmp_path):
    run("pull", "org/tiny", "--blocks", "0:2", "--manifest", manifest_file)
    other = tmp_path / "other.json"
    other.write_text(replace(manifest, tensors={}).to_json())
    for options in (["--ends"], []):
        with pytest.raises(ManifestMismatch, match=f"digest {manifest.digest} here"):
            run("pull", "org/tiny", *options, "--manifest", other)


def test_weights_that_the_manifest_does_not_name_are_refused(hub, run, root, manifest, tmp_path):
    changed = tmp_path / "changed.json"
    name = "model.layers.1.mlp.up_proj.weight"
    changed.write_text(replace(manifest, tensors={**manifest.tensors, name: "0" * 64}).to_json())
    run("pull", "org/tiny", "--blocks", "0:2", "--manifest", changed)
    directory = store.resolve("org/tiny", root)
    kept = store.ensure_manifest(directory, root)
    with pytest.raises(ManifestMismatch, match=r"layers\.1\.mlp\.up_proj"):
        load_span(directory, read_config(directory), Span(0, 2), dtype=torch.float32, manifest=kept)
    with pytest.raises(ManifestMismatch, match=r"layers\.1\.mlp\.up_proj"):
        run("verify", "org/tiny")


def test_whole_pull_tells_when_the_manifest_given_was_of_other_weights(
    hub, run, root, manifest, tmp_path, caplog
):
    changed = tmp_path / "changed.json"
    changed.write_text(replace(manifest, tensors=dict(list(manifest.tensors.items())[1:])).to_json())
    run("pull", "org/tiny", "--blocks", "0:2", "--manifest", changed)
    assert json.loads(run("pull", "org/tiny", "--json"))["manifest"] == manifest.digest
    assert f"org/tiny is {manifest.digest}; what was here in part was" in caplog.text


def test_verify_says_how_much_is_here(hub, run, root, manifest, manifest_file):
    run("pull", "org/tiny", "--blocks", "0:2", "--manifest", manifest_file)
    assert f"in part: 18 of {len(manifest.tensors)} tensors, and they match" in run("verify", "org/tiny")
    assert json.loads(run("verify", "org/tiny", "--json"))["whole"] is False


def test_model_in_one_file_is_fetched_whole(original, hub, run, root, manifest_file):
    hub.files = {path.name: path.read_bytes() for path in original.iterdir()}
    run("pull", "org/tiny", "--blocks", "0:1", "--manifest", manifest_file)
    assert hub.weights_asked == ["model.safetensors"]
    assert json.loads(run("verify", "org/tiny", "--json"))["whole"] is True


def test_room_for_the_part_is_looked_at_first(hub, run, root, manifest_file, monkeypatch):
    run("pull", "org/tiny", "--ends", "--manifest", manifest_file)
    monkeypatch.setattr("shutil.disk_usage", lambda path: type("Usage", (), {"free": 10})())
    with pytest.raises(ConfigurationError, match=r"are to be downloaded into .* where 10 B are free"):
        run("pull", "org/tiny", "--blocks", "0:6")
    assert hub.weights_asked == shards(1, 8)


@pytest.mark.parametrize("content", [b"\xff", b"{}", b'{"format": 1}', b"[" * 10_000])
def test_file_that_is_no_manifest_is_refused(content, hub, run, root, tmp_path):
    path = tmp_path / "broken.json"
    path.write_bytes(content)
    with pytest.raises((BrokenModel, UsageError), match=r"broken\.json"):
        run("pull", "org/tiny", "--ends", "--manifest", path)
    assert hub.asked == []


def test_client_does_not_run_blocks_whose_files_are_not_here(hub, run, root, manifest, manifest_file):
    run("pull", "org/tiny", "--blocks", "0:2", "--manifest", manifest_file)
    directory = store.resolve("org/tiny", root)
    local = LocalBlocks(directory, read_config(directory), manifest, InlineCompute(), lambda text: None)
    fits = [local.fits(span, Numerics("fp32", "none")) for span in (Span(0, 2), Span(1, 3))]
    assert fits == [True, False]


def test_tied_ends_that_are_stored_as_the_lm_head_are_found(hub, root, manifest, tmp_path):
    directory = tmp_path / "tied"
    directory.mkdir()
    index = {"weight_map": {"lm_head.weight": "b.safetensors", "model.norm.weight": "a.safetensors"}}
    (directory / "model.safetensors.index.json").write_text(json.dumps(index))
    tied = replace(manifest, tensors={k: v for k, v in manifest.tensors.items() if k != "lm_head.weight"})
    assert parts.missing_of_ends(directory, tied) == ["a.safetensors", "b.safetensors"]


def test_two_that_begin_the_same_model_at_once_do_not_disturb_each_other(hub, root, manifest):
    async def both() -> None:
        one, two = await asyncio.gather(
            store.pull_without_weights("org/tiny", root, [manifest]),
            store.pull_without_weights("org/tiny", root, [manifest]),
        )
        assert one == two
        config = read_config(one)
        spans = [parts.missing_of_span(one, config, span) for span in (Span(0, 3), Span(2, 5))]
        await asyncio.gather(*(parts.fetch(one, files, lambda *_: None) for files in spans))

    asyncio.run(both())
    assert hub.weights_asked == shards(2, 3, 4, 5, 6)
