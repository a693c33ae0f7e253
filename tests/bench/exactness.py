"""How often a replay in large chunks changes a reply, by dtype.

A reply of the real model goes through three hops. At several points the middle hop is lost and its
cache rebuilt from the ledger: in chunks (`fast`) or in the steps that were sent (`exact`). Counted is
how many of these replies then differ from the undisturbed one in any token.

    python tests/bench/exactness.py [--dtype bf16] [--tokens 64] [--prompts 15]
"""

import argparse
import json
from pathlib import Path

import torch

from swarm.config import store_root
from swarm.model.config import read_config
from swarm.model.dtypes import parse_dtype
from swarm.model.span import SpanModel, SpanStep
from swarm.model.store import pull
from swarm.model.weights import load_head, load_span
from swarm.session.ledger import Ledger
from swarm.session.rows import Rows
from swarm.values import Span

GOLDEN = Path(__file__).parents[1] / "golden" / "smollm2-135m.json"
SPANS = (Span(0, 10), Span(10, 20), Span(20, 30))
LOST = 1


class Reply:
    """A greedy reply through three hops, of which the lost one can be rebuilt at any time."""

    def __init__(self, model: SpanModel, head, prompt_ids: list[int]) -> None:
        self._model, self._head = model, head
        self._caches = [model.new_cache(span) for span in SPANS]
        self._ledger, self._rows = Ledger(), Rows(model.config.hidden_size, model.dtype)
        self.ids = [self._feed(prompt_ids)]

    def go_on(self, count: int) -> None:
        while len(self.ids) < count:
            self.ids.append(self._feed(self.ids[-1:]))

    def rebuild(self, exact: bool) -> None:
        cache = self._caches[LOST] = self._model.new_cache(SPANS[LOST])
        while cache.position < self._ledger.end:
            rows = self._rows.get(cache.position, self._ledger.next_end(cache.position, exact))
            self._model.forward([SpanStep(cache, rows)], SPANS[LOST])

    def _feed(self, ids: list[int]) -> int:
        hidden = self._head.embed(ids)
        for index, span in enumerate(SPANS):
            if index == LOST:
                self._rows.put(self._ledger.end, hidden)
                self._ledger.append(len(hidden))
                self._ledger.mark_step(self._ledger.end)
            [hidden] = self._model.forward([SpanStep(self._caches[index], hidden)], span)
        return int(self._head.logits(hidden[-1:]).argmax())


def changed(model: SpanModel, head, prompt_ids: list[int], tokens: int, at: int, exact: bool) -> bool:
    """Whether losing the middle hop after `at` tokens changes any token of the reply."""
    reply = Reply(model, head, prompt_ids)
    reply.go_on(tokens)
    disturbed = Reply(model, head, prompt_ids)
    disturbed.go_on(at)
    disturbed.rebuild(exact)
    disturbed.go_on(tokens)
    return disturbed.ids != reply.ids


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--dtype", default="bf16")
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--prompts", type=int, default=15)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    directory = pull("smollm2-135m", store_root())
    config, dtype = read_config(directory), parse_dtype(arguments.dtype)
    model = load_span(directory, config, Span(0, config.num_blocks), dtype=dtype)
    head = load_head(directory, config, dtype=dtype)
    prompts = [entry["prompt_ids"] for entry in json.loads(GOLDEN.read_text())][: arguments.prompts]
    moments = [arguments.tokens // 4, arguments.tokens // 2, 3 * arguments.tokens // 4]
    for name, exact in (("fast", False), ("exact", True)):
        cases = [(prompt, at) for prompt in prompts for at in moments]
        count = sum(changed(model, head, prompt, arguments.tokens, at, exact) for prompt, at in cases)
        print(f"{arguments.dtype} {name}: {count} of {len(cases)} replies changed", flush=True)


if __name__ == "__main__":
    main()
