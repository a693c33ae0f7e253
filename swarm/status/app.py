"""The program `swarm status-page`, put together: observe, keep, show.

Three tasks beside the HTTP server. The observer makes states; the keeper writes them down every few
seconds, in a thread of its own; the shower turns the latest into what readers get.
"""

import asyncio
import logging
import sqlite3
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TypeVar

from swarm.http_server import HttpServer, Listen, hosts_of
from swarm.network.directory import Directory
from swarm.network.transport import Network
from swarm.status.history import DEFAULT_LIMIT_BYTES, History
from swarm.status.metrics import StatusMetrics
from swarm.status.observer import Observer
from swarm.status.page import Site
from swarm.status.routes import StatusRoutes
from swarm.status.snapshot import SwarmState
from swarm.status.view import HistoryView, ResponseCache, View, read_history
from swarm.status.watch import CanarySettings

KEEP_EVERY_S = 10.0
SHOW_AT_MOST_EVERY_S = 1.0

Result = TypeVar("Result")
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class StatusPageConfig:
    """What `swarm status-page` is told."""

    database: Path
    host: str = "127.0.0.1"
    port: int = 0
    hosts: tuple[str, ...] = ()  # names under which it is served, besides this machine's own
    site: Site = field(default_factory=Site)
    canaries: CanarySettings = field(default_factory=CanarySettings)
    limit_bytes: int = DEFAULT_LIMIT_BYTES


class StatusPage:
    """A status page on a node of the swarm. `run` until cancelled."""

    def __init__(
        self, config: StatusPageConfig, network: Network, directory: Directory, now: Callable[[], float]
    ) -> None:
        self.observer = Observer(network, directory, config.canaries, now)
        self._config = config
        self._history = History(config.database, config.limit_bytes)
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="history")
        self._instruments = StatusMetrics()
        self._responses = ResponseCache(View(SwarmState(now(), None), HistoryView()))
        self._history_view = HistoryView()
        self._news = asyncio.Event()
        self.observer.on_news = self._news.set

    async def run(self, on_listening: Callable[[str], None], stop: Awaitable[object]) -> None:
        """Serve until `stop` is done; `on_listening` is given the page's address.

        Raises `PortInUse`, and what `stop` raises.
        """
        stopping = asyncio.ensure_future(stop)
        async with AsyncExitStack() as stack:
            stack.callback(stopping.cancel)
            stack.callback(self._history.close)
            stack.callback(self._thread.shutdown)
            on_listening(await self._listen(stack))
            tasks = [
                asyncio.ensure_future(work) for work in (self.observer.run(), self._keep(), self._show())
            ]
            try:
                done, _ = await asyncio.wait({stopping, *tasks}, return_when=asyncio.FIRST_COMPLETED)
                for task in done:
                    task.result()
            finally:
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)

    async def _listen(self, stack: AsyncExitStack) -> str:
        config = self._config
        hosts = hosts_of(config.host, config.hosts)
        routes = StatusRoutes(self._responses, config.site, self._instruments, hosts)
        server = HttpServer(routes.application(), Listen(config.host, config.port, "The status page"))
        url = await server.start()
        stack.push_async_callback(server.close)
        return f"{url}/"

    async def _show(self) -> None:
        """Show what is new, with at most a fifth of the time spent on it however large the swarm."""
        clock = asyncio.get_running_loop().time
        while True:
            await self._news.wait()
            self._news.clear()
            started_at = clock()
            state = await self.observer.state()
            self._instruments.show(state)
            await self._responses.show(View(state, self._history_view))
            await asyncio.sleep(max(SHOW_AT_MOST_EVERY_S, 4 * (clock() - started_at)))

    async def _keep(self) -> None:
        """Write down the state, and read back what is shown of the past. A full disk costs history only."""
        failing = False
        while True:
            await asyncio.sleep(KEEP_EVERY_S)
            state = self._responses.view.state
            try:
                self._history_view = await self._in_thread(partial(_keep_state, self._history, state))
            except sqlite3.Error as error:
                self._instruments.write_failures.inc()
                if not failing:
                    _log.error("The history cannot be written: %s. The page goes on without it.", error)
                failing = True
                continue
            failing = False
            self._news.set()

    async def _in_thread(self, work: Callable[[], Result]) -> Result:
        return await asyncio.get_running_loop().run_in_executor(self._thread, work)


def _keep_state(history: History, state: SwarmState) -> HistoryView:
    if state.seen_at is not None:
        history.record(state)
    return read_history(history, state)
