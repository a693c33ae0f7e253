"""litellm: whole, streaming, a forced call of a tool."""

import json
import sys

import litellm

url, model = sys.argv[1:]
ask = {
    "model": f"openai/{model}",
    "api_base": f"{url}/v1",
    "api_key": "none",
    "messages": [{"role": "user", "content": "Hello"}],
}
parameters = {
    "type": "object",
    "properties": {"city": {"enum": ["Paris", "Rome"]}},
    "required": ["city"],
    "additionalProperties": False,
}
tools = [{"type": "function", "function": {"name": "get_weather", "parameters": parameters}}]

whole = litellm.completion(**ask, max_tokens=8)
pieces = litellm.completion(**ask, max_tokens=8, stream=True)
called = litellm.completion(**ask, max_tokens=200, tools=tools, tool_choice="required")
[call] = called.choices[0].message.tool_calls
print(
    json.dumps(
        {
            "whole": whole.choices[0].message.content,
            "text": "".join(piece.choices[0].delta.content or "" for piece in pieces),
            "tokens": whole.usage.completion_tokens,
            "call": [call.function.name, json.loads(call.function.arguments)],
            "finish": called.choices[0].finish_reason,
        }
    )
)
