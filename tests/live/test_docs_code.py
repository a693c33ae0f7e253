"""Every block of Python in README.md and docs/client.md, run as it stands on a real swarm of a tiny model."""

import asyncio
import re
import threading
from collections.abc import Iterator
from concurrent.futures import Future
from pathlib import Path

import pytest

from swarm.testing.processes import LocalSwarm, LocalSwarmConfig
from swarm.testing.tiny_models import TinyModel, write_tiny_model
from swarm.values import Span

pytestmark = [pytest.mark.live, pytest.mark.timeout(240)]

ROOT = Path(__file__).parent.parent.parent
ADDRESS = re.compile(r'"/ip4/192\.168\.1\.10/tcp/31337/p2p/12D3KooW\.\.\."')
BLOCKS = [
    (page, index, block)
    for page in ("README.md", "docs/client.md")
    for index, block in enumerate(
        re.findall(r"^```python\n(.*?)^```", (ROOT / page).read_text(), re.DOTALL | re.MULTILINE)
    )
]


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> Path:
    directory = tmp_path_factory.mktemp("models") / "tiny"
    write_tiny_model(directory, TinyModel(num_blocks=4))
    return directory


@pytest.fixture(scope="module")
def join(model, tmp_path_factory, module_mark) -> Iterator[str]:
    """The address of a swarm that runs in an event loop of its own while the code has ours."""
    home = str(tmp_path_factory.mktemp("home"))
    joined: Future[str] = Future()
    stop = threading.Event()

    async def serve() -> None:
        try:
            async with LocalSwarm(LocalSwarmConfig(str(model), [Span(0, 2), Span(2, 4)], home)) as swarm:
                joined.set_result(swarm.join)
                await asyncio.to_thread(stop.wait)
        except BaseException as error:
            if not joined.done():
                joined.set_exception(error)
            raise

    thread = threading.Thread(target=lambda: asyncio.run(serve()))
    thread.start()
    try:
        yield joined.result()
    finally:
        stop.set()
        thread.join()


@pytest.mark.parametrize(
    ("page", "index", "block"), BLOCKS, ids=[f"{page}-{index}" for page, index, _ in BLOCKS]
)
def test_the_code_of_the_page_runs_as_it_stands(page, index, block, model, join):
    code = ADDRESS.sub(repr(join), block).replace('"smollm2-135m"', repr(str(model)))
    exec(compile(code, f"{page}[{index}]", "exec"), {"__name__": "__main__"})  # noqa: S102 - our own pages


def test_every_block_that_joins_a_swarm_was_given_this_one():
    assert [block for _, _, block in BLOCKS if "192.168" in ADDRESS.sub("", block)] == []
