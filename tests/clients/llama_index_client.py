"""llama-index: chat, stream, plain completion, a call of a tool, and a type of output."""

import json
import sys
from typing import Literal

from llama_index.core.llms import ChatMessage
from llama_index.core.tools import FunctionTool
from llama_index.llms.openai_like import OpenAILike
from pydantic import BaseModel, ConfigDict


class Weather(BaseModel):
    model_config = ConfigDict(extra="forbid")

    city: Literal["Paris", "Rome"]


def get_weather(city: Literal["Paris", "Rome"]) -> str:
    """The weather in a city."""
    return "sunny"


url, model, brace = sys.argv[1:]
llm = OpenAILike(
    model=model, api_base=f"{url}/v1", api_key="none", is_chat_model=True, is_function_calling_model=True,
    max_tokens=8, context_window=65_536,
)  # fmt: skip
hello = [ChatMessage(role="user", content="Hello")]
whole = llm.chat(hello)
pieces = [piece.delta or "" for piece in llm.stream_chat(hello)]
plain = OpenAILike(model=model, api_base=f"{url}/v1", api_key="none", is_chat_model=False, max_tokens=4)
# its schema allows any further argument, and a random model makes up ever more
called = llm.chat_with_tools(
    [FunctionTool.from_defaults(get_weather)], user_msg="Hello", tool_required=True, max_tokens=200,
    logit_bias={brace: 60},
)  # fmt: skip
[call] = llm.get_tool_calls_from_response(called)
typed = OpenAILike(
    model=model, api_base=f"{url}/v1", api_key="none", is_chat_model=True, is_function_calling_model=True,
    max_tokens=200, context_window=65_536,
)  # fmt: skip
print(
    json.dumps(
        {
            "whole": whole.message.content,
            "text": "".join(pieces),
            "plain": bool(plain.complete("Hello").text),
            "call": [call.tool_name, call.tool_kwargs],
            "typed": typed.as_structured_llm(Weather).chat(hello).raw.city,
        }
    )
)
