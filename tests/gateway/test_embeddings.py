"""Embeddings equal transformers' last hidden states, pooled as the model's files say."""

import base64
import json
import struct

import openai
import pytest
import torch
import transformers

from swarm.gateway import embeddings
from swarm.testing.tiny_models import TinyModel, write_tiny_model
from tests.gateway.conftest import MODEL

PATH = "/v1/embeddings"
TEXT = "Hello wörld 🦊!"
HIDDEN = 48
STEPS = ("Transformer", "Pooling", "Normalize")


def write_embedding_model(directory, family, pooling, normalize, **overrides):
    """As sentence-transformers saves a model: named and stored as one without an lm_head."""
    overrides = {
        "architectures": [f"{family.capitalize()}Model"], "tie_word_embeddings": True,
        "max_position_embeddings": 512, **overrides,
    }  # fmt: skip
    write_tiny_model(directory, TinyModel(family=family, overrides=overrides))
    steps = STEPS if normalize else STEPS[:2]
    listed = [
        {"idx": place, "name": str(place), "type": f"sentence_transformers.models.{step}",
         "path": f"{place}_{step}" if place else ""}
        for place, step in enumerate(steps)
    ]  # fmt: skip
    (directory / "modules.json").write_text(json.dumps(listed))
    (directory / "1_Pooling").mkdir()
    modes = dict.fromkeys(("cls_token", "mean_tokens", "max_tokens", "lasttoken"), False) | {pooling: True}
    named = {f"pooling_mode_{name}": value for name, value in modes.items()}
    (directory / "1_Pooling" / "config.json").write_text(
        json.dumps({"word_embedding_dimension": HIDDEN, **named})
    )


@pytest.fixture
def form():
    """Family, pooling, whether normalised; and fields of config.json."""
    return "qwen3", "lasttoken", True, {}


@pytest.fixture
def tiny(tmp_path, form):
    family, pooling, normalize, overrides = form
    write_embedding_model(tmp_path / MODEL, family, pooling, normalize, **overrides)
    return tmp_path / MODEL


def right(directory, ids, pooling, normalize, dimensions=None):
    """What sentence-transformers computes, from transformers' last hidden states."""
    model = transformers.AutoModel.from_pretrained(directory, dtype=torch.float32)
    with torch.inference_mode():
        states = model(torch.tensor([ids])).last_hidden_state[0]
    vector = {"cls_token": states[0], "mean_tokens": states.mean(0), "lasttoken": states[-1]}[pooling]
    vector = vector[:dimensions]
    return (vector / vector.norm() if normalize else vector).tolist()


async def ask(served, **fields):
    status, body, _ = await served.post(PATH, {"model": MODEL, **fields})
    assert status == 200, body
    return body


@pytest.mark.parametrize(
    "form",
    [
        ("qwen3", "lasttoken", True, {}),
        ("qwen2", "mean_tokens", False, {}),
        ("llama", "cls_token", True, {}),
        ("mistral", "mean_tokens", True, {}),
    ],
    ids=lambda form: f"{form[0]} {form[1]}",
)
async def test_an_embedding_is_transformers_last_hidden_state_pooled(serve, tiny, form):
    long = TEXT * 15  # more rows than go in one step
    async with serve() as served:
        encode = served.swarm.model.tokenizer.encode
        body = await ask(served, input=[TEXT, long])
    for entry, text in zip(body["data"], (TEXT, long), strict=True):
        assert entry["embedding"] == pytest.approx(right(tiny, encode(text), *form[1:3]), abs=1e-5)
        assert len(entry["embedding"]) == HIDDEN
    tokens = len(encode(TEXT)) + len(encode(long))
    assert [entry["index"] for entry in body["data"]] == [0, 1]
    assert body["usage"] == {"prompt_tokens": tokens, "total_tokens": tokens}


async def test_inputs_of_every_kind_and_both_encodings_give_the_same(serve):
    async with serve() as served:
        ids = served.swarm.model.tokenizer.encode(TEXT)
        by_text = (await ask(served, input=TEXT))["data"]
        by_ids = (await ask(served, input=ids))["data"]
        by_lists = (await ask(served, input=[ids]))["data"]
        packed = (await ask(served, input=TEXT, encoding_format="base64"))["data"][0]["embedding"]
        client = openai.AsyncOpenAI(base_url=f"{served.url}/v1", api_key="none")
        async with client:
            unmodified = await client.embeddings.create(model=MODEL, input=[TEXT])
    assert by_text == by_ids == by_lists
    assert list(struct.unpack(f"<{HIDDEN}f", base64.b64decode(packed))) == by_text[0]["embedding"]
    assert unmodified.data[0].embedding == pytest.approx(by_text[0]["embedding"], abs=1e-7)


@pytest.mark.parametrize("form", [("qwen3", "lasttoken", True, {"matryoshka_dimensions": [8, 16]})])
async def test_an_embedding_is_cut_only_to_sizes_that_the_model_names(serve, tiny, form):
    async with serve() as served:
        ids = served.swarm.model.tokenizer.encode(TEXT)
        body = await ask(served, input=TEXT, dimensions=16)
        await ask(served, input=TEXT, dimensions=HIDDEN)
        status, refused, _ = await served.post(PATH, {"model": MODEL, "input": TEXT, "dimensions": 12})
    assert body["data"][0]["embedding"] == pytest.approx(right(tiny, ids, "lasttoken", True, 16), abs=1e-5)
    assert (status, refused["error"]["param"]) == (400, "dimensions")


@pytest.mark.parametrize("form", [("qwen3", "lasttoken", True, {"matryoshka_dimensions": "16"})])
async def test_sizes_without_sense_are_named(serve):
    async with serve() as served:
        status, refused, _ = await served.post(PATH, {"model": MODEL, "input": TEXT})
    assert (status, refused["error"]["code"]) == (404, "embeddings_unsupported")
    assert "matryoshka_dimensions" in refused["error"]["message"]


@pytest.mark.parametrize("form", [("qwen3", "lasttoken", True, {"is_matryoshka": True})])
async def test_an_embedding_is_never_longer_than_the_models(serve):
    async with serve() as served:
        assert len((await ask(served, input=TEXT, dimensions=5))["data"][0]["embedding"]) == 5
        status, refused, _ = await served.post(PATH, {"model": MODEL, "input": TEXT, "dimensions": 49})
    assert (status, refused["error"]["param"]) == (400, "dimensions")


async def test_a_model_that_does_not_say_so_is_not_cut(serve):
    async with serve() as served:
        status, refused, _ = await served.post(PATH, {"model": MODEL, "input": TEXT, "dimensions": 16})
    assert (status, refused["error"]["param"]) == (400, "dimensions")
    assert "may not be cut" in refused["error"]["message"]


async def test_a_model_for_generation_says_that_it_is_one(serve, tiny):
    (tiny / "modules.json").unlink()
    async with serve() as served:
        status, body, _ = await served.post(PATH, {"model": MODEL, "input": TEXT})
    assert (status, body["error"]["code"], body["error"]["param"]) == (404, "embeddings_unsupported", "model")
    assert "for generation" in body["error"]["message"]


@pytest.mark.parametrize(
    ("modules", "pooling", "says"),
    [
        ([{"type": "x.Pooling", "path": "../1"}], {}, "names the folder"),
        ([{"type": "x.Transformer", "path": ""}], {}, "no pooling"),
        ([{"type": "x.Pooling", "path": "1_Pooling"}, {"type": "x.Dense", "path": "2"}], {}, "Dense"),
        ({"a": 1}, {}, "list of steps"),
        (None, {"pooling_mode_max_tokens": True}, "max_tokens"),
        (None, {"pooling_mode_mean_tokens": True, "pooling_mode_lasttoken": True}, "mean_tokens"),
        (None, {"pooling_mode": "max"}, "by max"),
    ],
)  # fmt: skip
async def test_steps_that_are_not_known_are_named(serve, tiny, modules, pooling, says):
    if modules is not None:
        (tiny / "modules.json").write_text(json.dumps(modules))
    if pooling:
        (tiny / "1_Pooling" / "config.json").write_text(json.dumps(pooling))
    async with serve() as served:
        status, body, _ = await served.post(PATH, {"model": MODEL, "input": TEXT})
    assert (status, body["error"]["code"]) == (404, "embeddings_unsupported")
    assert says in body["error"]["message"]


@pytest.mark.parametrize(("pooling", "method"), [("mean", "mean_tokens"), ("lasttoken", "lasttoken")])
async def test_pooling_may_be_named_in_the_newer_way(serve, tiny, pooling, method):
    (tiny / "1_Pooling" / "config.json").write_text(json.dumps({"pooling_mode": pooling}))
    async with serve() as served:
        ids = served.swarm.model.tokenizer.encode(TEXT)
        body = await ask(served, input=TEXT)
    assert body["data"][0]["embedding"] == pytest.approx(right(tiny, ids, method, True), abs=1e-5)


@pytest.mark.parametrize("value", ["", [], [[]], ["a", 1], [1, [2]], ["a" * 600], [[5] * 600], [5000], None])
async def test_an_input_that_cannot_be_embedded_is_refused(serve, value):
    async with serve() as served:
        status, body, _ = await served.post(PATH, {"model": MODEL, "input": value})
        assert (status, body["error"]["param"]) == (400, "input")
        assert served.sessions == 0


async def test_more_inputs_than_fit_are_refused(serve, monkeypatch):
    monkeypatch.setattr(embeddings, "MAX_INPUTS", 2)
    async with serve() as served:
        await ask(served, input=["a", "b"])
        status, body, _ = await served.post(PATH, {"model": MODEL, "input": ["a", "b", "c"]})
    assert (status, body["error"]["param"]) == (400, "input")


async def test_a_peer_lost_on_the_way_changes_no_embedding(serve, tiny):
    async with serve(spans=((0, 2), (2, 4), (0, 2), (2, 4))) as served:
        ids = served.swarm.model.tokenizer.encode(TEXT)
        for hosted in served.swarm.peers[:2]:
            await hosted.kill()
        body = await ask(served, input=TEXT)
        assert served.sessions == 0
    assert body["data"][0]["embedding"] == pytest.approx(right(tiny, ids, "lasttoken", True), abs=1e-5)
