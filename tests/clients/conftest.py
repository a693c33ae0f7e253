"""Programs that people already use, unmodified, each set in an environment of its own.

`requirements/clients/NAME.txt` says what is in the environment; it is made on first use, in
`.venv-clients/NAME`, and kept between runs. A program is a script beside the tests, run by that
environment's Python, and what it found it prints as JSON.
"""

import asyncio
import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from filelock import FileLock

from swarm.testing.tiny_models import TinyModel, write_tiny_model
from tests.gateway.conftest import MODEL, serve  # noqa: F401 - a fixture

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
ENVIRONMENTS = ROOT / ".venv-clients"
INSTALL_WITHIN_S = 300.0
RUN_WITHIN_S = 100.0

# Programs that ask anybody but the gateway fail at once.
_NOWHERE = "http://127.0.0.1:9"
_ENVIRONMENT = {
    "HTTP_PROXY": _NOWHERE,
    "HTTPS_PROXY": _NOWHERE,
    "NO_PROXY": "127.0.0.1,localhost",
    "OPENAI_API_KEY": "none",
    "OPENAI_AGENTS_DISABLE_TRACING": "1",
    "LITELLM_LOCAL_MODEL_COST_MAP": "True",
    "HF_HUB_OFFLINE": "1",
}

RunClient = Callable[..., Awaitable[Any]]


@pytest.fixture(scope="session")
def client_python() -> Callable[[str], Path]:
    """Gives the Python of a set of programs; skips, with the reason, where it cannot be installed."""
    return _python_of


@pytest.fixture
def run_client(client_python: Callable[[str], Path], tmp_path: Path) -> RunClient:
    """Runs a script in the environment of a set: `await run_client("agents", "litellm_client.py", url)`.

    Gives the JSON that it printed last. What it says on standard error is shown when it fails.
    """

    async def run(name: str, script: str, *arguments: str) -> Any:
        python = await asyncio.to_thread(client_python, name)
        ours = {key: value for key, value in os.environ.items() if not key.lower().endswith("_proxy")}
        ours.pop("PYTHONPATH", None)
        process = await asyncio.create_subprocess_exec(
            python, HERE / script, *arguments,
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=tmp_path,
            env=ours | _ENVIRONMENT | {"HOME": str(tmp_path)},
        )  # fmt: skip
        try:
            async with asyncio.timeout(RUN_WITHIN_S):
                out, err = await process.communicate()
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
        assert process.returncode == 0, (out + err).decode()[-6000:]
        return json.loads(out.decode().splitlines()[-1])

    return run


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny model of single bytes, with room for the long prompts of agents."""
    directory = tmp_path_factory.mktemp("models") / MODEL
    write_tiny_model(directory, TinyModel(overrides={"max_position_embeddings": 65_536}))
    return directory


def _python_of(name: str) -> Path:
    wanted = ROOT / "requirements" / "clients" / f"{name}.txt"
    folder = ENVIRONMENTS / name
    python, stamp = folder / "bin" / "python", folder / "stamp"
    digest = hashlib.sha256(wanted.read_bytes() + sys.version.encode()).hexdigest()
    ENVIRONMENTS.mkdir(exist_ok=True)
    with FileLock(ENVIRONMENTS / f"{name}.lock"):
        if not stamp.exists() or stamp.read_text() != digest:
            _uv("venv", "--clear", "--python", sys.executable, str(folder))
            install = ("pip", "install", "--python", str(python), "--require-hashes")
            tools = ROOT / "requirements" / "build.txt"  # what comes as source is built with these alone
            _uv(*install, "--only-binary", ":all:", "--requirement", str(tools))
            _uv(*install, "--no-build-isolation", "--requirement", str(wanted))
            stamp.write_text(digest)
    return python


def _uv(*arguments: str) -> None:
    command = [sys.executable, "-m", "uv", "--quiet", *arguments]
    try:
        subprocess.run(command, check=True, capture_output=True, text=True, timeout=INSTALL_WITHIN_S)
    except subprocess.CalledProcessError as error:
        pytest.skip(f"uv cannot make this environment here: {error.stderr.strip()[-300:]}")
    except subprocess.TimeoutExpired:
        pytest.skip(f"uv did not make this environment within {INSTALL_WITHIN_S:.0f} s")
