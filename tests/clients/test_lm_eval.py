"""lm-eval, unmodified, scores a task through a swarm as transformers does."""

import json

import pytest
import torch
import transformers

from tests.gateway.conftest import MODEL

pytestmark = pytest.mark.timeout(500)  # the first test installs

DOCUMENTS = [
    {"question": "The sky is", "choices": ["blue", "made of bread", "été"], "answer": 0},
    {"question": "Two and two are", "choices": ["four", "5", "a 🦊"], "answer": 1},
    {"question": "Fish live in", "choices": ["water", "trees", "Rome"], "answer": 2},
]
SAME = {
    "dataset_path": "json",
    "test_split": "train",
    "metadata": {"version": 1},
}
TASKS = [
    SAME
    | {
        "task": "swarm_choice",
        "output_type": "multiple_choice",
        "doc_to_text": "Question: {{question}}\nAnswer:",
        "doc_to_choice": "choices",
        "doc_to_target": "answer",
        "metric_list": [{"metric": "acc"}],
    },
    SAME
    | {
        "task": "swarm_rolling",
        "output_type": "loglikelihood_rolling",
        "doc_to_text": "",
        "doc_to_target": "{{question}}",
        "metric_list": [{"metric": "word_perplexity"}],
    },
]


@pytest.fixture
def tasks(tmp_path):
    """A folder with the tasks and their documents."""
    folder = tmp_path / "tasks"
    folder.mkdir()
    documents = folder / "documents.jsonl"
    documents.write_text("".join(json.dumps(each) + "\n" for each in DOCUMENTS))
    for task in TASKS:
        told = task | {"dataset_kwargs": {"data_files": str(documents)}}
        (folder / f"{task['task']}.yaml").write_text(json.dumps(told))  # JSON is YAML
    return folder


@pytest.fixture
def likelihood(tiny):
    """What transformers makes of a text after another: its log probability, and whether it is likeliest."""
    model = transformers.AutoModelForCausalLM.from_pretrained(tiny, dtype=torch.float32)

    def of(before, ids):
        with torch.inference_mode():
            rows = model(torch.tensor([before + ids])).logits[0].log_softmax(-1)[len(before) - 1 : -1]
        own = rows.gather(1, torch.tensor(ids)[:, None])
        return float(own.sum()), rows.argmax(1).tolist() == ids

    return of


async def test_lm_eval_scores_a_task_as_transformers_does(serve, run_client, tiny, tasks, likelihood):
    async with serve() as served:
        encode = served.swarm.model.tokenizer.encode
        start = served.swarm.model.tokenizer.token_to_id("<|endoftext|>")
        told = await run_client("lm-eval", "lm_eval_client.py", served.url, MODEL, str(tiny), str(tasks))
    for scores in told.values():
        right = {}
        for each in scores["choices"]:
            before, text = each["asked"]
            logprob, greedy = likelihood(encode(before), encode(text))
            assert each["told"] == [pytest.approx(logprob, abs=1e-3), greedy]
            right.setdefault(before, []).append(logprob)
        assert len(scores["choices"]) == 9
        best = [right[f"Question: {each['question']}\nAnswer:"] for each in DOCUMENTS]
        hits = [row.index(max(row)) == each["answer"] for row, each in zip(best, DOCUMENTS, strict=True)]
        assert scores["accuracy"] == pytest.approx(sum(hits) / 3)
        for each in scores["rolling"]:
            logprob, _ = likelihood([start], encode(each["asked"][0]))
            assert each["told"] == pytest.approx(logprob, abs=1e-3)
        assert len(scores["rolling"]) == 3
