"""A small hub on loopback, as well or ill behaved as a test wants it."""

import hashlib
import http.server
import json
import re
import threading
import time
import urllib.parse
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from safetensors.torch import load_file, save
from torch import Tensor

COMMIT = "0123456789abcdef0123456789abcdef01234567"
WEIGHTS = "model.safetensors"


@dataclass
class Manners:
    """How the hub behaves when it is asked for a file of weights."""

    ranges: str = "honoured"  # or ignored, refused (416), shifted (another part is sent)
    cuts: list[int] = field(default_factory=list)  # the next answers end after so many bytes
    statuses: list[int] = field(default_factory=list)  # the next answers are these errors; 200 is none
    rate_bytes_per_s: float = 0.0  # 0 is as fast as it goes
    said_bytes: int | None = None  # what it says that the weights have
    sent: bytes | None = None  # what it sends instead of them
    is_chunked: bool = False  # no length is said with the body
    elsewhere: str = ""  # where bodies are, if not here
    changes_to: bytes | None = None  # what the file is from the first cut on
    said_etag: str | None = None
    lists_by_tree: bool = False  # and not with the commit


@dataclass(frozen=True)
class Asked:
    """One request that came."""

    method: str
    path: str
    range: str | None
    authorization: str | None


class Hub(http.server.ThreadingHTTPServer):
    """Serves one repository, ``org/tiny``, from a dictionary; remembers what is asked for."""

    daemon_threads = True

    def __init__(self, files: dict[str, bytes]) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.files = files
        self.manners = Manners()
        self.asked: list[Asked] = []
        self.sent_bytes = 0  # of weights
        self.sends_weights = threading.Event()

    @property
    def url(self) -> str:
        """Its endpoint."""
        return f"http://127.0.0.1:{self.server_port}"

    @property
    def weights_asked(self) -> list[str]:
        """The files of weights whose bytes were asked for, each as often as it was."""
        names = [each.path.rsplit("/", 1)[-1] for each in self.asked if each.method == "GET"]
        return sorted(name for name in names if name.endswith(".safetensors"))

    def ranges(self, name: str = WEIGHTS) -> list[str | None]:
        """The ranges that were asked for of a file, in order."""
        return [each.range for each in self.asked if each.method == "GET" and each.path.endswith(name)]

    def handle_error(self, request: object, client_address: object) -> None:
        """A client that goes away is no error."""


@contextmanager
def serving(files: dict[str, bytes]) -> Iterator[Hub]:
    """A running hub."""
    with Hub(files) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()


class _Handler(http.server.BaseHTTPRequestHandler):
    server: Hub
    protocol_version = "HTTP/1.1"

    def do_HEAD(self) -> None:
        self.answer()

    def do_GET(self) -> None:
        self.answer()

    def log_message(self, *args: object) -> None:
        pass

    def answer(self) -> None:
        path = urllib.parse.unquote(urllib.parse.urlsplit(self.path).path).strip("/")
        headers = self.headers
        self.server.asked.append(Asked(self.command, path, headers["Range"], headers["Authorization"]))
        match path.split("/"):
            case ["api", "models", "org", "tiny", "revision", "main" | "v1"]:
                siblings = [{"rfilename": name} for name in self.server.files]
                listing = {} if self.server.manners.lists_by_tree else {"siblings": siblings}
                self.send_json(200, {"id": "org/tiny", "sha": COMMIT} | listing)
            case ["api", "models", "org", "tiny", "tree", _]:
                self.send_json(200, [{"type": "file", "path": name} for name in self.server.files])
            case ["api", "models", "org", "tiny", "revision", _]:
                self.send_json(404, {}, {"X-Error-Code": "RevisionNotFound"})
            case ["api", "models", "org", "gated", *_]:
                self.send_json(403, {}, {"X-Error-Code": "GatedRepo"})
            case ["org", "tiny", "resolve", _, *name]:
                self.send_file("/".join(name))
            case _:
                self.send_json(404, {}, {"X-Error-Code": "RepoNotFound"})

    def send_json(self, status: int, value: object, headers: dict[str, str] | None = None) -> None:
        self.send_bytes(status, json.dumps(value).encode(), headers or {})

    def send_file(self, name: str) -> None:
        content, manners = self.server.files[name], self.server.manners
        headers = {"X-Repo-Commit": COMMIT, "ETag": f'"{tag(content)}"', "Accept-Ranges": "bytes"}
        if not name.endswith(".safetensors"):
            return self.send_bytes(200, content, headers)
        headers["ETag"] = f'"{manners.said_etag or hashlib.sha256(content).hexdigest()}"'
        if manners.elsewhere:
            said = {"X-Linked-Etag": headers.pop("ETag"), "X-Linked-Size": str(len(content))}
            return self.send_bytes(302, b"", headers | said | {"Location": manners.elsewhere + self.path})
        if self.command == "HEAD":
            size = len(content) if manners.said_bytes is None else manners.said_bytes
            return self.send_bytes(200, bytes(size), headers)
        if manners.statuses and (status := manners.statuses.pop(0)) != 200:
            return self.send_bytes(status, b"", headers)
        return self.send_weights(content if manners.sent is None else manners.sent, headers)

    def send_weights(self, content: bytes, headers: dict[str, str]) -> None:
        manners = self.server.manners
        self.server.sends_weights.set()
        start, status = 0, 200
        asked = re.fullmatch(r"bytes=(\d+)-", self.headers["Range"] or "")
        if asked and manners.ranges == "refused":
            return self.send_bytes(416, b"", headers)
        if asked and manners.ranges != "ignored":
            start, status = int(asked[1]) + (1 if manners.ranges == "shifted" else 0), 206
            headers["Content-Range"] = f"bytes {start}-{len(content) - 1}/{len(content)}"
        cut = manners.cuts.pop(0) if manners.cuts else None
        if cut is not None and manners.changes_to is not None:
            self.server.files[WEIGHTS] = manners.changes_to
        return self.send_bytes(status, content[start:], headers, cut)

    def send_bytes(
        self, status: int, content: bytes, headers: dict[str, str], cut: int | None = None
    ) -> None:
        is_chunked = self.server.manners.is_chunked and self.command == "GET" and status in (200, 206)
        length = {"Transfer-Encoding": "chunked"} if is_chunked else {"Content-Length": str(len(content))}
        self.send_response(status)
        for name, value in (headers | length).items():
            self.send_header(name, value)
        self.end_headers()
        if self.command == "GET":
            self.send_body(content if cut is None else content[:cut], is_chunked)
        if cut is not None:
            self.close_connection = True

    def send_body(self, content: bytes, is_chunked: bool) -> None:
        rate = self.server.manners.rate_bytes_per_s if self.path.endswith(".safetensors") else 0
        step = max(1, int(rate / 20)) if rate else 2**16
        for start in range(0, len(content), step):
            piece = content[start : start + step]
            self.wfile.write(b"%x\r\n%s\r\n" % (len(piece), piece) if is_chunked else piece)
            self.server.sent_bytes += len(piece)
            if rate:
                time.sleep(len(piece) / rate)
        if is_chunked:
            self.wfile.write(b"0\r\n\r\n")


def tag(content: bytes) -> str:
    """How the hub names a small file."""
    header = b"blob %d\0" % len(content)
    return hashlib.sha1(header + content).hexdigest()  # noqa: S324


def files_cut_by_block(model: Path) -> dict[str, bytes]:
    """The files of a model directory of one file of weights, with those cut as large models have them: the
    embedding, then each block, then norm and lm_head; and the index."""
    tensors = load_file(model / WEIGHTS)
    parts: dict[str, dict[str, Tensor]] = {}
    for name, tensor in tensors.items():
        match = re.match(r"model\.layers\.(\d+)\.", name)
        place = int(match[1]) + 1 if match else 0 if name == "model.embed_tokens.weight" else 10_000
        parts.setdefault(f"{place:05d}", {})[name] = tensor
    names = {
        place: f"model-{number:05d}-of-{len(parts):05d}.safetensors"
        for number, place in enumerate(sorted(parts), 1)
    }
    weight_map = {name: names[place] for place, part in parts.items() for name in part}
    files = {names[place]: save(part) for place, part in parts.items()}
    files |= {path.name: path.read_bytes() for path in model.iterdir() if path.name != WEIGHTS}
    return files | {"model.safetensors.index.json": json.dumps({"weight_map": weight_map}).encode()}
