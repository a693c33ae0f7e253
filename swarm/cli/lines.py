"""Lines that a person or a script types, read without stopping the event loop.

At a terminal with line editing and a history that is kept; from a pipe or file as they come. A read
that waits never keeps the program from ending.
"""

import asyncio
import contextlib
import sys
import threading
from collections.abc import Callable
from pathlib import Path


class LineReader:
    """Reads standard input line by line. `history` is the file that keeps a terminal's lines."""

    def __init__(self, history: Path) -> None:
        self._history = history
        self._on_terminal = sys.stdin.isatty()
        if self._on_terminal:
            _load_history(history)

    async def read(self, prompt: str) -> str | None:
        """The next line without its end, or None when there are no more."""
        if not self._on_terminal:
            line = await _in_thread(sys.stdin.readline)
            return line.rstrip("\n") if line else None
        try:
            line = await _in_thread(lambda: input(prompt))
        except EOFError:
            return None
        _save_history(self._history)
        return line


async def _in_thread(read: Callable[[], str]) -> str:
    """Run a blocking read in a daemon thread: unlike an executor's, it may wait for ever."""
    loop = asyncio.get_running_loop()
    result: asyncio.Future[str] = loop.create_future()

    def settle(line: str | None, error: BaseException | None) -> None:
        if result.done():
            return
        if error is not None:
            result.set_exception(error)
        else:
            result.set_result(line or "")

    def run() -> None:
        line, error = None, None
        try:
            line = read()
        except (EOFError, OSError, ValueError) as raised:
            error = raised
        with contextlib.suppress(RuntimeError):  # the loop has ended meanwhile
            loop.call_soon_threadsafe(settle, line, error)

    threading.Thread(target=run, name="stdin", daemon=True).start()
    return await result


def _load_history(path: Path) -> None:
    with contextlib.suppress(ImportError, OSError):
        import readline

        readline.set_history_length(1000)
        readline.read_history_file(path)


def _save_history(path: Path) -> None:
    with contextlib.suppress(ImportError, OSError):
        import readline

        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch(mode=0o600)
        readline.write_history_file(path)
