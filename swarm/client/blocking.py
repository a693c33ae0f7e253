"""The client for code without an event loop: the same calls, waiting for their results.

A thin facade: one background thread runs the loop that the real client lives in.
"""

import asyncio
import threading
from collections.abc import AsyncIterator, Coroutine, Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar, Unpack

from swarm.client.client import Client, ClientOptions
from swarm.client.generation import Generation, Options
from swarm.client.reply import Piece, Reply
from swarm.model.chat_template import Message

Result = TypeVar("Result")


class BlockingClient:
    """A `Client` that blocks. Use as a context manager, or call `close`.

    with BlockingClient("smollm2-135m", join=["/ip4/..."]) as client:
        print(client.chat([{"role": "user", "content": "Hello"}]).text)
    """

    def __init__(
        self, model: str | Path, *, join: Sequence[str], options: ClientOptions | None = None
    ) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="swarm client", daemon=True)
        self._thread.start()
        try:
            self._client = self._wait(Client.open(model, join=join, options=options))
        except BaseException:
            self._end_loop()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Leave the swarm."""
        self._wait(self._client.close())
        self._end_loop()

    def chat(self, messages: Sequence[Message], **options: Unpack[Options]) -> Reply:
        """The next reply of a conversation; options as `Client.generate`."""
        return self._wait(_whole(self._client.chat(messages, **options)))

    def generate(self, prompt: str | Sequence[int], **options: Unpack[Options]) -> Reply:
        """Continue a prompt; options as `Client.generate`."""
        return self._wait(_whole(self._client.generate(prompt, **options)))

    def stream_chat(self, messages: Sequence[Message], **options: Unpack[Options]) -> Iterator[Piece]:
        """The next reply of a conversation, piece by piece."""
        return self._pieces(self._client.chat(messages, **options))

    def stream(self, prompt: str | Sequence[int], **options: Unpack[Options]) -> Iterator[Piece]:
        """Continue a prompt, piece by piece."""
        return self._pieces(self._client.generate(prompt, **options))

    def _pieces(self, generation: Generation) -> Iterator[Piece]:
        pieces = aiter(generation)
        try:
            while (piece := self._wait(_next(pieces))) is not None:
                yield piece
        finally:
            self._wait(generation.aclose())

    def _wait(self, work: Coroutine[Any, Any, Result]) -> Result:
        """Run `work` in the loop. It has ended when this returns or raises, also when a Ctrl-C raises."""
        tasks: list[asyncio.Task[Result]] = []
        ended = threading.Event()

        def start() -> None:
            task = self._loop.create_task(work)
            task.add_done_callback(lambda _: ended.set())
            tasks.append(task)

        def cancel() -> None:  # after `start`, if that was reached: the loop keeps the order
            for task in tasks:
                task.cancel()
            if not tasks:
                ended.set()

        try:
            self._loop.call_soon_threadsafe(start)
            ended.wait()
        except BaseException:
            self._loop.call_soon_threadsafe(cancel)
            ended.wait()
            raise
        return tasks[0].result()

    def _end_loop(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


async def _whole(generation: Generation) -> Reply:
    return await generation


async def _next(pieces: AsyncIterator[Piece]) -> Piece | None:
    return await anext(pieces, None)
