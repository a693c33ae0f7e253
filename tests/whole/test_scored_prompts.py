"""The default model scores a prompt over a chain as transformers does in one piece."""

import pytest
import torch
import transformers

from swarm.model.sampling import Sampling
from swarm.testing.swarm import InProcessSwarm
from swarm.values import Span

pytestmark = [pytest.mark.model, pytest.mark.timeout(240)]

TEXT = (
    "The capital of France is Paris, and that of Italy is Rome. " * 10
    + "Gödel, Escher, Bach 🦊: def f(x):\n    return x ** 2\n"
)


async def test_the_default_model_scores_a_prompt_as_transformers_does(smollm2):
    model = transformers.AutoModelForCausalLM.from_pretrained(smollm2, dtype=torch.float32)
    async with InProcessSwarm(smollm2) as swarm:
        await swarm.add_peers([Span(0, 12), Span(12, 30)])
        ids = swarm.model.tokenizer.encode(TEXT)
        reply = await swarm.client().generate(
            ids, prompt_logprobs=1, max_tokens=0, sampling=Sampling(), stop_token_ids=frozenset()
        )
    with torch.inference_mode():
        right = model(torch.tensor([ids])).logits[0].log_softmax(-1)
    own = right[:-1].gather(1, torch.tensor(ids[1:])[:, None])[:, 0].tolist()
    assert len(ids) > 128  # more than goes in one step
    assert [each.logprob for each in reply.prompt_logprobs] == pytest.approx(own, abs=1e-3)
    assert sum(each.logprob for each in reply.prompt_logprobs) == pytest.approx(sum(own), abs=5e-3)
    likeliest = right[:-1].argmax(1).tolist()
    agree = [each.top_logprobs[0][0] for each in reply.prompt_logprobs]
    assert sum(a == b for a, b in zip(agree, likeliest, strict=True)) >= len(likeliest) - 1
