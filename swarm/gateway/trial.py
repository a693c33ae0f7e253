"""Compiles grammars on trial, in a process of its own: `python -m swarm.gateway.trial`.

A compiler that a grammar can keep busy for hours cannot be interrupted in a thread. Here it has so much
processor time and memory, and no more; the system ends the process when it takes more. Reads lines of
JSON from standard input, the vocabulary first and then grammars, and answers each with one.
"""

import contextlib
import json
import resource
import sys
import time
from typing import Any

import llguidance
import psutil

CPU_S = 2  # of one grammar; the system counts whole seconds
MEMORY_BYTES = 48 * 2**20  # of one grammar
MAX_LEXER_STATES = 25_000  # 1 to 2 kB each


def limits() -> llguidance.LLParserLimits:
    """What following a grammar may cost for each token."""
    return llguidance.LLParserLimits(max_lexer_states=MAX_LEXER_STATES, verbose_errors=False)


def problem_of(grammar: str, tokens: llguidance.LLTokenizer) -> str | None:
    """Why a grammar cannot be followed, or None."""
    failed, messages = llguidance.LLMatcher.validate_grammar_with_warnings(grammar, tokens, limits=limits())
    if failed:
        return messages[0]
    matcher = llguidance.LLMatcher(tokens, grammar, log_level=0, limits=limits())
    matcher.compute_bitmask()
    return matcher.get_error() or None


def main() -> None:
    """Answer until the end of input."""
    vocabulary: dict[str, Any] = json.loads(sys.stdin.buffer.readline())
    tokens = llguidance.LLTokenizer(
        vocabulary["tokenizer"], n_vocab=vocabulary["size"], eos_token=vocabulary["stop_ids"] or None
    )
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    with contextlib.suppress(ValueError, OSError):  # macOS knows no such limit
        may_have = psutil.Process().memory_info().vms + MEMORY_BYTES
        resource.setrlimit(resource.RLIMIT_AS, (may_have, resource.RLIM_INFINITY))
    print(flush=True)  # noqa: T201 - it is ready
    while line := sys.stdin.buffer.readline():
        spent_s = int(time.process_time())
        resource.setrlimit(resource.RLIMIT_CPU, (spent_s + CPU_S + 1, resource.RLIM_INFINITY))
        problem = problem_of(json.loads(line), tokens)
        print(json.dumps(problem), flush=True)  # noqa: T201 - this is the answer


if __name__ == "__main__":
    main()
