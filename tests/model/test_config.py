"""config.json in every spelling, and each way it can be wrong."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import transformers

from swarm.errors import BrokenModel, UnsupportedModel, UsageError
from swarm.model.architectures.registry import SUPPORTED_MODEL_TYPES
from swarm.model.config import ModelConfig, read_config, read_generation_defaults
from swarm.model.rope import Rope
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
EPS_NAMES = ("rms_norm_eps", "layer_norm_eps", "norm_epsilon")
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
        bos_token_id=1,
        stop_token_ids=(2,),
    )


def test_a_missing_family_is_named_with_its_file(tmp_path):
    with pytest.raises(BrokenModel, match=r"field model_type in .*config\.json is missing"):
        read(tmp_path, model_type="absent")


@pytest.mark.parametrize("field", ["hidden_size", "num_hidden_layers", "rms_norm_eps", "vocab_size"])
def test_a_null_is_no_default(tmp_path, field):
    with pytest.raises(BrokenModel, match=rf"field {field} in .*config\.json is missing"):
        read(tmp_path, **{field: None})


@pytest.mark.parametrize("family", ["llama", "mistral", "qwen2", "qwen3"])
@pytest.mark.parametrize("left_out", [*LLAMA, "everything"])
def test_a_key_that_is_left_out_has_transformers_default(tmp_path, family, left_out):
    gone = dict.fromkeys(LLAMA if left_out == "everything" else [left_out], "absent")
    gone |= {"model_type": family, "torch_dtype": "float32"}
    gone = {"hidden_size": 64, "num_attention_heads": 32, **gone}  # as many as there are by default
    ours, theirs = read(tmp_path, **gone), transformers.AutoConfig.from_pretrained(tmp_path)
    assert (ours.num_blocks, ours.hidden_size) == (theirs.num_hidden_layers, theirs.hidden_size)
    assert (ours.intermediate_size, ours.vocab_size) == (theirs.intermediate_size, theirs.vocab_size)
    head_dim = getattr(theirs, "head_dim", theirs.hidden_size // theirs.num_attention_heads)
    assert (ours.num_heads, ours.head_dim) == (theirs.num_attention_heads, head_dim)
    assert (ours.num_kv_heads, ours.rms_norm_eps) == (theirs.num_key_value_heads, theirs.rms_norm_eps)
    assert (ours.context_length, ours.rope) == (theirs.max_position_embeddings, Rope())
    eos = [] if theirs.eos_token_id is None else [theirs.eos_token_id]
    assert (ours.bos_token_id, list(ours.stop_token_ids)) == (theirs.bos_token_id, eos)


@pytest.mark.parametrize("family", [each for each in SUPPORTED_MODEL_TYPES if each != "ministral"])
def test_a_config_of_nothing_but_its_family_has_transformers_defaults(tmp_path, family):
    (tmp_path / "config.json").write_text(json.dumps({"model_type": family}))
    ours, theirs = read_config(tmp_path), transformers.AutoConfig.from_pretrained(tmp_path)
    assert (ours.num_blocks, ours.hidden_size) == (theirs.num_hidden_layers, theirs.hidden_size)
    assert (ours.intermediate_size, ours.vocab_size) == (theirs.intermediate_size, theirs.vocab_size)
    heads, width = theirs.num_attention_heads, theirs.hidden_size // theirs.num_attention_heads
    assert (ours.num_heads, ours.num_kv_heads) == (heads, theirs.num_key_value_heads)
    assert ours.head_dim == (getattr(theirs, "head_dim", None) or width)
    eps = next(getattr(theirs, name) for name in EPS_NAMES if hasattr(theirs, name))
    assert (ours.rms_norm_eps, ours.context_length) == (eps, theirs.max_position_embeddings)
    assert ours.tie_word_embeddings == theirs.tie_word_embeddings
    assert ours.bos_token_id == theirs.bos_token_id
    eos = theirs.eos_token_id
    assert list(ours.stop_token_ids) == (eos if isinstance(eos, list) else [] if eos is None else [eos])
    recipe = theirs.rope_parameters
    recipe = recipe.get("full_attention", recipe)
    assert (ours.rope.theta, ours.rope.type) == (recipe["rope_theta"], recipe["rope_type"])
    assert ours.rope.share == recipe.get("partial_rotary_factor", 1.0)
    kinds = getattr(theirs, "layer_types", None) or [None] * ours.num_blocks
    every = "sliding_attention" if family in ("mistral", "starcoder2", "phi3", "mixtral") else None
    sliding = [theirs.sliding_window if (kind or every) == "sliding_attention" else None for kind in kinds]
    assert [ours.window(block) for block in range(ours.num_blocks)] == sliding


def test_a_familys_end_token_does_not_join_those_that_are_named(tmp_path):
    (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": [7]}))
    left_out = {name: "absent" for name in LLAMA if name == "eos_token_id"}
    assert read(tmp_path, **left_out).stop_token_ids == (7,)


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
        ({"model_type": "gpt_oss"}, "'gpt_oss'.* Supported: cohere2, gemma2, .*, starcoder2"),
        (
            {"rope_scaling": {"rope_type": "mrope"}},
            "'mrope'.* Supported: default, linear, dynamic, llama3, yarn",
        ),
        ({"hidden_act": "relu2"}, "'relu2'.* Supported: silu"),
        ({"torch_dtype": "float8_e4m3fn"}, "'float8_e4m3fn'.* Supported: bfloat16, float16, float32"),
        ({"quantization_config": {"quant_method": "gptq"}}, "gptq"),
        ({"partial_rotary_factor": 0.5}, "partial rotary"),
        ({"rope_parameters": {}, "rope_scaling": {"type": "mrope", "factor": 2.0}}, "'mrope'"),
        (
            {"rope_parameters": {"rope_theta": 1e4}, "rope_scaling": {"rope_type": "mrope", "factor": 2.0}},
            "'mrope'",
        ),
        ({"rope_parameters": {"full_attention": {"rope_theta": 5e5}}}, "each kind of layer"),
        ({"compression_config": {"format": "int-quantized"}}, "quantised .int-quantized."),
        ({"architectures": ["LlamaForSequenceClassification"]}, "LlamaForSequenceClassification"),
        ({"model_type": "qwen2", "architectures": ["Qwen2ForRewardModel"]}, "Qwen2ForRewardModel"),
        ({"architectures": ["LlamaForCausalLMEagle3"]}, "LlamaForCausalLMEagle3"),
        ({"is_causal": False}, "not causal"),
        ({"auto_map": {"AutoModelForCausalLM": "modeling_x.XForCausalLM"}}, "auto_map"),
        ({"model_type": "gemma2", "use_bidirectional_attention": True}, "looks ahead"),
        ({"model_type": "qwen3_moe", "mlp_only_layers": [0]}, "only some have experts"),
        ({"model_type": "qwen2_moe", "decoder_sparse_step": 2}, "only some have experts"),
        ({"model_type": "stablelm", "qk_layernorm": True}, "norm of its own for each head"),
        ({"model_type": "gemma2", "auto_map": {"AutoModelForCausalLM": "m.Gemma2ForCausalLM"}}, "auto_map"),
        ({"model_type": "phi3", "architectures": ["Phi3ForSequenceClassification"]}, "Phi3ForSequence"),
        ({"model_type": "gemma3_text", "architectures": ["Gemma3ForConditionalGeneration"]}, "Conditional"),
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


RECIPE = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 256}


@pytest.mark.parametrize(
    ("changes", "theta", "context_length"),
    [
        ({"rope_parameters": {}, "rope_scaling": RECIPE}, 1e4, 1024),
        ({"rope_parameters": {}, "rope_scaling": RECIPE, "rope_theta": 5e5}, 5e5, 1024),
        ({"rope_parameters": {"rope_theta": 5e5}, "rope_scaling": {**RECIPE, "rope_theta": 7e5}}, 7e5, 1024),
        ({"rope_parameters": {"rope_theta": 5e5}, "rope_scaling": RECIPE}, 1e4, 1024),
        ({"rope_parameters": {**RECIPE, "rope_theta": 5e5}, "rope_scaling": {}}, 5e5, 1024),
        ({"rope_scaling": RECIPE, "max_position_embeddings": 1024}, 1e4, 1024),
    ],
)
def test_a_recipe_beside_rope_parameters_is_the_one_that_counts(tmp_path, changes, theta, context_length):
    config = read(tmp_path, **changes)
    theirs = transformers.AutoConfig.from_pretrained(tmp_path).rope_parameters
    assert config.rope == Rope(type="yarn", theta=theta, factor=4.0, original_context_length=256)
    assert (theirs["rope_type"], theirs["rope_theta"], theirs["factor"]) == ("yarn", theta, 4.0)
    assert config.context_length == context_length


def test_a_context_that_is_stretched_beyond_any_is_broken(tmp_path):
    with pytest.raises(BrokenModel, match="max_position_embeddings"):
        read(tmp_path, rope_scaling={"rope_type": "linear", "factor": 1e6})


def test_a_context_is_stretched_by_a_linear_recipe_and_not_by_llama3s(tmp_path):
    llama3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
    assert read(tmp_path, rope_scaling={"rope_type": "linear", "factor": 2.0}).context_length == 512
    assert read(tmp_path, rope_scaling=llama3).context_length == 256


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
        ({"model_type": "mistral"}, (4096, 4096, 4096, 4096)),
        (
            {
                "model_type": "mistral",
                "sliding_window": 16,
                "layer_types": ["sliding_attention", "full_attention"] * 2,
            },
            (16, None, 16, None),
        ),
        ({"model_type": "mistral", "sliding_window": 16, "layer_types": None}, (16, 16, 16, 16)),
        (
            {"model_type": "qwen2", "use_sliding_window": True, "max_window_layers": 3},
            (None, None, None, 4096),
        ),
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


def test_layers_that_slide_without_a_window_are_broken(tmp_path):
    layers = ["full_attention", "sliding_attention"] * 2
    for changes in ({"model_type": "qwen2"}, {"model_type": "mistral", "sliding_window": None}):
        with pytest.raises(BrokenModel, match="layer_types"):
            read(tmp_path, **changes, layer_types=layers)


def test_qwen3_has_its_own_head_size_unless_the_config_says_so(tmp_path):
    assert read(tmp_path, model_type="qwen3").head_dim == 128
    assert read(tmp_path, model_type="qwen3", head_dim=16).head_dim == 16


@pytest.mark.parametrize(
    ("family", "changes", "field"),
    [
        ("phi3", {"partial_rotary_factor": 0.1}, "partial_rotary_factor"),
        ("stablelm", {"partial_rotary_factor": 0.4}, "partial_rotary_factor"),
        ("phi3", {"rope_scaling": {"type": "su", "short_factor": [1.0, 2.0]}}, "rope_scaling"),
        ("phi3", {"rope_scaling": {"type": "su"}}, "short_factor"),
        ("phi3", {"rope_scaling": {"type": "su", "short_factor": [1.0, "x", 1.0, 1.0]}}, "short_factor"),
        ("phi3", {"rope_scaling": {"type": "su", "short_factor": [1.0] * 5000}}, "short_factor"),
        ("smollm3", {"no_rope_layers": [1]}, "no_rope_layers"),
        ("smollm3", {"no_rope_layers": [1, 2, 1, 1]}, "no_rope_layers"),
        ("gemma3_text", {"sliding_window_pattern": 0}, "sliding_window_pattern"),
        ("gemma3_text", {"rope_parameters": {"full_attention": [1]}}, "full_attention"),
        ("gemma2", {"query_pre_attn_scalar": 0}, "query_pre_attn_scalar"),
        ("gemma2", {"final_logit_softcapping": 0.0}, "final_logit_softcapping"),
        ("granite", {"logits_scaling": 0}, "logits_scaling"),
        ("cohere2", {"logit_scale": None}, "logit_scale"),
        ("qwen3_moe", {"num_experts": 4, "num_experts_per_tok": 5}, "num_experts_per_tok"),
        ("mixtral", {"num_local_experts": 4096, "num_hidden_layers": 1000}, "num_local_experts"),
        ("ministral3", {"rope_parameters": {"rope_type": "yarn", "factor": 2.0}}, "llama_4_scaling_beta"),
    ],
)
def test_a_senseless_field_of_a_family_is_named(tmp_path, family, changes, field):
    with pytest.raises(BrokenModel, match=field):
        read(tmp_path, model_type=family, **changes)


def test_phi_is_read_though_its_repositories_name_code(tmp_path):
    code = {
        "AutoConfig": "configuration_phi3.Phi3Config",
        "AutoModelForCausalLM": "modeling_phi3.Phi3ForCausalLM",
    }
    assert read(tmp_path, model_type="phi3", auto_map=code, architectures=["Phi3ForCausalLM"]).num_blocks == 4


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


@pytest.mark.parametrize(
    ("family", "more"),
    [
        ("llama", {}),
        ("qwen3", {"head_dim": 128, "qk_norm": True}),
        ("mistral", {"rope": {"factor": 2.0, "type": "linear"}, "windows": [16] * 4}),
    ],
)
def test_the_canonical_form_of_the_first_families_never_changes(tmp_path, family, more):
    scaling = {"rope_type": "linear", "factor": 2.0} if "rope" in more else None
    config = read(tmp_path, model_type=family, sliding_window=16, rope_scaling=scaling)
    expected = {
        "context_length": 512 if scaling else 256,
        "head_dim": 8,
        "hidden_size": 48,
        "intermediate_size": 80,
        "model_type": family,
        "num_blocks": 4,
        "num_heads": 6,
        "num_kv_heads": 2,
        "rms_norm_eps": 1e-5,
        "rope": {},
        "vocab_size": 259,
        **more,
    }
    assert config.canonical() == json.dumps(expected, sort_keys=True, separators=(",", ":")).encode()


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
        ({"do_sample": True}, Sampling(temperature=1.0, top_k=50)),
        ({"do_sample": True, "top_k": None}, Sampling(temperature=1.0, top_k=50)),
        ({"do_sample": True, "top_k": 0, "top_p": 1.1}, Sampling(temperature=1.0)),
        ({"do_sample": True, "top_k": -1, "top_p": 0}, Sampling(temperature=1.0, top_p=1e-6)),
    ],
)
def test_generation_defaults_mean_what_they_mean_to_transformers(tmp_path, fields, expected):
    if fields is not None:
        (tmp_path / "generation_config.json").write_text(json.dumps(fields))
    assert read_generation_defaults(tmp_path) == expected


@pytest.mark.parametrize("fields", [{"top_k": -2}, {"top_k": 1.5}, {"top_p": -0.1}, {"top_p": 2.1}])
def test_a_senseless_default_of_sampling_is_named_with_its_file(tmp_path, fields):
    (tmp_path / "generation_config.json").write_text(json.dumps({"do_sample": True, **fields}))
    with pytest.raises(BrokenModel, match=rf"{next(iter(fields))} in .*generation_config\.json"):
        read_generation_defaults(tmp_path)
