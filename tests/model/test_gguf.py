"""Import of GGUF files, on small ones that gguf's own writer has written."""

import json

import gguf
import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from swarm.errors import BrokenModel, UnsupportedModel, UsageError
from swarm.model.config import read_config
from swarm.model.gguf import convert_gguf
from swarm.model.tokenizer import load_tokenizer

HUGGING_FACE_NAMES = {
    "attn_q.weight": "self_attn.q_proj.weight",
    "attn_k.weight": "self_attn.k_proj.weight",
    "attn_v.weight": "self_attn.v_proj.weight",
    "attn_output.weight": "self_attn.o_proj.weight",
    "attn_q_norm.weight": "self_attn.q_norm.weight",
    "attn_q.bias": "self_attn.q_proj.bias",
    "attn_norm.weight": "input_layernorm.weight",
    "ffn_norm.weight": "post_attention_layernorm.weight",
    "ffn_gate.weight": "mlp.gate_proj.weight",
    "ffn_up.weight": "mlp.up_proj.weight",
    "ffn_down.weight": "mlp.down_proj.weight",
}


def convert(source, tmp_path, **options):
    path = source.write(tmp_path / "tiny.gguf")
    directory = tmp_path / "converted"
    directory.mkdir()
    convert_gguf(path, directory, **options)
    return directory


@pytest.mark.parametrize("architecture", ["llama", "qwen2", "qwen3"])
def test_every_tensor_arrives_under_its_name_with_its_rows_in_order(architecture, tiny_gguf, tmp_path):
    source = tiny_gguf(architecture)
    found = load_file(convert(source, tmp_path, dtype=torch.float32) / "model.safetensors")
    assert len(found) == len(source.tensors)
    assert np.array_equal(found["model.embed_tokens.weight"].numpy(), source.tensors["token_embd.weight"])
    for name, expected in source.tensors.items():
        _, block, part = name.split(".", 2) if name.startswith("blk.") else ("", "", "")
        if part in HUGGING_FACE_NAMES:
            assert np.array_equal(
                found[f"model.layers.{block}.{HUGGING_FACE_NAMES[part]}"].numpy(), expected
            ), name


def test_weights_are_rounded_to_bf16_unless_told_otherwise(tiny_gguf, tmp_path):
    source = tiny_gguf()
    found = load_file(convert(source, tmp_path) / "model.safetensors")["model.norm.weight"]
    assert found.dtype == torch.bfloat16
    assert torch.equal(found, torch.from_numpy(source.tensors["output_norm.weight"]).bfloat16())


def test_quantised_tensors_are_dequantised(tiny_gguf, tmp_path):
    source = tiny_gguf()
    source.quantised = gguf.GGMLQuantizationType.Q8_0
    found = load_file(convert(source, tmp_path, dtype=torch.float32) / "model.safetensors")
    expected = source.tensors["blk.1.attn_q.weight"]
    error = np.abs(found["model.layers.1.self_attn.q_proj.weight"].numpy() - expected).max()
    assert 0 < error < np.abs(expected).max() / 127


def test_config_says_what_the_file_says(tiny_gguf, tmp_path):
    config = read_config(convert(tiny_gguf("qwen3"), tmp_path))
    assert (config.model_type, config.num_blocks, config.hidden_size) == ("qwen3", 2, 32)
    assert (config.num_heads, config.num_kv_heads, config.head_dim) == (4, 2, 8)
    assert (config.rms_norm_eps, config.context_length, config.dtype) == (1e-5, 128, "bfloat16")
    assert config.tie_word_embeddings
    assert config.stop_token_ids == (2,)


def test_a_separate_output_matrix_unties_the_embeddings(tiny_gguf, tmp_path):
    source = tiny_gguf()
    source.tensors["output.weight"] = source.tensors["token_embd.weight"] + 1
    directory = convert(source, tmp_path, dtype=torch.float32)
    assert not read_config(directory).tie_word_embeddings
    found = load_file(directory / "model.safetensors")["lm_head.weight"]
    assert np.array_equal(found.numpy(), source.tensors["output.weight"])


def test_tokenizer_splits_digits_merges_words_and_knows_control_tokens(tiny_gguf, tmp_path):
    source = tiny_gguf()
    tokenizer = load_tokenizer(convert(source, tmp_path))
    expected = [source.tokens.index(token) for token in ("<|im_start|>", "Ġthe", "Ġ", "4", "2")]
    assert tokenizer.encode("<|im_start|> the 42") == expected
    assert tokenizer.decode(expected) == " the 42"


def test_chat_template_comes_along(tiny_gguf, tmp_path):
    tokenizer = load_tokenizer(convert(tiny_gguf(), tmp_path))
    assert tokenizer.render_chat([{"role": "user", "content": "hi"}]) == "<|user|>hi"


def test_begin_token_is_added_when_the_file_asks_for_it(tiny_gguf, tmp_path):
    source = tiny_gguf("qwen2")
    source.add_bos = True
    tokenizer = load_tokenizer(convert(source, tmp_path))
    with_begin = tokenizer.encode("the")
    assert with_begin[0] == 1
    assert with_begin[1:] == tokenizer.encode("the", add_special_tokens=False)


def test_rows_that_only_pad_the_vocabulary_are_no_tokens(tiny_gguf, tmp_path):
    source = tiny_gguf("qwen2")
    source.tokens.append("[PAD262]")
    source.types.append(5)
    tokenizer = load_tokenizer(convert(source, tmp_path))
    assert tokenizer.token_to_id("[PAD262]") is None


def test_progress_counts_the_bytes_of_the_tensors_to_the_end(tiny_gguf, tmp_path):
    calls = []
    convert(tiny_gguf(), tmp_path, on_progress=lambda *call: calls.append(call))
    converting = [(done, total) for stage, done, total in calls if stage == "converting"]
    assert converting[0][0] == 0
    assert converting[-1][0] == converting[-1][1] > 0
    assert converting == sorted(converting)


def test_unknown_architecture_is_refused_with_those_that_are_known(tiny_gguf, tmp_path):
    source = tiny_gguf()
    source.architecture = "gemma"
    with pytest.raises(UnsupportedModel, match=r"'gemma'.*llama, qwen2, qwen3"):
        convert(source, tmp_path)


def test_unknown_pre_tokenizer_is_refused(tiny_gguf, tmp_path):
    source = tiny_gguf()
    source.pre = "mystery"
    with pytest.raises(UnsupportedModel, match=r"'mystery'.*smollm"):
        convert(source, tmp_path)


def test_a_tokenizer_of_another_kind_is_refused(tiny_gguf, tmp_path):
    source = tiny_gguf()
    source.tokenizer_model = "bert"
    with pytest.raises(UnsupportedModel, match="tokenizer is 'bert'"):
        convert(source, tmp_path)


def test_a_file_with_pieces_and_scores_is_imported_whole(tiny_gguf, tmp_path):
    source = tiny_gguf()
    source.tokenizer_model, source.pre = "llama", "default"
    letters = ["▁", "t", "h", "e", "th", "the", "▁the"]
    source.tokens = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), *letters]
    source.types = [2, 3, 3] + [6] * 256 + [1] * len(letters)
    source.extra["tokenizer.ggml.scores"] = [0.0] * 259 + [-float(place) for place in range(len(letters))]
    source.merges, source.add_bos = [], True
    source.tensors = type(source)().tensors
    rows = len(source.tokens)
    source.tensors["token_embd.weight"] = np.ones((rows, 32), dtype=np.float32)
    tokenizer = load_tokenizer(convert(source, tmp_path))
    ids = tokenizer.encode("the é</s>")
    assert [tokenizer.id_to_token(each) for each in ids] == [
        "<s>", "▁the", "▁", "<0xC3>", "<0xA9>", "</s>",
    ]  # fmt: skip
    assert tokenizer.decode(ids) == "the é"


@pytest.mark.parametrize(
    ("field", "value", "what"),
    [
        ("llama.rope.scaling.type", "yarn", "'yarn'"),
        ("llama.attention.sliding_window", 64, "sliding window"),
        ("llama.expert_count", 8, "experts"),
    ],
)
def test_what_would_be_converted_wrongly_is_refused(field, value, what, tiny_gguf, tmp_path):
    source = tiny_gguf()
    source.extra[field] = value
    with pytest.raises(UnsupportedModel, match=what):
        convert(source, tmp_path)


@pytest.mark.parametrize("name", ["rope_freqs.weight", "blk.0.ffn_gate_inp.weight", "blk.0.attn_q.bias"])
def test_unknown_tensor_is_refused_by_name(name, tiny_gguf, tmp_path):
    source = tiny_gguf()
    source.tensors[name] = np.ones(4, dtype=np.float32)
    with pytest.raises(UnsupportedModel, match=name):
        convert(source, tmp_path)


def test_missing_field_is_named(tiny_gguf, tmp_path, monkeypatch):
    monkeypatch.setattr(gguf.GGUFWriter, "add_feed_forward_length", lambda self, length: None)
    with pytest.raises(BrokenModel, match=r"llama\.feed_forward_length is missing"):
        convert(tiny_gguf(), tmp_path)


def test_token_outside_the_vocabulary_is_refused(tiny_gguf, tmp_path):
    source = tiny_gguf()
    source.merges.append("x yz")
    with pytest.raises(BrokenModel, match="tokenizer in the GGUF file is incomplete"):
        convert(source, tmp_path)


def test_a_file_cut_anywhere_is_refused(tiny_gguf, tmp_path):
    whole = tiny_gguf().write(tmp_path / "whole.gguf").read_bytes()
    cut = tmp_path / "cut.gguf"
    for size in [*range(0, 200, 7), *range(200, len(whole) - 1, len(whole) // 40), len(whole) - 1]:
        cut.write_bytes(whole[:size])
        (tmp_path / "out").mkdir(exist_ok=True)
        with pytest.raises(BrokenModel, match="truncated or not a GGUF file"):
            convert_gguf(cut, tmp_path / "out")


def test_a_file_of_something_else_is_refused(tmp_path):
    (tmp_path / "x.gguf").write_text(json.dumps({"not": "a model"}) * 50)
    with pytest.raises(BrokenModel, match="not a GGUF file"):
        convert_gguf(tmp_path / "x.gguf", tmp_path)


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(UsageError, match=r"There is no file .*none\.gguf"):
        convert_gguf(tmp_path / "none.gguf", tmp_path)
