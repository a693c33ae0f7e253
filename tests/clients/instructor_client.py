"""instructor in its modes: a call of a tool, JSON, JSON in Markdown, a schema."""

import json
import sys
from typing import Literal

import instructor
from openai import OpenAI
from pydantic import BaseModel, ConfigDict


class Weather(BaseModel):
    model_config = ConfigDict(extra="forbid")

    city: Literal["Paris", "Rome"] = "Rome"
    sunny: bool = False


url, model, brace, quote = sys.argv[1:]
# A random model writes no JSON of its own accord: the empty object is made the likeliest, or the form held.
empty = {"logit_bias": {brace: 60, quote: 40}}
held = {"extra_body": {"structured_outputs": {"json": Weather.model_json_schema()}}}
modes = {"TOOLS": {}, "JSON": empty, "MD_JSON": held, "JSON_SCHEMA": {}}
told = {}
for mode, more in modes.items():
    client = instructor.from_openai(OpenAI(base_url=f"{url}/v1", api_key="none"), mode=instructor.Mode[mode])
    reply = client.chat.completions.create(
        model=model,
        messages=[{"role": "user", "content": "Hello"}],
        response_model=Weather,
        max_tokens=200,
        max_retries=0,
        **more,
    )
    told[mode] = reply.city
print(json.dumps(told))
