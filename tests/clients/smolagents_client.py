"""smolagents: its model alone, whole and streaming, and an agent that must call a tool."""

import json
import sys

from smolagents import OpenAIServerModel, ToolCallingAgent, tool


@tool
def get_weather() -> str:
    """The weather here."""
    return "sunny"


url, model_id = sys.argv[1:]
server = {"model_id": model_id, "api_base": f"{url}/v1", "api_key": "none"}
brief, model = (OpenAIServerModel(**server, max_tokens=count) for count in (8, 200))
ask = [{"role": "user", "content": [{"type": "text", "text": "Hello"}]}]
whole = brief.generate(ask)
pieces = brief.generate_stream(ask)
agent = ToolCallingAgent(tools=[get_weather], model=model, max_steps=1, verbosity_level=0)
agent.run("Hello")
[step] = [step for step in agent.memory.steps if getattr(step, "tool_calls", None)]
print(
    json.dumps(
        {
            "whole": whole.content,
            "text": "".join(piece.content or "" for piece in pieces),
            "called": step.tool_calls[0].name,
            "observed": step.observations,
        }
    )
)
