"""The anthropic package: whole, streaming, tools and their results, counted tokens, errors."""

import json
import sys
from typing import Literal

import anthropic
from pydantic import BaseModel


class Weather(BaseModel):
    city: Literal["Paris", "Rome"]


url, model = sys.argv[1:]
client = anthropic.Anthropic(base_url=url, api_key="none", max_retries=0)
ask = {"model": model, "messages": [{"role": "user", "content": "Hello"}]}
schema = {
    "type": "object",
    "properties": {"city": {"enum": ["Paris", "Rome"]}},
    "required": ["city"],
    "additionalProperties": False,
}
tools = {"tools": [{"name": "get_weather", "input_schema": schema}], "tool_choice": {"type": "any"}}

whole = client.messages.create(**ask, max_tokens=8)
with client.messages.stream(**ask, max_tokens=8) as stream:
    text = "".join(stream.text_stream)
with client.messages.stream(**ask, **tools, max_tokens=200) as stream:
    used = stream.get_final_message()
[use] = used.content
result = {"type": "tool_result", "tool_use_id": use.id, "content": "sunny"}
history = [
    *ask["messages"],
    {"role": "assistant", "content": used.content},
    {"role": "user", "content": [result]},
]
after = client.messages.create(model=model, messages=history, tools=tools["tools"], max_tokens=4)
counted = client.messages.count_tokens(model=model, messages=history, tools=tools["tools"])
parsed = client.messages.parse(**ask, max_tokens=200, output_format=Weather)
try:
    client.messages.create(model="claude", messages=ask["messages"], max_tokens=1)
except anthropic.NotFoundError as error:
    refused = error.body["error"]["type"]
print(
    json.dumps(
        {
            "whole": "".join(block.text for block in whole.content),
            "text": text,
            "stop": whole.stop_reason,
            "use": [use.name, use.input, used.stop_reason],
            "after": after.usage.input_tokens,
            "counted": counted.input_tokens,
            "parsed": parsed.parsed_output.city,
            "refused": refused,
        }
    )
)
