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
server = {"model": model, "api_base": f"{url}/v1", "api_key": "none", "temperature": 0}
kind = {"is_chat_model": True, "is_function_calling_model": True, "context_window": 65_536}
brief, llm = (OpenAILike(**server, **kind, max_tokens=count) for count in (8, 200))
hello = [ChatMessage(role="user", content="Hello")]
whole = brief.chat(hello)
pieces = [piece.delta or "" for piece in brief.stream_chat(hello)]
plain = OpenAILike(**server, is_chat_model=False, max_tokens=4)
# a random model would add ever more arguments where the schema lets it
called = llm.chat_with_tools(
    [FunctionTool.from_defaults(get_weather)], user_msg="Hello", tool_required=True, logit_bias={brace: 60}
)
[call] = llm.get_tool_calls_from_response(called)
print(
    json.dumps(
        {
            "whole": whole.message.content,
            "text": "".join(pieces),
            "plain": bool(plain.complete("Hello").text),
            "call": [call.tool_name, call.tool_kwargs],
            "typed": llm.as_structured_llm(Weather).chat(hello).raw.city,
        }
    )
)
