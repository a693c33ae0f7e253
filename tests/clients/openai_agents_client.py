"""openai-agents as it comes, on /v1/responses: a tool is called, and an output has a type."""

import asyncio
import json
import sys
from typing import Literal

from agents import Agent, ModelSettings, Runner, function_tool, set_default_openai_client
from openai import AsyncOpenAI
from pydantic import BaseModel


class Weather(BaseModel):
    city: Literal["Paris", "Rome"]
    sunny: bool


cities = []


@function_tool
def get_weather(city: Literal["Paris", "Rome"]) -> str:
    """The weather in a city."""
    cities.append(city)
    return "sunny"


url, model = sys.argv[1:]


async def main():
    set_default_openai_client(AsyncOpenAI(base_url=f"{url}/v1", api_key="none"))
    forced = ModelSettings(tool_choice="required", max_tokens=200)
    agent = Agent(
        name="A", instructions="Be brief.", model=model, tools=[get_weather], model_settings=forced,
        output_type=Weather, tool_use_behavior="stop_on_first_tool",
    )  # fmt: skip
    called = await Runner.run(agent, "Hello")
    typed = Agent(name="B", model=model, output_type=Weather, model_settings=ModelSettings(max_tokens=200))
    whole = await Runner.run(typed, "Hello")
    stream = Runner.run_streamed(typed, called.to_input_list())
    kinds = {event.type async for event in stream.stream_events()}
    print(
        json.dumps(
            {
                "cities": cities,
                "called": called.final_output,
                "whole": whole.final_output.city,
                "streamed": stream.final_output.city,
                "kinds": sorted(kinds),
            }
        )
    )


asyncio.run(main())
