"""pydantic-ai with tools and types of output, on chats and on responses."""

import asyncio
import json
import sys
from typing import Literal

from pydantic import BaseModel
from pydantic_ai import Agent, NativeOutput, ToolOutput
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
from pydantic_ai.providers.openai import OpenAIProvider


class Weather(BaseModel):
    city: Literal["Paris", "Rome"]
    sunny: bool


url, model = sys.argv[1:]


async def main():
    provider = OpenAIProvider(base_url=f"{url}/v1", api_key="none")
    told = {}
    for name, kind in {"chat": OpenAIChatModel, "responses": OpenAIResponsesModel}.items():
        for form in (ToolOutput(Weather), NativeOutput(Weather)):
            agent = Agent(
                kind(model, provider=provider), output_type=form, model_settings={"max_tokens": 300}
            )
            result = await agent.run("Hello")
            async with agent.run_stream("Hello", message_history=result.all_messages()) as stream:
                streamed = await stream.get_output()
            told[f"{name} {type(form).__name__}"] = [result.output.city, streamed.city]
    print(json.dumps(told))


asyncio.run(main())
