"""A tokenizer that strips a text's first space, as those of Llama 2 and Mistral: a reply keeps its own."""

import json

import pytest
from tokenizers import Tokenizer, decoders, models, normalizers

from swarm.gateway.structured_output import Vocabulary
from swarm.model.tokenizer import Tokenizer as SwarmTokenizer
from swarm.testing.clock import run_virtual
from swarm.testing.swarm import InProcessSwarm
from swarm.testing.tiny_models import SPECIAL_TOKENS, VOCAB_SIZE, TinyModel, write_tiny_model
from swarm.values import Span
from tests.gateway.conftest import MODEL, text_of

PIECES = ["▁Hello", "▁world", "▁", "H", "e", "l", "o", "!", *"abcdfghijkmnpqrstuvwxyz", "\n"]
TEMPLATE = "{% for m in messages %}{{ m.content }}{% endfor %}{% if add_generation_prompt %}Hello{% endif %}"


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    directory = tmp_path_factory.mktemp("models") / MODEL
    write_tiny_model(directory, TinyModel(overrides={"max_position_embeddings": 1024}))
    names = ["<unk>", *(f"<0x{byte:02X}>" for byte in range(VOCAB_SIZE - len(PIECES) - 4)), *PIECES]
    vocab = {name: place for place, name in enumerate(names)}
    backend = Tokenizer(models.BPE(vocab, [], unk_token="<unk>", byte_fallback=True, ignore_merges=True))  # noqa: S106
    backend.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    backend.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    backend.add_special_tokens(list(SPECIAL_TOKENS))
    backend.save(str(directory / "tokenizer.json"))
    config = json.loads((directory / "tokenizer_config.json").read_text())
    changes = {"chat_template": TEMPLATE, "pad_token": "[PAD]"}  # one more token than the model has rows
    (directory / "tokenizer_config.json").write_text(json.dumps(config | changes))
    return directory


def always(served, token: str, **fields):
    """Fields of a request whose reply is this token."""
    token_id = served.swarm.model.tokenizer.token_to_id(token)
    return {"logit_bias": {str(token_id): 100}, "max_tokens": 2, "temperature": 0, **fields}


async def test_completions_begin_with_their_space_streamed_and_echoed(serve):
    path, both = "/v1/completions", " world world"
    async with serve() as served:
        fields = always(served, "▁world", prompt="Hello", model=MODEL)
        _, whole, _ = await served.post(path, fields)
        _, echoed, _ = await served.post(path, fields | {"echo": True})
        _, stopped, _ = await served.post(path, fields | {"stop": " world"})
        events = await served.stream(path, **fields)
    assert whole["choices"][0]["text"] == both
    assert echoed["choices"][0]["text"] == "Hello" + both
    assert (stopped["choices"][0]["text"], stopped["choices"][0]["finish_reason"]) == ("", "stop")
    assert "".join(event["choices"][0]["text"] for event in events) == both


async def test_log_probabilities_spell_the_tokens_as_the_text_does(serve):
    async with serve() as served:
        fields = always(served, "▁world", prompt="Hello", logprobs=1, model=MODEL)
        _, whole, _ = await served.post("/v1/completions", fields)
    assert "".join(whole["choices"][0]["logprobs"]["tokens"]) == whole["choices"][0]["text"]


def test_tokens_are_spelled_also_where_the_decoder_only_names_the_sign_of_a_space():
    backend = Tokenizer(models.Unigram([("<unk>", 0.0), ("</s>", 0.0), ("▁a", -1.0), ("世", -1.0)], unk_id=0))
    backend.decoder = decoders.Metaspace()
    backend.add_special_tokens(["</s>"])
    vocabulary = Vocabulary(SwarmTokenizer(backend, {}, {}), 4, [1])
    assert [vocabulary.token_bytes(each).decode() for each in (2, 3)] == [" a", "世"]


async def test_forms_hold_where_the_tokenizer_names_a_token_that_the_model_lacks(serve):
    async with serve() as served:
        assert served.swarm.model.tokenizer.vocab_size == served.swarm.model.config.vocab_size + 1
        form = {"structured_outputs": {"choice": ["hello"]}}
        status, body, _ = await served.post("/v1/completions", {"prompt": "Hello", "model": MODEL, **form})
    assert (status, body["choices"][0]["text"]) == (200, "hello")


async def test_chats_and_continued_messages_begin_with_their_space(serve):
    begun = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "Hello"}]
    onward = {"messages": begun, "add_generation_prompt": False, "continue_final_message": True}
    async with serve() as served:
        fields = always(served, "▁world")
        asked = await served.chat(**fields)
        continued = await served.chat(**fields, **onward)
        streamed = await served.stream(**fields, **onward)
    assert asked["choices"][0]["message"]["content"] == " world world"
    assert continued["choices"][0]["message"]["content"] == " world world"
    assert text_of(streamed) == " world world"


def test_a_reply_taken_up_by_a_later_process_begins_with_its_space(tiny):
    async def run():
        async with InProcessSwarm(tiny) as swarm:
            await swarm.add_peers([Span(0, 4)])
            client = swarm.client()
            token_id = swarm.model.tokenizer.token_to_id("▁world")
            return await client.generate("Hello", max_tokens=2, output_ids=(token_id, token_id))

    assert run_virtual(run()).text == " world world"
