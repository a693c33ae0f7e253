"""The embedded model's recorded greedy ids, in fp32, through spans cut in several ways."""

import itertools
import json
from pathlib import Path

import pytest
import torch

from swarm.model.config import read_config
from swarm.model.sampling import Sampling, choose
from swarm.model.span import SpanStep
from swarm.model.weights import load_head, load_span
from swarm.values import Span

GOLDEN = json.loads((Path(__file__).parents[1] / "golden" / "smollm2-135m.json").read_text())


@pytest.mark.model
@pytest.mark.parametrize("cuts", [(0, 30), (0, 11, 30), (0, 1, 29, 30), (0, 3, 9, 20, 22, 30)], ids=str)
def test_greedy_ids_equal_the_recorded_ones_however_the_model_is_cut(smollm2, cuts):
    config = read_config(smollm2)
    head = load_head(smollm2, config, dtype=torch.float32)
    models = [
        load_span(smollm2, config, Span(start, end), dtype=torch.float32)
        for start, end in itertools.pairwise(cuts)
    ]
    for case in GOLDEN[::5]:
        caches = [model.new_cache() for model in models]
        ids, given = [], case["prompt_ids"]
        while len(ids) < len(case["greedy_ids_fp32"]):
            hidden = head.embed(given)
            for model, cache in zip(models, caches, strict=True):
                (hidden,) = model.forward([SpanStep(cache, hidden)])
            choice = choose(head.logits(hidden[-1:])[0], Sampling(), case["prompt_ids"], ids)
            ids.append(choice.token_id)
            given = [choice.token_id]
        assert ids == case["greedy_ids_fp32"], case["prompt"]
