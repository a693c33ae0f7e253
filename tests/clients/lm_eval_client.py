"""lm-eval scores two tasks over few documents: `lm_eval_client.py URL MODEL TOKENIZER TASKS`."""

import json
import sys

import lm_eval
from lm_eval.tasks import TaskManager

URL, MODEL, TOKENIZER, TASKS = sys.argv[1:]

told = {}
for kind, requests in (("ids", "True"), ("text", "False")):
    found = lm_eval.simple_evaluate(
        model="local-completions",
        model_args=f"base_url={URL}/v1/completions,model={MODEL},tokenizer_backend=huggingface,"
        f"tokenizer={TOKENIZER},tokenized_requests={requests},max_length=512",
        tasks=["swarm_choice", "swarm_rolling"],
        task_manager=TaskManager(include_path=TASKS, include_defaults=False),
        batch_size=3,
    )
    told[kind] = {
        "accuracy": found["results"]["swarm_choice"]["acc,none"],
        "choices": [
            {"asked": argument, "told": response[0]}
            for sample in found["samples"]["swarm_choice"]
            for argument, response in zip(sample["arguments"], sample["resps"], strict=True)
        ],
        "rolling": [
            {"asked": sample["arguments"][0], "told": sample["resps"][0][0]}
            for sample in found["samples"]["swarm_rolling"]
        ],
    }
print(json.dumps(told))
