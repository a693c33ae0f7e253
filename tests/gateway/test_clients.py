"""The programs people already use, unmodified, against a gateway and three real peers."""

import asyncio
import json
import os
import shutil
import signal
import subprocess
import sys
from contextlib import AsyncExitStack
from dataclasses import dataclass

import openai
import pytest
import pytest_asyncio

from swarm.model.config import read_config
from swarm.testing.processes import LocalSwarm, LocalSwarmConfig, SwarmProcess, even_spans
from swarm.values import Span

pytestmark = [
    pytest.mark.live,
    pytest.mark.model,
    pytest.mark.timeout(300),
    pytest.mark.asyncio(loop_scope="module"),
]

MODEL = "smollm2-135m"
FRANCE = [{"role": "user", "content": "What is the capital of France?"}]
PARIS = "The capital of France is Paris."
WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather in a city.",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string", "enum": ["Paris", "Rome"]}},
            "required": ["city"],
            "additionalProperties": False,
        },
    },
}


@dataclass
class Live:
    """A swarm of processes and the gateway in front of it."""

    swarm: LocalSwarm
    gateway: SwarmProcess
    url: str

    @property
    def base_url(self) -> str:
        return f"{self.url}/v1"


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def live(smollm2, tmp_path_factory):
    home = tmp_path_factory.mktemp("home")
    spans = even_spans(read_config(smollm2).num_blocks, 3)
    async with AsyncExitStack() as stack:
        swarm = await stack.enter_async_context(LocalSwarm(LocalSwarmConfig(MODEL, spans, str(home))))
        gateway = await SwarmProcess.start("gateway", MODEL, "--join", swarm.join, "--listen", "127.0.0.1:0")
        stack.push_async_callback(gateway.stop)
        yield Live(swarm, gateway, (await gateway.wait_for("listening"))["url"])


async def run(*arguments, **environment):
    """Run a program to its end; gives its standard output."""
    process = await asyncio.create_subprocess_exec(
        *arguments, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        env=os.environ | environment,
    )  # fmt: skip
    out, err = await process.communicate()
    assert process.returncode == 0, err.decode()
    return out.decode()


async def test_openai_asks_whole_and_streaming_sync_and_async(live):
    def blocking():
        with openai.OpenAI(base_url=live.base_url, api_key="none") as client:
            whole = client.chat.completions.create(model=MODEL, messages=FRANCE)
            stream = client.chat.completions.create(
                model=MODEL, messages=FRANCE, stream=True, stream_options={"include_usage": True}
            )
            return whole, list(stream), client.models.list().data, client.models.retrieve(MODEL)

    whole, chunks, models, model = await asyncio.to_thread(blocking)
    assert whole.choices[0].message.content == PARIS
    assert whole.choices[0].finish_reason == "stop"
    assert "".join(c.choices[0].delta.content or "" for c in chunks if c.choices) == PARIS
    assert chunks[-1].usage == whole.usage
    assert [each.id for each in models] == [MODEL] == [model.id]
    async with openai.AsyncOpenAI(base_url=live.base_url, api_key="none") as client:
        answer = await client.chat.completions.create(model=MODEL, messages=FRANCE)
        text = ""
        async for chunk in await client.chat.completions.create(model=MODEL, messages=FRANCE, stream=True):
            text += chunk.choices[0].delta.content or ""
        plain = await client.completions.create(model=MODEL, prompt="The capital of France is", max_tokens=3)
        assert answer.choices[0].message.content == text == PARIS
        assert "Paris" in plain.choices[0].text


async def test_openai_gets_calls_of_tools_and_parsed_schemas(live):
    from pydantic import BaseModel

    class City(BaseModel):
        name: str
        is_capital: bool

    async with openai.AsyncOpenAI(base_url=live.base_url, api_key="none") as client:
        forced = await client.chat.completions.create(
            model=MODEL, messages=FRANCE, tools=[WEATHER], tool_choice="required", max_tokens=100
        )
        parsed = await client.chat.completions.parse(
            model=MODEL, messages=FRANCE, response_format=City, max_tokens=100
        )
        async with client.chat.completions.stream(
            model=MODEL, messages=FRANCE, tools=[WEATHER], tool_choice="required", max_tokens=100
        ) as stream:
            streamed = await stream.get_final_completion()
    [call] = forced.choices[0].message.tool_calls
    assert json.loads(call.function.arguments)["city"] in ("Paris", "Rome")
    assert streamed.choices[0].message.tool_calls[0].function.arguments == call.function.arguments
    assert isinstance(parsed.choices[0].message.parsed, City)


async def test_openai_raises_the_errors_it_has_names_for(live):
    async with openai.AsyncOpenAI(base_url=live.base_url, api_key="none", max_retries=0) as client:
        with pytest.raises(openai.NotFoundError, match="There is no model"):
            await client.chat.completions.create(model="gpt-4o", messages=FRANCE)
        with pytest.raises(openai.BadRequestError) as caught:
            await client.chat.completions.create(model=MODEL, messages=FRANCE, max_tokens=10**6, stream=True)
        assert caught.value.code == "context_length_exceeded"


async def test_langchain_asks_streams_binds_tools_and_reads_schemas(live):
    from langchain_openai import ChatOpenAI

    model = ChatOpenAI(model=MODEL, base_url=live.base_url, api_key="none", max_tokens=100)
    question = FRANCE[0]["content"]
    whole = await asyncio.to_thread(model.invoke, question)
    pieces = [piece.content async for piece in model.astream(question)]
    called = await model.bind_tools([WEATHER], tool_choice="get_weather").ainvoke(question)
    schema = {
        "title": "city",
        "type": "object",
        "properties": {"name": {"enum": ["Paris"]}},
        "required": ["name"],
    }
    told = await model.with_structured_output(schema, method="json_schema").ainvoke(question)
    assert whole.content == "".join(pieces) == PARIS
    assert whole.response_metadata["finish_reason"] == "stop"
    assert called.tool_calls[0]["args"]["city"] in ("Paris", "Rome")
    assert told["name"] == "Paris"


async def test_the_llm_command_asks_and_streams(live, tmp_path):
    (tmp_path / "extra-openai-models.yaml").write_text(
        f"- model_id: swarm\n  model_name: {MODEL}\n  api_base: {live.base_url}\n"
    )
    ask = (sys.executable, "-m", "llm", "-m", "swarm", FRANCE[0]["content"])
    streamed = await run(*ask, LLM_USER_PATH=str(tmp_path))
    whole = await run(*ask, "--no-stream", LLM_USER_PATH=str(tmp_path))
    assert streamed.strip() == whole.strip() == PARIS


NODE = """
import OpenAI from "openai";
const client = new OpenAI({ baseURL: process.argv[2], apiKey: "none" });
const messages = [{ role: "user", content: "What is the capital of France?" }];
const ask = { model: "smollm2-135m", messages };
const whole = await client.chat.completions.create(ask);
let text = "";
for await (const chunk of await client.chat.completions.create({ ...ask, stream: true })) {
  text += chunk.choices[0]?.delta?.content ?? "";
}
const failed = await client.chat.completions.create({ ...ask, temperature: 9 }).catch((error) => error);
const { status, param } = failed;
console.log(JSON.stringify({ whole: whole.choices[0].message.content, text, status, param }));
"""


@pytest.fixture(scope="module")
def node_folder(tmp_path_factory):
    """A folder with the openai package for Node."""
    if not shutil.which("npm"):
        pytest.skip("Node and npm are not installed")
    folder = tmp_path_factory.mktemp("node")
    (folder / "package.json").write_text('{"type": "module", "private": true}')
    installed = subprocess.run(
        ["npm", "install", "--silent", "--no-audit", "--no-fund", "openai"],
        cwd=folder,
        capture_output=True,
        timeout=200,
    )
    if installed.returncode:
        pytest.skip("the openai package for Node cannot be installed here")
    (folder / "ask.mjs").write_text(NODE)
    return folder


async def test_openai_for_node_asks_streams_and_reads_errors(live, node_folder):
    told = json.loads(await run("node", str(node_folder / "ask.mjs"), live.base_url))
    assert told == {"whole": PARIS, "text": PARIS, "status": 400, "param": "temperature"}


async def test_a_killed_peer_is_a_pause_in_the_stream_and_then_the_rest(live):
    question = [{"role": "user", "content": "Tell me a story about a fox."}]
    async with openai.AsyncOpenAI(base_url=live.base_url, api_key="none") as client:
        settings = {
            "model": MODEL,
            "messages": question,
            "max_tokens": 60,
            "extra_body": {"include_swarm": True},
        }
        undisturbed = await client.chat.completions.create(**settings)
        spare = await live.swarm.start_peer(Span(10, 20))
        await spare.wait_for("online")
        text, swarm = "", None
        async for chunk in await client.chat.completions.create(**settings, stream=True):
            text += chunk.choices[0].delta.content or "" if chunk.choices else ""
            swarm = getattr(chunk, "swarm", None) or swarm
            if text.count(" ") == 10 and live.swarm.peers[1].running:
                live.swarm.peers[1].send_signal(signal.SIGKILL)
                await live.swarm.peers[1].wait()
    assert text == undisturbed.choices[0].message.content
    assert live.swarm.peers[1].running is False
    peers = {hop["blocks"]: hop["peer"] for hop in swarm["choices"][0]["hops"]}
    assert peers["10:20"] == (await spare.wait_for("online"))["peer"]


async def test_a_terminated_gateway_lets_the_reply_end_and_leaves(live):
    gateway = await SwarmProcess.start("gateway", MODEL, "--join", live.swarm.join, "--listen", "127.0.0.1:0")
    try:
        url = (await gateway.wait_for("listening"))["api"]
        async with openai.AsyncOpenAI(base_url=url, api_key="none", max_retries=0) as client:
            text = ""
            stream = await client.chat.completions.create(
                model=MODEL, messages=FRANCE, stream=True, max_tokens=30, extra_body={"ignore_eos": True}
            )
            async for chunk in stream:
                text += chunk.choices[0].delta.content or ""
                if text == "The":
                    gateway.send_signal(signal.SIGTERM)
        assert text.startswith(PARIS)
        assert await gateway.wait() == 0
    finally:
        await gateway.stop()
