"""The process behind `swarm.model.confined`: sets its own limits, then answers questions line by line.

`python -m swarm.model.confined_program PROGRAM CPU_S MEMORY_BYTES`. Imports only what its program needs.
"""

import json
import resource
import signal
import sys
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any, TypeAlias

from swarm.errors import SwarmError

Json: TypeAlias = Any  # what `json.loads` may give
Program: TypeAlias = Callable[[Json], Json]


def main(program: str, cpu_s: str, memory_bytes: str) -> None:
    """Serve stdin until it ends. The first line sets the program up, each further one is a question."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _limit(resource.RLIMIT_CORE, 0)
    _limit(resource.RLIMIT_AS, int(memory_bytes))
    _tell({})
    lines = map(json.loads, sys.stdin.buffer)
    _serve(_PROGRAMS[program], lines, int(cpu_s))


def _serve(make: Callable[[Json], Program], lines: Iterable[Json], cpu_s: int) -> None:
    lines = iter(lines)
    setup, program = next(lines, None), None
    for question in lines:
        _grant(cpu_s)
        try:
            program = program or make(setup)
            reply = {"answer": program(question)}
        except SwarmError as error:
            reply = {"error": type(error).__name__, "what": error.what, "fix": error.fix}
        _tell(reply)


def _template(setup: Json) -> Program:
    from swarm.model.chat_template import ChatTemplate

    template = ChatTemplate(setup["source"])
    return lambda question: template.render(**question)


def _tokenizer(setup: Json) -> Program:
    from swarm.model.tokenizer_file import load_backend

    backend = load_backend(setup["content"], setup["path"])

    def encode(question: Json) -> Json:
        backend.encode_special_tokens = question["plain"]
        return backend.encode(question["text"], add_special_tokens=question["special"]).ids

    return encode


def _pieces(setup: Json) -> Program:
    from swarm.model.pieces import from_model, from_pieces

    return lambda question: (from_model if "model" in question else from_pieces)(question)


_PROGRAMS = {"template": _template, "tokenizer": _tokenizer, "pieces": _pieces}


def _grant(cpu_s: int) -> None:
    """Allow so much more computing; past it, the system ends this process."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    _limit(resource.RLIMIT_CPU, int(used.ru_utime + used.ru_stime) + 1 + cpu_s)


def _limit(kind: int, value: int) -> None:
    _, most = resource.getrlimit(kind)
    with suppress(ValueError, OSError):  # macOS does not limit memory: the owner looks at it
        resource.setrlimit(kind, (value if most == resource.RLIM_INFINITY else min(value, most), most))


def _tell(value: Json) -> None:
    sys.stdout.write(json.dumps(value) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main(*sys.argv[1:])
