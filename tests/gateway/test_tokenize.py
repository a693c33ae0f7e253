"""Texts, chats and their tokens, each into the other."""

import pytest

from tests.gateway.conftest import HELLO, MODEL


async def test_a_prompt_becomes_tokens_and_text_again(serve):
    async with serve() as served:
        status, body, _ = await served.post("/tokenize", {"model": MODEL, "prompt": "Grüße"})
        _, back, _ = await served.post("/detokenize", {"model": MODEL, "tokens": body["tokens"]})
        expected = served.swarm.model.tokenizer.encode("Grüße")
    assert status == 200
    assert body == {"tokens": expected, "count": len(expected), "max_model_len": 1024}
    assert back == {"prompt": "Grüße"}


async def test_a_chat_has_as_many_tokens_as_its_reply_counts(serve):
    async with serve() as served:
        _, body, _ = await served.post("/tokenize", {"model": MODEL, "messages": HELLO})
        _, back, _ = await served.post("/detokenize", {"model": MODEL, "tokens": body["tokens"]})
        usage = (await served.chat(max_tokens=1))["usage"]
    assert body["count"] == usage["prompt_tokens"]
    assert back["prompt"] == "<|im_start|>user\nHello<|im_end|>\n<|im_start|>assistant\n"


@pytest.mark.parametrize(
    ("path", "fields", "param"),
    [
        ("/tokenize", {}, "prompt"),
        ("/tokenize", {"prompt": "a", "messages": HELLO}, "prompt"),
        ("/tokenize", {"prompt": "x" * 2000000}, "prompt"),
        ("/detokenize", {"tokens": [99999]}, "tokens"),
    ],
)
async def test_what_cannot_be_converted_is_a_400_that_names_the_field(serve, path, fields, param):
    async with serve() as served:
        status, answer, _ = await served.post(path, {"model": MODEL, **fields})
    assert (status, answer["error"]["param"]) == (400, param)
