"""How commands run: one event loop, and signals that are answered properly.

A service drains at the first Ctrl-C or SIGTERM, or when its terminal closes, and stops at a second
signal. A command that computes one thing is cancelled at once. Either way everything opened is closed
before the process ends, unless that takes longer than the patience of a second signal.
"""

import asyncio
import contextlib
import os
import signal
import sys
import threading
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeVar

from swarm import open_files
from swarm.cli.main import EXIT_TERMINATED
from swarm.cli.supervisor import keep_watchdog_quiet, notify

Result = TypeVar("Result")

FORCE_AFTER_S = 3.0  # what a second signal leaves for cleaning up

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


def run_service(main: Callable[[asyncio.Event], Awaitable[None]], *, until_eof: bool = False) -> None:
    """Run a service until it ends. `main` is given the event that tells it to drain.

    With `until_eof` the end of standard input is such a signal too, so that a service never outlives
    the program that started it.
    """
    open_files.raise_limit()
    asyncio.run(_supervise(main, until_eof))


def run_command(work: Coroutine[Any, Any, Result]) -> Result:
    """Run to the result. Ctrl-C raises KeyboardInterrupt, SIGTERM SystemExit, both after cleaning up."""
    return asyncio.run(_run_command(work))


async def interruptible(work: Coroutine[Any, Any, None]) -> bool:
    """Run a part of a command that Ctrl-C stops without ending the command. True when it was stopped.

    To be used within `run_command`, whose own answer to Ctrl-C is put back afterwards.
    """
    loop = asyncio.get_running_loop()
    outer, part = asyncio.current_task(), asyncio.ensure_future(work)
    interrupted: list[bool] = []

    def on_interrupt() -> None:
        interrupted.append(True)
        part.cancel()

    loop.add_signal_handler(signal.SIGINT, on_interrupt)
    try:
        await part
    except asyncio.CancelledError:
        part.cancel()
        if not interrupted:
            raise
    finally:
        loop.remove_signal_handler(signal.SIGINT)
        if outer is not None:
            loop.add_signal_handler(signal.SIGINT, outer.cancel)
    return bool(interrupted)


async def _supervise(main: Callable[[asyncio.Event], Awaitable[None]], until_eof: bool) -> None:
    loop, stop = asyncio.get_running_loop(), asyncio.Event()
    serving, alive = asyncio.ensure_future(main(stop)), asyncio.create_task(keep_watchdog_quiet())

    def on_signal(number: signal.Signals) -> None:
        if stop.is_set():
            serving.cancel()
            _force_the_end(number)
        stop.set()

    for number in _SIGNALS:
        loop.add_signal_handler(number, on_signal, number)
    if until_eof:
        loop.add_reader(sys.stdin.fileno(), _read_stdin, loop, stop)
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # not started with nohup
        # shell and system may both tell it, so a second time is no second Ctrl-C
        loop.add_signal_handler(signal.SIGHUP, stop.set)
    leaving = asyncio.create_task(_tell_leave(stop))
    try:
        with contextlib.suppress(asyncio.CancelledError):
            await serving
    finally:
        alive.cancel()
        leaving.cancel()


async def _tell_leave(stop: asyncio.Event) -> None:
    await stop.wait()
    notify("STOPPING=1")


def _read_stdin(loop: asyncio.AbstractEventLoop, stop: asyncio.Event) -> None:
    if not sys.stdin.buffer.read1(4096):  # type: ignore[union-attr]  # the buffer of a pipe has read1
        loop.remove_reader(sys.stdin.fileno())
        stop.set()


async def _run_command(work: Coroutine[Any, Any, Result]) -> Result:
    task = asyncio.ensure_future(work)
    received: list[signal.Signals] = []

    def on_signal(number: signal.Signals) -> None:
        received.append(number)
        task.cancel()
        if len(received) > 1:
            _force_the_end(number)

    for number in _SIGNALS:
        asyncio.get_running_loop().add_signal_handler(number, on_signal, number)
    try:
        return await task
    except asyncio.CancelledError:
        if received and received[0] == signal.SIGTERM:
            raise SystemExit(EXIT_TERMINATED) from None
        raise KeyboardInterrupt from None


def _force_the_end(number: signal.Signals) -> None:
    """End this process in a moment, whatever it does.

    asyncio and the interpreter both wait for threads, and one that computes cannot be cancelled. A
    daemon thread is waited for by neither; it goes with a process that ends in time.
    """
    force = threading.Timer(FORCE_AFTER_S, os._exit, [128 + number])
    force.daemon = True
    force.start()
