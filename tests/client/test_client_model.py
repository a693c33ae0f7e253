"""What a client makes of the files that say where a reply ends."""

import json

import pytest

from swarm.client.model import load_client_model
from swarm.testing.tiny_models import VOCAB_SIZE, TinyModel, write_tiny_model

IM_END = VOCAB_SIZE - 1


@pytest.fixture
def directory(tmp_path):
    write_tiny_model(tmp_path / "tiny", TinyModel(overrides={"eos_token_id": None}))
    (tmp_path / "tiny" / "generation_config.json").unlink()
    return tmp_path / "tiny"


def load(directory):
    return load_client_model(str(directory), directory.parent)


def test_the_end_token_named_only_by_the_tokenizer_ends_a_reply(directory):
    assert load(directory).config.stop_token_ids == (IM_END,)


def test_ids_that_do_not_exist_are_left_out_with_one_warning(directory, caplog):
    ids = {"eos_token_id": [VOCAB_SIZE, 0, 10**6]}
    (directory / "generation_config.json").write_text(json.dumps(ids))
    assert load(directory).config.stop_token_ids == (0, IM_END)
    [record] = caplog.records
    assert f"the tokens {VOCAB_SIZE}, {10**6}; it has {VOCAB_SIZE} tokens" in record.getMessage()


def test_a_tokenizer_without_an_end_token_adds_none(directory):
    path = directory / "tokenizer_config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "eos_token": None}))
    assert load(directory).config.stop_token_ids == ()
