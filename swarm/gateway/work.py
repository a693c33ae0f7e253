"""Work that a request costs before it runs: off the event loop, a few at a time, and fair between keys."""

import asyncio
from collections.abc import Callable
from typing import TypeVar

from swarm.gateway.auth import Key
from swarm.gateway.gate import Gate

Result = TypeVar("Result")


class Workbench:
    """Runs functions in threads, as many at once as its gate lets in."""

    def __init__(self, gate: Gate) -> None:
        self._gate = gate

    async def run(self, key: Key, work: Callable[[], Result]) -> Result:
        """What `work` gives. Raises what it raises, and a `Refusal` when too many wait.

        The slot is held until the thread is done, also for one who has gone away meanwhile: otherwise
        asking and going away would be free.
        """
        slot = await self._gate.enter(key)
        done = asyncio.get_running_loop().run_in_executor(None, work)
        done.add_done_callback(lambda _: slot.release())
        return await asyncio.shield(done)
