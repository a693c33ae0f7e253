"""The openai package on /v1/responses: whole, streaming, parsed, with tools, and going on."""

import json
import sys
from typing import Literal

from openai import OpenAI
from pydantic import BaseModel


class Weather(BaseModel):
    city: Literal["Paris", "Rome"]
    sunny: bool


url, model = sys.argv[1:]
client = OpenAI(base_url=f"{url}/v1", api_key="none")
tool = {
    "type": "function",
    "name": "get_weather",
    "parameters": {
        "type": "object",
        "properties": {"city": {"enum": ["Paris", "Rome"]}},
        "required": ["city"],
        "additionalProperties": False,
    },
    "strict": True,
}

whole = client.responses.create(model=model, input="Hello", max_output_tokens=8, metadata={"a": "b"})
with client.responses.stream(
    model=model, input="Hello", max_output_tokens=200, text_format=Weather
) as stream:
    events = [event.type for event in stream]
    streamed = stream.get_final_response()
parsed = client.responses.parse(model=model, input="Hello", max_output_tokens=200, text_format=Weather)
called = client.responses.create(model=model, input="Hello", tools=[tool], tool_choice="required")
[call] = called.output
result = {"type": "function_call_output", "call_id": call.call_id, "output": "sunny"}
after = client.responses.create(
    model=model, input=[result], previous_response_id=called.id, tools=[tool], max_output_tokens=4
)
by_items = client.responses.create(
    model=model,
    input=[{"role": "user", "content": "Hello"}, call.model_dump(), result],
    tools=[tool],
    max_output_tokens=4,
)
begun = client.responses.create(model=model, input="Hello", background=True, max_output_tokens=4)
while begun.status in ("queued", "in_progress"):
    begun = client.responses.retrieve(begun.id)
with client.responses.stream(response_id=begun.id, starting_after=1) as again:
    resumed = [event.type for event in again]
client.responses.delete(begun.id)
print(
    json.dumps(
        {
            "status": whole.status,
            "tokens": whole.usage.output_tokens,
            "metadata": whole.metadata,
            "events": sorted(set(events)),
            "streamed": streamed.output_parsed.city,
            "parsed": parsed.output_parsed.city,
            "call": [call.name, json.loads(call.arguments)],
            "after": after.usage.input_tokens,
            "by_items": by_items.usage.input_tokens,
            "polled": begun.status,
            "resumed": resumed[-1],
        }
    )
)
