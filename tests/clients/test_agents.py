"""What agents and their libraries make of the gateway: a tiny model answers nonsense, the dialect holds."""

import pytest

from tests.gateway.conftest import MODEL

pytestmark = pytest.mark.timeout(500)  # the first test installs

SET = "agents"
CITIES = ("Paris", "Rome")


@pytest.fixture
def run_agent(serve, run_client):
    """Runs a script against a gateway; further arguments are the token ids of these texts."""

    async def run(script, *texts):
        async with serve() as served:
            ids = [str(served.swarm.model.tokenizer.encode(text)[0]) for text in texts]
            return await run_client(SET, script, served.url, MODEL, *ids)

    return run


async def test_openai_asks_for_responses(run_agent):
    told = await run_agent("openai_client.py")
    assert (told["status"], told["tokens"], told["metadata"]) == ("incomplete", 8, {"a": "b"})
    assert {"response.output_text.delta", "response.completed"} <= set(told["events"])
    assert told["streamed"] in CITIES
    assert told["parsed"] in CITIES
    assert told["call"][0] == "get_weather"
    assert told["call"][1]["city"] in CITIES
    assert told["after"] == told["by_items"]
    assert (told["polled"], told["resumed"]) == ("incomplete", "response.incomplete")


async def test_openai_agents_call_tools_and_get_types(run_agent):
    told = await run_agent("openai_agents_client.py")
    assert len(told["cities"]) == 1
    assert told["called"] == "sunny"
    assert told["whole"] in CITIES
    assert told["streamed"] in CITIES
    assert "raw_response_event" in told["kinds"]


async def test_anthropic_asks_for_messages(run_agent):
    told = await run_agent("anthropic_client.py")
    assert told["text"] == told["whole"]
    assert told["stop"] == "max_tokens"
    assert (told["use"][0], told["use"][2]) == ("get_weather", "tool_use")
    assert told["use"][1]["city"] in CITIES
    assert told["after"] == told["counted"]
    assert told["parsed"] in CITIES
    assert told["refused"] == "not_found_error"


async def test_instructor_gets_its_type_in_every_mode(run_agent):
    told = await run_agent("instructor_client.py", "}", '"')
    assert told.keys() == {"TOOLS", "JSON", "MD_JSON", "JSON_SCHEMA"}
    assert set(told.values()) <= set(CITIES)


async def test_pydantic_ai_gets_types_by_tools_and_by_schemas(run_agent):
    told = await run_agent("pydantic_ai_client.py")
    assert len(told) == 4
    assert {city for cities in told.values() for city in cities} <= set(CITIES)


async def test_litellm_asks_streams_and_gets_a_call(run_agent):
    told = await run_agent("litellm_client.py")
    assert told["text"] == told["whole"]
    assert told["tokens"] == 8
    assert told["call"][0] == "get_weather"
    assert told["call"][1]["city"] in CITIES
    assert told["finish"] == "tool_calls"


async def test_smolagents_ask_stream_and_call_a_tool(run_agent):
    told = await run_agent("smolagents_client.py")
    assert told["text"] == told["whole"]
    assert told["called"] in ("get_weather", "final_answer")


async def test_llama_index_asks_streams_and_gets_types(run_agent):
    told = await run_agent("llama_index_client.py", "}")
    assert told["text"] == told["whole"]
    assert told["plain"]
    assert told["call"][0] == "get_weather"
    assert told["typed"] in CITIES
