"""The embedded model's recorded greedy ids, in fp32, through spans cut in several ways."""

import itertools
import json
from pathlib import Path

import pytest
import torch

from swarm.model.config import read_config
from swarm.model.linear.choice import LAYOUTS, KernelChoice
from swarm.model.linear.layouts import PLAIN
from swarm.model.sampling import Sampling, choose
from swarm.model.span import SpanStep
from swarm.model.weights import load_head, load_span
from swarm.values import Span

GOLDEN = json.loads((Path(__file__).parents[1] / "golden" / "smollm2-135m.json").read_text())


class OneLayout:
    """Gives every weight the same layout; the head a plain one where that one is not legible."""

    def __init__(self, layout):
        self.layout = layout

    def choose(self, shapes, form):
        layout = self.layout if self.layout.legible or not form.legible else PLAIN
        return dict.fromkeys(shapes, KernelChoice(layout.name, (layout.kernels[0].name,) * 4))


def greedy_ids(head, models, prompt_ids, count):
    caches = [model.new_cache() for model in models]
    ids, given = [], prompt_ids
    while len(ids) < count:
        hidden = head.embed(given)
        for model, cache in zip(models, caches, strict=True):
            (hidden,) = model.forward([SpanStep(cache, hidden)])
        choice = choose(head.logits(hidden[-1:])[0], Sampling(), prompt_ids, ids)
        ids.append(choice.token_id)
        given = [choice.token_id]
    return ids


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
        expected = case["greedy_ids_fp32"]
        assert greedy_ids(head, models, case["prompt_ids"], len(expected)) == expected, case["prompt"]


@pytest.mark.model
@pytest.mark.parametrize("name", [name for name, layout in LAYOUTS.items() if layout.quantization == "none"])
def test_greedy_ids_equal_the_recorded_ones_in_every_layout(smollm2, name):
    config, chooser = read_config(smollm2), OneLayout(LAYOUTS[name])
    try:
        model = load_span(smollm2, config, Span(0, 30), dtype=torch.float32, chooser=chooser)
    except (RuntimeError, AttributeError):
        pytest.skip(f"this build of torch has no {name}")
    head = load_head(smollm2, config, dtype=torch.float32, chooser=chooser)
    for case in GOLDEN[::4]:
        expected = case["greedy_ids_fp32"]
        assert greedy_ids(head, [model], case["prompt_ids"], len(expected)) == expected, case["prompt"]
