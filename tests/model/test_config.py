"""config.json in every spelling, and each way it can be wrong."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from swarm.errors import BrokenModel, UnsupportedModel, UsageError
from swarm.model.config import ModelConfig, Rope, read_config, read_generation_defaults
from swarm.model.sampling import Sampling
from swarm.values import Span

LLAMA = {
    "model_type": "llama",
    "num_hidden_layers": 4,
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "vocab_size": 259,
    "rms_norm_eps": 1e-5,
    "max_position_embeddings": 256,
    "torch_dtype": "bfloat16",
    "eos_token_id": 2,
}
SLIDING = {"use_sliding_window": True, "sliding_window": 16}


def write(directory: Path, **changes: object) -> Path:
    fields = {**LLAMA, **changes}
    (directory / "config.json").write_text(json.dumps({k: v for k, v in fields.items() if v != "absent"}))
    return directory


def read(directory: Path, **changes: object) -> ModelConfig:
    return read_config(write(directory, **changes))


def test_a_plain_config_is_read_with_its_defaults(tmp_path):
    assert read(tmp_path) == ModelConfig(
        model_type="llama",
        num_blocks=4,
        hidden_size=48,
        intermediate_size=80,
        num_heads=6,
        num_kv_heads=2,
        head_dim=8,
        vocab_size=259,
        rms_norm_eps=1e-5,
        context_length=256,
        dtype="bfloat16",
        stop_token_ids=(2,),
    )


@pytest.mark.parametrize(
    "field",
    [
        "model_type",
        "num_hidden_layers",
        "hidden_size",
        "intermediate_size",
        "num_attention_heads",
        "vocab_size",
        "rms_norm_eps",
        "max_position_embeddings",
    ],
)
def test_a_missing_field_is_named_with_its_file(tmp_path, field):
    with pytest.raises(BrokenModel, match=rf"field {field} in .*config\.json is missing"):
        read(tmp_path, **{field: "absent"})


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("hidden_size", "48"),
        ("num_hidden_layers", 0),
        ("vocab_size", True),
        ("rms_norm_eps", "small"),
        ("tie_word_embeddings", 1),
        ("eos_token_id", "two"),
        ("rope_theta", 1.0),
        ("rope_scaling", 7),
        ("head_dim", 7),
        ("num_key_value_heads", 4),
    ],
)
def test_a_senseless_field_is_named(tmp_path, field, value):
    with pytest.raises(BrokenModel, match=field):
        read(tmp_path, **{field: value})


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model_type": "mixtral"}, "'mixtral'.* Supported: llama, mistral, qwen2, qwen3"),
        (
            {"rope_scaling": {"rope_type": "longrope"}},
            "'longrope'.* Supported: default, linear, llama3, yarn",
        ),
        ({"hidden_act": "gelu"}, "'gelu'.* Supported: silu"),
        ({"torch_dtype": "float8_e4m3fn"}, "'float8_e4m3fn'.* Supported: bfloat16, float16, float32"),
        ({"quantization_config": {"quant_method": "gptq"}}, "gptq"),
        ({"partial_rotary_factor": 0.5}, "partial rotary"),
        ({"model_type": "qwen3", **SLIDING, "layer_types": ["linear_attention"] * 4}, "'linear_attention'"),
    ],
)
def test_what_cannot_be_computed_is_refused_by_name(tmp_path, changes, message):
    with pytest.raises(UnsupportedModel, match=message):
        read(tmp_path, **changes)


def test_older_and_newer_spelling_give_the_same_config(tmp_path):
    yarn = {"factor": 4.0, "original_max_position_embeddings": 64}
    older = read(tmp_path, rope_theta=5e5, rope_scaling={"type": "yarn", **yarn})
    newer = read(
        tmp_path,
        torch_dtype="absent",
        dtype="bfloat16",
        rope_parameters={"rope_type": "yarn", "rope_theta": 500000, **yarn},
    )
    assert older == newer
    assert older.rope == Rope(type="yarn", theta=5e5, factor=4.0, original_context_length=64)


@pytest.mark.parametrize(
    ("scaling", "field"),
    [
        ({"rope_type": "linear"}, "factor"),
        ({"rope_type": "llama3", "factor": 8.0, "high_freq_factor": 4.0}, "low_freq_factor"),
        (
            {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 4.0, "high_freq_factor": 4.0},
            "high_freq_factor",
        ),
    ],
)
def test_a_rotary_type_without_what_it_needs_is_broken(tmp_path, scaling, field):
    with pytest.raises(BrokenModel, match=f"rope_scaling.{field}"):
        read(tmp_path, rope_scaling=scaling)


def test_stop_ids_are_joined_from_both_files(tmp_path):
    (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": [7, 2]}))
    assert read(tmp_path, eos_token_id=2).stop_token_ids == (2, 7)


@pytest.mark.parametrize(
    ("changes", "windows"),
    [
        ({"model_type": "mistral", "sliding_window": 16}, (16, 16, 16, 16)),
        ({"model_type": "mistral", "sliding_window": None}, ()),
        ({"model_type": "llama", "sliding_window": 16}, ()),
        ({"model_type": "qwen2", **SLIDING, "max_window_layers": 3}, (None, None, None, 16)),
        ({"model_type": "qwen2", **SLIDING, "max_window_layers": 4}, ()),
        (
            {
                "model_type": "qwen2",
                "use_sliding_window": False,
                "sliding_window": 16,
                "max_window_layers": 1,
            },
            (),
        ),
        (
            {
                "model_type": "qwen3",
                **SLIDING,
                "layer_types": ["full_attention", "sliding_attention", "full_attention", "full_attention"],
            },
            (None, 16, None, None),
        ),
    ],
)
def test_sliding_windows_follow_the_family(tmp_path, changes, windows):
    config = read(tmp_path, **changes)
    assert config.windows == windows
    assert [config.window(block) for block in range(4)] == list(windows or [None] * 4)


def test_qwen3_has_its_own_head_size_unless_the_config_says_so(tmp_path):
    assert read(tmp_path, model_type="qwen3").head_dim == 128
    assert read(tmp_path, model_type="qwen3", head_dim=16).head_dim == 16


@pytest.mark.parametrize("text", ["{", "[]", "\udcff"])
def test_a_config_that_is_not_a_json_object_is_broken(tmp_path, text):
    (tmp_path / "config.json").write_bytes(text.encode(errors="surrogateescape"))
    with pytest.raises(BrokenModel, match=r"config\.json"):
        read_config(tmp_path)


def test_a_directory_without_config_is_broken(tmp_path):
    with pytest.raises(BrokenModel, match=r"config\.json is missing.*swarm model pull"):
        read_config(tmp_path)


def test_the_canonical_form_ignores_what_is_not_computed_with(tmp_path):
    plain = read(tmp_path)
    other = read(
        tmp_path,
        transformers_version="9.9",
        _name_or_path="x",
        torch_dtype="absent",
        dtype="float16",
        eos_token_id=[1, 2],
        rope_theta=10000,
        num_key_value_heads=2,
        head_dim=8,
    )
    assert other.canonical() == plain.canonical()
    assert replace(plain, rms_norm_eps=1e-6).canonical() != plain.canonical()
    assert replace(plain, rope=Rope(theta=2e4)).canonical() != plain.canonical()


def test_a_span_outside_the_model_is_refused_with_what_there_is(tmp_path):
    config = read(tmp_path)
    config.check_span(Span(0, 4))
    with pytest.raises(UsageError, match="3:5 is outside the model, which has 4 blocks"):
        config.check_span(Span(3, 5))


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        (None, Sampling()),
        ({"temperature": 0.7, "top_k": 20}, Sampling()),
        ({"repetition_penalty": 1.1}, Sampling(repetition_penalty=1.1)),
        (
            {"do_sample": True, "temperature": 0.7, "top_k": 20, "top_p": 0.8, "repetition_penalty": 1.05},
            Sampling(temperature=0.7, top_k=20, top_p=0.8, repetition_penalty=1.05),
        ),
        ({"do_sample": True}, Sampling(temperature=1.0)),
    ],
)
def test_generation_defaults_mean_what_they_mean_to_transformers(tmp_path, fields, expected):
    if fields is not None:
        (tmp_path / "generation_config.json").write_text(json.dumps(fields))
    assert read_generation_defaults(tmp_path) == expected
