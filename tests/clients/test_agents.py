"""What agents and their libraries make of the gateway: a tiny model answers nonsense, the dialect holds."""

import pytest

from tests.gateway.conftest import MODEL

pytestmark = pytest.mark.timeout(500)  # the first test installs

CITIES = ({"city": "Paris"}, {"city": "Rome"})


async def test_litellm_asks_streams_and_gets_a_call(serve, run_client):
    async with serve() as served:
        told = await run_client("agents", "litellm_client.py", served.url, MODEL)
    assert told["text"] == told["whole"]
    assert told["tokens"] == 8
    assert told["call"][0] == "get_weather"
    assert told["call"][1] in CITIES
    assert told["finish"] == "tool_calls"
