"""Runs what a stranger wrote in a process of its own that may be ended: with limits of time and memory.

A chat template is a program, and a tokenizer may be one: both can loop, or ask for more memory than there
is, in code that no thread can be made to leave. The process is started at the first question, answers one
after the other, and is ended and replaced when a limit is reached. It ends by itself when its owner is
gone: idle, because nothing can be read any more; busy, at the limit of its computing time.

Blocking, and safe to call from several threads. The other end is `swarm.model.confined_program`.
"""

import json
import os
import socket
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import psutil

from swarm.errors import (
    BrokenModel,
    ConfigurationError,
    EmptyPrompt,
    RequestError,
    SwarmError,
    UnsupportedModel,
)

Json: TypeAlias = Any  # what `json.loads` may give

_PROGRAM = "swarm.model.confined_program"
_POLL_S = 0.05
_CHUNK_BYTES = 2**18
_ERRORS: Mapping[str, type[SwarmError]] = {
    each.__name__: each for each in (BrokenModel, EmptyPrompt, RequestError, UnsupportedModel)
}
_KEPT_VARIABLES = ("PATH", "TZ", "LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH", "PYTHONHOME", "PYTHONPATH")


@dataclass(frozen=True, slots=True)
class ProcessLimits:
    """What one question may take."""

    cpu_s: int
    memory_bytes: int  # of the whole process
    wall_s: float  # a backstop for a process that does not get to compute
    answer_bytes: int


class Confined:
    """A program of `confined_program`, by name, and what it is set up with."""

    def __init__(self, name: str, program: str, setup: Json, limits: ProcessLimits) -> None:
        """`name` says in messages what runs: "The model's chat template"."""
        self._name = name
        self._program = program
        self._setup = setup
        self._limits = limits
        self._lock = threading.Lock()
        self._process: _Process | None = None

    def ask(self, question: Json) -> Json:
        """The program's answer.

        Raises what the program raises of `RequestError` and `ModelError`; `RequestError` when it
        reaches a limit; `ConfigurationError` when no process can be started.
        """
        with self._lock:
            try:
                process = self._running()
                process.send(question)
                reply = process.receive()
            except BaseException as error:  # also an interrupt: what it would still say answers nobody
                self._end()
                if not isinstance(error, OSError | psutil.Error | ValueError):
                    raise
                raise self._over_limit() from error
        if "error" in reply:
            raise _ERRORS[reply["error"]](reply["what"], reply["fix"])
        return reply["answer"]

    def _running(self) -> "_Process":
        """The process, which may have been ended from outside since the last question."""
        if self._process is None or not self._process.runs():
            self._end()
            try:
                self._process = _Process(self._program, self._limits)
            except (OSError, ValueError) as error:
                raise ConfigurationError(
                    f"{self._name} needs a process of its own, which cannot be started: {error}",
                    f"See whether {sys.executable} can be started, and how many processes you may have.",
                ) from error
            self._process.send(self._setup)
        return self._process

    def _end(self) -> None:
        if self._process is not None:
            self._process.end()
            self._process = None

    def _over_limit(self) -> RequestError:
        return RequestError(
            f"{self._name} was ended: it failed, or took more than {self._limits.cpu_s} s of computing "
            f"or {self._limits.memory_bytes // 2**20} MiB of memory",
            "Send less text, or take another model.",
        )


class _Process:
    """The process and the socket to it. One line of JSON there, one line back."""

    def __init__(self, program: str, limits: ProcessLimits) -> None:
        self._limits = limits
        self._socket, theirs = socket.socketpair()
        with theirs:
            self._child = subprocess.Popen(  # noqa: S603 - no shell, and every argument is ours
                [sys.executable, "-P", "-m", _PROGRAM, program, str(limits.cpu_s), str(limits.memory_bytes)],
                stdin=theirs.fileno(),
                stdout=theirs.fileno(),
                stderr=subprocess.DEVNULL,
                env=_environment(),
                process_group=0,  # what interrupts its owner is not meant for it
            )
        self.end = weakref.finalize(self, _end, self._child, self._socket)
        try:
            self.receive()  # it has started
        except (OSError, psutil.Error, ValueError):
            self.end()
            raise

    def runs(self) -> bool:
        return self._child.poll() is None

    def send(self, value: Json) -> None:
        self._socket.settimeout(self._limits.wall_s)
        self._socket.sendall(json.dumps(value).encode() + b"\n")

    def receive(self) -> Json:
        """The next line. Raises `OSError` or `ValueError` when it does not come within the limits."""
        deadline = time.monotonic() + self._limits.wall_s
        self._socket.settimeout(_POLL_S)
        line = bytearray()
        while not line.endswith(b"\n"):
            try:
                part = self._socket.recv(_CHUNK_BYTES)
            except TimeoutError:
                self._check(deadline)
                continue
            if not part:
                raise ConnectionResetError("the process has ended")
            line += part
            if len(line) > self._limits.answer_bytes:
                raise ValueError("the answer is too long")
        return json.loads(line)

    def _check(self, deadline: float) -> None:
        """Not every system holds a process to the memory it was given: look as well."""
        if psutil.Process(self._child.pid).memory_info().rss > self._limits.memory_bytes:
            raise ValueError("the process takes too much memory")
        if time.monotonic() > deadline:
            raise TimeoutError("the process does not answer")


def _end(child: "subprocess.Popen[bytes]", connection: socket.socket) -> None:
    connection.close()
    child.kill()
    child.wait()


def _environment() -> dict[str, str]:
    """Little of our own: no token or key that is in it. The packages are those that we have."""
    kept = {name: os.environ[name] for name in _KEPT_VARIABLES if name in os.environ}
    here = str(Path(__file__).parents[2])
    kept["PYTHONPATH"] = os.pathsep.join([here, *filter(None, [kept.get("PYTHONPATH")])])
    return kept | {"MALLOC_ARENA_MAX": "1", "RAYON_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}
