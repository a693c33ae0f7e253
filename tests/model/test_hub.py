"""Pulling from the Hugging Face hub: the real client in a process of its own, a small hub on loopback."""

import hashlib
import http.server
import json
import os
import subprocess
import sys
import threading
import urllib.parse
from pathlib import Path

import pytest

from swarm.model.gguf import convert_gguf
from swarm.model.hub import HubModel, parse_hub_name

COMMIT = "0123456789abcdef0123456789abcdef01234567"


class Hub(http.server.ThreadingHTTPServer):
    """Serves one repository, ``org/tiny``, from a dictionary; counts what is asked for."""

    def __init__(self, files: dict[str, bytes]) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.files = files
        self.asked: list[str] = []


class Handler(http.server.BaseHTTPRequestHandler):
    server: Hub

    def do_HEAD(self) -> None:
        self.answer(with_body=False)

    def do_GET(self) -> None:
        self.answer(with_body=True)

    def log_message(self, *args: object) -> None:
        pass

    def answer(self, *, with_body: bool) -> None:
        path = urllib.parse.unquote(urllib.parse.urlsplit(self.path).path).strip("/")
        self.server.asked.append(path)
        match path.split("/"):
            case ["api", "models", "org", "tiny", "revision", "main" | "v1"] | [
                "api",
                "models",
                "org",
                "tiny",
            ]:
                self.send(200, {"id": "org/tiny", "sha": COMMIT, "siblings": self.siblings()}, with_body)
            case ["api", "models", "org", "tiny", "tree", _]:
                self.send(200, self.siblings(), with_body)
            case ["api", "models", "org", "tiny", "revision", _]:
                self.send(404, {"error": "no"}, with_body, {"X-Error-Code": "RevisionNotFound"})
            case ["api", "models", "org", "gated", *_]:
                self.send(403, {"error": "no"}, with_body, {"X-Error-Code": "GatedRepo"})
            case ["org", "tiny", "resolve", _, *name]:
                self.send_file("/".join(name), with_body)
            case _:
                self.send(404, {"error": "no"}, with_body, {"X-Error-Code": "RepoNotFound"})

    def siblings(self) -> list[dict[str, object]]:
        return [
            {"type": "file", "path": name, "rfilename": name, "size": len(content), "oid": sha1(content)}
            for name, content in self.server.files.items()
        ]

    def send(
        self, status: int, value: object, with_body: bool, headers: dict[str, str] | None = None
    ) -> None:
        self.send_bytes(status, json.dumps(value).encode(), with_body, headers or {})

    def send_file(self, name: str, with_body: bool) -> None:
        content = self.server.files[name]
        headers = {"X-Repo-Commit": COMMIT, "ETag": f'"{sha1(content)}"'}
        self.send_bytes(200, content, with_body, headers)

    def send_bytes(self, status: int, content: bytes, with_body: bool, headers: dict[str, str]) -> None:
        self.send_response(status)
        for name, value in (headers | {"Content-Length": str(len(content))}).items():
            self.send_header(name, value)
        self.end_headers()
        if with_body:
            self.wfile.write(content)


def sha1(content: bytes) -> str:
    return hashlib.sha1(content).hexdigest()  # noqa: S324  (how the hub names a blob)


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
    }
    files["onnx/model.safetensors"] = b"again"
    with Hub(files) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server
        server.shutdown()
        thread.join()


@pytest.fixture
def pull(hub, tmp_path):
    """Runs `swarm model pull NAME --json` against the hub; gives the finished process."""

    def run(name: str, **environment: str) -> subprocess.CompletedProcess[str]:
        settings = {
            "HF_ENDPOINT": f"http://127.0.0.1:{hub.server_port}",
            "HF_HOME": str(tmp_path / "hf"),
            "HF_HUB_OFFLINE": "0",
            "SWARM_HOME": str(tmp_path / "swarm"),
            "OMP_NUM_THREADS": "1",
        }
        return subprocess.run(
            [sys.executable, "-m", "swarm", "model", "pull", name, "--json"],
            env=os.environ | settings | environment,
            capture_output=True,
            text=True,
            timeout=100,
            check=False,
        )

    return run


def test_pull_takes_what_is_needed_of_one_commit_and_works_offline_afterwards(hub, pull, tmp_path):
    first = pull("org/tiny")
    assert first.returncode == 0, first.stderr
    result = json.loads(first.stdout)
    directory = Path(result["directory"])
    found = {path.name for path in directory.iterdir()}
    assert found == {
        "chat_template.jinja",
        "config.json",
        "generation_config.json",
        "model.safetensors",
        "special_tokens_map.json",
        "swarm-manifest.json",
        "tokenizer.json",
        "tokenizer_config.json",
    }
    assert not any(
        path.endswith((".bin", ".py", "consolidated.safetensors", "onnx/model.safetensors"))
        for path in hub.asked
    )
    assert (directory / "model.safetensors").read_bytes() == hub.files["model.safetensors"]
    assert COMMIT in str((directory / "model.safetensors").readlink())
    again = pull(
        "org/tiny", HF_ENDPOINT="http://127.0.0.1:9", SWARM_HOME=str(tmp_path / "other"), HF_HUB_OFFLINE="1"
    )
    assert again.returncode == 0, again.stderr
    assert json.loads(again.stdout)["manifest"] == result["manifest"]


@pytest.mark.parametrize(
    ("name", "what"),
    [
        ("org/mystery", "no such repository, or it is private"),
        ("org/tiny@v2", "no such revision"),
        ("org/gated", "consent.*HF_TOKEN"),
    ],
)
def test_what_the_hub_refuses_is_told_with_what_to_do(name, what, pull, tmp_path):
    result = pull(name)
    assert result.returncode == 1
    assert result.stderr.splitlines()[-1].startswith(f"swarm: {name} could not be downloaded")
    assert_matches(what, result.stderr)
    assert not any((tmp_path / "swarm" / "cache" / "models").iterdir())


def test_pull_without_network_says_so(pull, tmp_path):
    result = pull("org/tiny", HF_ENDPOINT="http://127.0.0.1:9")
    assert result.returncode == 1
    assert_matches("cannot be reached.*network connection", result.stderr)
    assert not any((tmp_path / "swarm" / "cache" / "models").iterdir())


def test_model_without_safetensors_is_refused(hub, pull, tmp_path):
    del hub.files["model.safetensors"]
    result = pull("org/tiny")
    assert result.returncode == 1
    assert_matches("org/tiny has no safetensors", result.stderr)
    assert not any((tmp_path / "swarm" / "cache" / "models").iterdir())


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


def assert_matches(pattern: str, text: str) -> None:
    import re

    assert re.search(pattern, text), text
