"""Tiny models are real model directories that transformers reads; the same arguments give the same bytes."""

import pytest
import torch
import transformers

from swarm.model.config import read_config
from swarm.model.weights import build_manifest
from swarm.testing.tiny_models import TinyModel, write_tiny_model


def test_the_same_arguments_give_the_same_model(tmp_path):
    for name in ("a", "b"):
        write_tiny_model(tmp_path / name, TinyModel(family="qwen2", rope="yarn", seed=4))
    assert build_manifest(tmp_path / "a") == build_manifest(tmp_path / "b")


@pytest.mark.parametrize("text", ["Hello, world!", "naïve 世界 👩‍👩‍👧\n\t", "<|im_start|>user\nhi<|im_end|>"])
def test_any_text_goes_to_ids_and_back(tmp_path, text):
    config = write_tiny_model(tmp_path)
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path)
    ids = tokenizer.encode(text)
    assert tokenizer.decode(ids) == text
    assert max(ids) < config.vocab_size == len(tokenizer)


def test_the_chat_template_ends_each_message_with_a_stop_token(tmp_path):
    config = write_tiny_model(tmp_path)
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path)
    text = tokenizer.apply_chat_template(
        [{"role": "user", "content": "hi"}], tokenize=False, add_generation_prompt=True
    )
    assert text == "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"
    assert config.stop_token_ids == (tokenizer.convert_tokens_to_ids("<|im_end|>"),)


def test_shards_and_dtype_are_as_asked_for(tmp_path):
    config = write_tiny_model(tmp_path, TinyModel(family="mistral", num_blocks=2, dtype="float16", shards=3))
    assert config == read_config(tmp_path)
    assert (config.num_blocks, config.dtype) == (2, "float16")
    assert len(list(tmp_path.glob("model-0000?-of-00003.safetensors"))) == 3
    assert transformers.AutoModelForCausalLM.from_pretrained(tmp_path).dtype == torch.float16
