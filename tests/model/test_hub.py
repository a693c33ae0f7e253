"""Pulling from the Hugging Face hub: a small hub on loopback, well and ill behaved."""

import contextlib
import errno
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from hub_server import COMMIT, WEIGHTS, serving, tag
from huggingface_hub import constants, try_to_load_from_cache

from swarm.errors import ConfigurationError, DownloadFailed
from swarm.model import hub_cache, store, transfer
from swarm.model.gguf import convert_gguf
from swarm.model.hub import HubModel, parse_hub_name
from swarm.model.transfer import Partial

SOME = 20_000  # bytes after which a line is cut


@pytest.fixture
def hub(tiny_gguf, tmp_path):
    """A running hub with a small model and much that is of no use to us."""
    model = tmp_path / "original"
    model.mkdir()
    convert_gguf(tiny_gguf().write(tmp_path / "tiny.gguf"), model)
    files = {path.name: path.read_bytes() for path in model.iterdir()}
    files |= {
        "pytorch_model.bin": b"pickle",
        "modeling_tiny.py": b"code",
        "consolidated.safetensors": b"again",
        "onnx/model.safetensors": b"again",
        "additional_chat_templates/../../../../escaped.jinja": b"elsewhere",
    }
    with serving(files) as server:
        yield server


@pytest.fixture
def settings(hub, tmp_path):
    """The environment of a program that is to use the hub."""
    return {
        "HF_ENDPOINT": hub.url,
        "HF_HOME": str(tmp_path / "hf"),
        "HF_HUB_OFFLINE": "0",
        "HF_TOKEN": "secret",
        "SWARM_HOME": str(tmp_path / "swarm"),
        "OMP_NUM_THREADS": "1",
    }


@pytest.fixture
def start(settings):
    """Starts `swarm model pull NAME --json` against the hub."""
    with contextlib.ExitStack() as stack:

        def run(name: str, **environment: str) -> subprocess.Popen[str]:
            process = subprocess.Popen(
                [sys.executable, "-m", "swarm", "model", "pull", name, "--json"],
                env=os.environ | settings | environment,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
            stack.enter_context(process)
            stack.callback(process.kill)
            return process

        yield run


@pytest.fixture
def pull(start):
    """Runs `swarm model pull NAME --json` to its end; gives its exit code, stdout and stderr."""

    def run(name: str, **environment: str) -> tuple[int, str, str]:
        process = start(name, **environment)
        stdout, stderr = process.communicate(timeout=100)
        return process.returncode, stdout, stderr

    return run


@pytest.fixture
def fetch(hub, tmp_path, monkeypatch):
    """Pulls ``org/tiny`` in this process, without waiting between tries; gives the weights that arrived."""
    monkeypatch.setattr(constants, "ENDPOINT", hub.url)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hf" / "hub"))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setenv("HF_TOKEN", "secret")
    monkeypatch.setattr(transfer, "FIRST_WAIT_S", 0.001)

    def run(name: str = "org/tiny") -> bytes:
        return (store.pull(name, tmp_path / "root") / WEIGHTS).read_bytes()

    return run


@pytest.fixture
def blobs(tmp_path):
    """Where the hub's cache keeps what is whole, and what is not yet."""
    return tmp_path / "hf" / "hub" / "models--org--tiny" / "blobs"


def leftovers(blobs: Path) -> list[Path]:
    return list(blobs.glob("*.incomplete"))


def test_pull_takes_what_is_needed_of_one_commit_and_works_offline_afterwards(hub, pull, tmp_path):
    code, stdout, stderr = pull("org/tiny")
    assert code == 0, stderr
    result = json.loads(stdout)
    directory = Path(result["directory"])
    assert {path.name for path in directory.iterdir()} == {
        "chat_template.jinja",
        "config.json",
        "generation_config.json",
        "model.safetensors",
        "special_tokens_map.json",
        "swarm-manifest.json",
        "tokenizer.json",
        "tokenizer_config.json",
    }
    unwanted = (".bin", ".py", "consolidated.safetensors", "onnx/model.safetensors", "escaped.jinja")
    assert not any(each.path.endswith(unwanted) for each in hub.asked)
    assert (directory / WEIGHTS).read_bytes() == hub.files[WEIGHTS]
    assert COMMIT in str((directory / WEIGHTS).readlink())
    again = pull("org/tiny", HF_ENDPOINT="http://127.0.0.1:9", SWARM_HOME=str(tmp_path / "other"))
    assert json.loads(again[1])["manifest"] == result["manifest"]
    offline = pull("org/tiny", HF_HUB_OFFLINE="1", SWARM_HOME=str(tmp_path / "third"))
    assert json.loads(offline[1])["manifest"] == result["manifest"]


@pytest.mark.parametrize(
    ("name", "what"),
    [
        ("org/mystery", "no such repository, or it is private"),
        ("org/tiny@v2", "no such revision"),
        ("org/gated", "consent.*HF_TOKEN"),
    ],
)
def test_what_the_hub_refuses_is_told_with_what_to_do(name, what, fetch, tmp_path):
    with pytest.raises(DownloadFailed, match=f"^{name.split('@')[0]} could not be downloaded.*{what}"):
        fetch(name)
    assert not any((tmp_path / "root" / "models").iterdir())


def test_pull_without_network_says_so(pull, tmp_path):
    code, _, stderr = pull("org/tiny", HF_ENDPOINT="http://127.0.0.1:9")
    assert code == 1
    assert re.search("cannot be reached.*network connection", stderr)
    assert not any((tmp_path / "swarm" / "cache" / "models").iterdir())


def test_model_without_safetensors_is_refused(hub, pull, tmp_path):
    del hub.files[WEIGHTS]
    code, _, stderr = pull("org/tiny")
    assert code == 1
    assert "org/tiny has no safetensors" in stderr
    assert not any((tmp_path / "swarm" / "cache" / "models").iterdir())


def test_what_was_pulled_is_found_by_the_library(hub, fetch, tmp_path):
    fetch("org/tiny@v1")
    found = try_to_load_from_cache("org/tiny", WEIGHTS, cache_dir=tmp_path / "hf" / "hub", revision="v1")
    assert isinstance(found, str)
    assert Path(found).read_bytes() == hub.files[WEIGHTS]


def test_interrupted_pull_ends_at_once_and_goes_on_where_it_was(hub, start, pull, blobs):
    hub.manners.rate_bytes_per_s = SOME
    process = start("org/tiny")
    for _ in until(lambda: hub.sent_bytes > SOME and leftovers(blobs)):
        assert process.poll() is None, process.communicate()
    process.send_signal(signal.SIGINT)
    _, stderr = process.communicate(timeout=30)
    assert process.returncode == 130
    assert "goes on with" in stderr
    [partial] = leftovers(blobs)
    here = partial.stat().st_size
    assert partial.read_bytes() == hub.files[WEIGHTS][:here]
    hub.manners.rate_bytes_per_s = 0
    code, stdout, stderr = pull("org/tiny")
    assert code == 0, stderr
    assert hub.ranges() == [None, f"bytes={here}-"]
    assert (Path(json.loads(stdout)["directory"]) / WEIGHTS).read_bytes() == hub.files[WEIGHTS]
    assert leftovers(blobs) == []


def test_two_pulls_at_once_fetch_each_byte_once(hub, start, tmp_path):
    hub.manners.rate_bytes_per_s = SOME
    processes = [start("org/tiny", SWARM_HOME=str(tmp_path / name)) for name in ("one", "two")]
    results = [process.communicate(timeout=100) for process in processes]
    assert [process.returncode for process in processes] == [0, 0], results
    assert hub.ranges() == [None]
    assert len({json.loads(stdout)["manifest"] for stdout, _ in results}) == 1


@pytest.mark.parametrize("is_chunked", [False, True], ids=["with a length", "chunked"])
def test_line_that_is_cut_again_and_again_is_taken_up(is_chunked, hub, fetch):
    hub.manners.cuts = [SOME, 0, 1, SOME]
    hub.manners.is_chunked = is_chunked
    assert fetch() == hub.files[WEIGHTS]
    assert hub.ranges()[:2] == [None, f"bytes={SOME}-"]


def test_hub_that_lists_files_apart_from_the_commit_will_do(hub, fetch):
    hub.manners.lists_by_tree = True
    assert fetch() == hub.files[WEIGHTS]


def test_server_in_trouble_is_asked_again(hub, fetch):
    hub.manners.cuts = [SOME]
    hub.manners.statuses = [200, 503, 500, 429]
    assert fetch() == hub.files[WEIGHTS]


def test_server_that_stays_in_trouble_is_told_and_what_arrived_is_kept(hub, fetch, blobs):
    hub.manners.cuts = [SOME]
    hub.manners.statuses = [200] + [503] * 100
    with pytest.raises(DownloadFailed, match=r"503.*goes on with what has arrived"):
        fetch()
    [partial] = leftovers(blobs)
    assert partial.read_bytes() == hub.files[WEIGHTS][:SOME]


def test_server_that_ignores_ranges_sends_all_anew(hub, fetch):
    hub.manners.ranges = "ignored"
    hub.manners.cuts = [SOME]
    assert fetch() == hub.files[WEIGHTS]


def test_server_that_ignores_ranges_and_always_cuts_is_given_up(hub, fetch):
    hub.manners.ranges = "ignored"
    hub.manners.cuts = [SOME] * 100
    with pytest.raises(DownloadFailed, match="did not get beyond 20,000"):
        fetch()


@pytest.mark.parametrize("manner", ["refused", "shifted"])
def test_server_without_the_range_that_is_asked_for_sends_all_anew(manner, hub, fetch):
    hub.manners.ranges = manner
    hub.manners.cuts = [SOME]
    assert fetch() == hub.files[WEIGHTS]
    assert hub.ranges() == [None, f"bytes={SOME}-", None]


def test_file_that_changes_meanwhile_is_fetched_as_it_is_now(hub, fetch, blobs):
    hub.manners.cuts = [SOME]
    hub.manners.changes_to = now = bytes(reversed(hub.files[WEIGHTS]))
    with contextlib.suppress(Exception):  # what is there now is no model
        fetch()
    assert [path.read_bytes() for path in blobs.iterdir() if path.stat().st_size > SOME] == [now]
    assert leftovers(blobs) == []


def test_weights_with_a_wrong_checksum_are_thrown_away(hub, fetch, blobs):
    hub.manners.sent = bytes(reversed(hub.files[WEIGHTS]))
    with pytest.raises(DownloadFailed, match="another SHA-256"):
        fetch()
    assert len(hub.ranges()) == 1
    assert all(path.stat().st_size == 0 for path in leftovers(blobs))


def test_pieces_that_do_not_make_the_file_are_fetched_anew(hub, fetch, blobs):
    hub.manners.cuts = [SOME]
    hub.manners.statuses = [200, 404]
    with pytest.raises(DownloadFailed, match="404"):
        fetch()
    damage(blobs)
    assert fetch() == hub.files[WEIGHTS]


def test_small_file_that_nothing_vouches_for_begins_anew(hub, fetch, blobs, tmp_path):
    content = hub.files["config.json"]
    blobs.mkdir(parents=True)
    (blobs / f"{tag(content)}.incomplete").write_bytes(bytes(len(content)))  # as after a loss of power
    fetch()
    assert (tmp_path / "root" / "models" / "org--tiny" / "config.json").read_bytes() == content


@pytest.mark.parametrize("said", [-1, 1])
@pytest.mark.parametrize("is_chunked", [False, True], ids=["with a length", "chunked"])
def test_server_that_lies_about_the_length_is_told(said, is_chunked, hub, fetch):
    hub.manners.said_bytes = len(hub.files[WEIGHTS]) + said
    hub.manners.is_chunked = is_chunked
    with pytest.raises(DownloadFailed, match=r"model\.safetensors"):
        fetch()


def test_token_is_not_shown_to_the_server_that_has_the_bytes(hub, fetch):
    with serving(dict(hub.files)) as other:
        hub.manners.elsewhere = other.url
        hub.manners.cuts = other.manners.cuts = [SOME]
        assert fetch() == hub.files[WEIGHTS]
        assert {each.authorization for each in other.asked} == {None}
        assert {each.authorization for each in hub.asked} == {"Bearer secret"}
        assert other.ranges() == [None, f"bytes={SOME}-"]


def test_files_of_the_same_content_are_fetched_once(hub, fetch, tmp_path):
    hub.files["special_tokens_map.json"] = hub.files["generation_config.json"]
    stages = []
    store.pull("org/tiny", tmp_path / "root", lambda stage, done, total: stages.append(stage))
    asked = [*hub.ranges("special_tokens_map.json"), *hub.ranges("generation_config.json")]
    assert asked == [None]
    assert set(stages) == {"downloading", "hashing"}


def test_password_file_of_other_programs_does_not_take_the_place_of_the_token(
    hub, fetch, tmp_path, monkeypatch
):
    (tmp_path / "netrc").write_text("machine 127.0.0.1 login somebody password else\n")
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    fetch()
    assert {each.authorization for each in hub.asked} == {"Bearer secret"}


def test_proxy_of_the_environment_is_gone_through(hub, fetch, monkeypatch):
    monkeypatch.setattr(constants, "ENDPOINT", "http://hub.example")
    monkeypatch.setenv(
        "http_proxy", hub.url
    )  # a proxy is asked for whole addresses, and this one serves them
    assert fetch() == hub.files[WEIGHTS]


def test_disk_without_room_is_told_before_a_byte_is_fetched(hub, fetch, monkeypatch):
    usage = shutil.disk_usage("/")
    monkeypatch.setattr(hub_cache.shutil, "disk_usage", lambda path: usage._replace(free=SOME))
    with pytest.raises(
        ConfigurationError, match=r"KiB are to be downloaded into .*models--org--tiny.*HF_HOME"
    ):
        fetch()
    assert hub.ranges() == []


def test_disk_that_fills_up_is_told_and_what_arrived_is_kept(hub, fetch, blobs, monkeypatch):
    hub.manners.rate_bytes_per_s = 10 * SOME
    write = Partial.write

    def fill(partial: Partial, chunk: bytes) -> None:
        if partial.here_bytes > SOME:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        write(partial, chunk)

    monkeypatch.setattr(Partial, "write", fill)
    with pytest.raises(ConfigurationError, match=r"No space left.*HF_HOME"):
        fetch()
    [partial] = leftovers(blobs)
    assert partial.stat().st_size > SOME


def test_what_processes_that_died_left_is_swept(hub, fetch, blobs):
    blobs.mkdir(parents=True)
    (blobs / "0123.incomplete").write_bytes(b"of an older state")
    (blobs / f"{'e' * 64}.0123abcd.incomplete").write_bytes(b"as newer libraries name it")
    fetch()
    assert leftovers(blobs) == []


@pytest.mark.parametrize("etag", ["../../escaped", "", "a/b", "x" * 200])
def test_tag_that_is_no_file_name_is_refused(etag, hub, fetch):
    hub.manners.said_etag = etag or " "
    with pytest.raises(DownloadFailed, match="without a tag"):
        fetch()


@pytest.mark.parametrize(
    ("name", "model"),
    [
        ("org/name", HubModel("org/name", None)),
        ("Org-1/Na.me_2@v1.0", HubModel("Org-1/Na.me_2", "v1.0")),
        ("name", None),
        ("a/b/c", None),
        ("../b", None),
        ("a/..", None),
        ("/b", None),
        ("a/b@", None),
    ],
)
def test_names_of_the_hub_are_told_from_others(name, model):
    assert parse_hub_name(name) == model


def damage(blobs: Path) -> None:
    """Change a byte of what has arrived."""
    [partial] = leftovers(blobs)
    content = bytearray(partial.read_bytes())
    content[SOME // 2] ^= 1
    partial.write_bytes(content)


def until(holds: object) -> Iterator[None]:
    """Go round until something holds, for 60 s at most."""
    for _ in range(1200):
        if holds():  # type: ignore[operator]
            return
        yield
        time.sleep(0.05)
    raise AssertionError("it never came so far")
