"""Every family and rotary type gives transformers' logits, whole, in spans, at once and step by step."""

import itertools
import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

from swarm.model.architectures.registry import SUPPORTED_MODEL_TYPES
from swarm.model.config import ModelConfig, read_config
from swarm.model.span import SpanModel, SpanStep
from swarm.model.weights import build_manifest, load_head, load_span
from swarm.testing.tiny_models import ROPES, VOCAB_SIZE, TinyModel, write_tiny_model
from swarm.values import Span

MIXTURE = {"num_experts": 5, "num_experts_per_tok": 2, "moe_intermediate_size": 24}
FAMILIES = {
    "llama": {},
    "llama with biases": {"attention_bias": True, "mlp_bias": True},
    "qwen2": {"tie_word_embeddings": True},
    "qwen3": {"head_dim": 16},
    "mistral": {"num_key_value_heads": 6},
    "mistral sliding": {"sliding_window": 5},
    "mistral by layer": {
        "sliding_window": 5,
        "layer_types": ["sliding_attention", "full_attention", "full_attention", "sliding_attention"],
    },
    "qwen2 sliding": {"use_sliding_window": True, "sliding_window": 7, "max_window_layers": 2},
    "qwen3 sliding": {
        "use_sliding_window": True,
        "sliding_window": 7,
        "layer_types": ["sliding_attention", "full_attention", "sliding_attention", "full_attention"],
    },
    "cohere2": {
        "tie_word_embeddings": True,
        "logit_scale": 1.5,
        "sliding_window": 5,
        "sliding_window_pattern": 2,
    },
    "gemma2": {
        "sliding_window": 5,
        "head_dim": 16,
        "attn_logit_softcapping": 2.0,
        "query_pre_attn_scalar": 9,
    },
    "gemma3_text": {"sliding_window": 5, "sliding_window_pattern": 3, "tie_word_embeddings": True},
    "glm4": {"attention_bias": True},
    "granite": {
        "embedding_multiplier": 12.0,
        "attention_multiplier": 0.2,
        "residual_multiplier": 0.22,
        "logits_scaling": 0.5,
    },
    "ministral": {"sliding_window": 5},
    "mixtral": {"num_local_experts": 4, "sliding_window": 7},
    "qwen2_moe": {**MIXTURE, "shared_expert_intermediate_size": 40, "norm_topk_prob": True},
    "qwen3_moe": MIXTURE,
    "olmo2": {"num_key_value_heads": 3},
    "phi3": {"sliding_window": 9, "partial_rotary_factor": 0.5},
    "smollm3": {"tie_word_embeddings": True},
    "stablelm": {"partial_rotary_factor": 0.75, "use_qkv_bias": True},
    "stablelm side by side": {"partial_rotary_factor": 0.5, "use_parallel_residual": True},
    "starcoder2": {"hidden_act": "gelu_pytorch_tanh", "sliding_window": 5},
}
# transformers has only LongRoPE for Phi-3, and no Ministral 3 without YaRN
COMBINATIONS = [
    (family, rope) for family in FAMILIES for rope in ROPES if rope == "default" or family != "phi3"
]
IDS = torch.arange(23) * 37 % VOCAB_SIZE


def tiny(directory: Path, family: str, rope: str = "default", **overrides: object) -> ModelConfig:
    overrides = {**FAMILIES[family], **overrides}
    model = TinyModel(family=family.split()[0], rope=rope, overrides=overrides)
    return write_tiny_model(directory, model)


def reference_logits(directory: Path, ids: torch.Tensor) -> torch.Tensor:
    model = transformers.AutoModelForCausalLM.from_pretrained(
        directory, dtype=torch.float32, attn_implementation="eager"
    )
    with torch.no_grad():
        return model.eval()(ids[None]).logits[0]


def spans_of(config: ModelConfig, directory: Path, cuts: list[int]) -> list[SpanModel]:
    edges = [0, *cuts, config.num_blocks]
    return [
        load_span(directory, config, Span(start, end), dtype=torch.float32)
        for start, end in itertools.pairwise(edges)
    ]


def logits_of(config: ModelConfig, directory: Path, cuts: list[int], chunks: list[int]) -> torch.Tensor:
    head = load_head(directory, config, dtype=torch.float32)
    models = spans_of(config, directory, cuts)
    caches = [model.new_cache() for model in models]
    rows = []
    for chunk in IDS.split(chunks):
        hidden = head.embed(chunk.tolist())
        for model, cache in zip(models, caches, strict=True):
            (hidden,) = model.forward([SpanStep(cache, hidden)])
        rows.append(head.logits(hidden))
    return torch.cat(rows)


@pytest.mark.parametrize(("family", "rope"), COMBINATIONS)
def test_logits_equal_transformers_in_one_prefill_and_token_by_token(tmp_path, family, rope):
    config = tiny(tmp_path, family, rope)
    expected = reference_logits(tmp_path, IDS)
    assert expected.std() > 0.1
    at_once = logits_of(config, tmp_path, cuts=[], chunks=[len(IDS)])
    step_by_step = logits_of(config, tmp_path, cuts=[1, 3], chunks=[1] * len(IDS))
    torch.testing.assert_close(at_once, expected, atol=2e-5, rtol=0)
    torch.testing.assert_close(step_by_step, expected, atol=2e-5, rtol=0)


@pytest.mark.parametrize("family", ["llama", "mistral sliding", "qwen3 sliding"])
@pytest.mark.parametrize("cuts", [[2], [1, 2, 3]])
def test_unequal_chunks_through_several_spans_equal_transformers(tmp_path, family, cuts):
    config = tiny(tmp_path, family)
    expected = reference_logits(tmp_path, IDS)
    actual = logits_of(config, tmp_path, cuts, chunks=[3, 1, 14, 1, 4])
    torch.testing.assert_close(actual, expected, atol=2e-5, rtol=0)


@pytest.mark.parametrize("window", [4, 100])
def test_a_window_longer_or_shorter_than_a_prompt_of_several_tiles_equals_transformers(tmp_path, window):
    config = tiny(tmp_path, "mistral sliding", sliding_window=window, max_position_embeddings=512)
    ids = torch.arange(300) * 53 % VOCAB_SIZE
    expected = reference_logits(tmp_path, ids)
    head = load_head(tmp_path, config, dtype=torch.float32)
    model = load_span(tmp_path, config, Span(0, config.num_blocks), dtype=torch.float32)
    (hidden,) = model.forward([SpanStep(model.new_cache(), head.embed(ids.tolist()))])
    torch.testing.assert_close(head.logits(hidden), expected, atol=2e-5, rtol=0)


@pytest.mark.parametrize("rope", ROPES)
def test_the_newer_spelling_of_a_config_computes_the_same(tmp_path, rope):
    config = tiny(tmp_path / "older", "llama", rope)
    model = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "older")
    model.save_pretrained(tmp_path / "newer")
    written = json.loads((tmp_path / "newer" / "config.json").read_text())
    assert "rope_parameters" in written
    assert "rope_theta" not in written
    assert "torch_dtype" not in written
    newer = read_config(tmp_path / "newer")
    assert newer.canonical() == config.canonical()
    assert newer == config


# of sizes, a few are given where transformers' default does not fit so small a model
BARE = frozenset(
    {
        "num_key_value_heads",
        "head_dim",
        "rms_norm_eps",
        "max_position_embeddings",
        "rope_theta",
        "rope_scaling",
        "hidden_act",
        "sliding_window",
        "tie_word_embeddings",
        "torch_dtype",
        "bos_token_id",
        "eos_token_id",
    }
)
NO_OWN_DEFAULT = ("cohere2", "granite", "llama", "olmo2", "phi3")  # as many as there are heads


# transformers has no default of the rotary base for `ministral`
@pytest.mark.parametrize("family", [each for each in SUPPORTED_MODEL_TYPES if each != "ministral"])
def test_a_config_of_sizes_alone_computes_with_transformers_defaults(tmp_path, family):
    left_out = BARE if family in NO_OWN_DEFAULT else BARE - {"num_key_value_heads"}
    config = write_tiny_model(tmp_path, TinyModel(family=family, num_blocks=7, left_out=left_out))
    actual = logits_of(config, tmp_path, cuts=[3], chunks=[9, 1, 13])
    torch.testing.assert_close(actual, reference_logits(tmp_path, IDS), atol=1e-4, rtol=0)


ODD = {
    "gemma2 with its own kinds": (
        "gemma2",
        {
            "layer_types": ["full_attention", "sliding_attention", "sliding_attention", "full_attention"],
            "sliding_window": 3,
            "attn_logit_softcapping": None,
            "final_logit_softcapping": None,
            "query_pre_attn_scalar": 8,
            "attention_bias": True,
            "hidden_activation": "silu",
        },
    ),
    "gemma3 in the newer spelling": (
        "gemma3_text",
        {
            "layer_types": ["sliding_attention", "full_attention"] * 2,
            "sliding_window": 6,
            "rope_theta": None,
            "rope_parameters": {
                "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e6},
                "sliding_attention": {"rope_type": "default", "rope_theta": 5e3},
            },
            "final_logit_softcapping": 4.0,
        },
    ),
    "gemma3 in the older spelling": (
        "gemma3_text",
        {
            "sliding_window": 6,
            "sliding_window_pattern": 2,
            "rope_theta": 5e5,
            "rope_local_base_freq": 1e3,
            "rope_scaling": {"rope_type": "linear", "factor": 8.0},
        },
    ),
    "phi3 with two tables": (
        "phi3",
        {
            "rope_scaling": {
                "type": "longrope",
                "short_factor": [1.0, 1.1, 1.5],
                "long_factor": [1.0, 3.0, 9.0],
            },
            "partial_rotary_factor": 0.75,
            "original_max_position_embeddings": 64,
        },
    ),
    "phi3 with its length beside the recipe": (
        "phi3",
        {
            "rope_scaling": None,
            "rope_parameters": {
                "rope_type": "longrope",
                "rope_theta": 1e4,
                "short_factor": [1.0, 1.1, 1.5, 1.7],
                "long_factor": [1.0, 3.0, 9.0, 11.0],
                "attention_factor": 1.3,
            },
            "original_max_position_embeddings": 64,
        },
    ),
    "llama by longrope": (
        "llama",
        {
            "rope_scaling": {
                "rope_type": "longrope",
                "short_factor": [1.0, 1.1, 1.5, 1.7],
                "long_factor": [1.0, 3.0, 9.0, 11.0],
                "original_max_position_embeddings": 64,
            },
        },
    ),
    "llama by a proportion": (
        "llama",
        {"rope_scaling": {"rope_type": "proportional", "partial_rotary_factor": 0.5, "factor": 2.0}},
    ),
    "smollm3 by its list": (
        "smollm3",
        {
            "no_rope_layers": [0, 1, 1, 0, 1],
            "use_sliding_window": True,
            "sliding_window": 4,
            "mlp_bias": True,
        },
    ),
    "glm4 all turning": ("glm4", {"partial_rotary_factor": 1.0, "attention_bias": False}),
    "granite without factors": ("granite", {"attention_bias": True, "mlp_bias": True}),
    "cohere2 with a head size of its own": (
        "cohere2",
        {"head_dim": 16, "attention_bias": True, "sliding_window": 4, "logit_scale": 2.0},
    ),
    "olmo2 with biases": ("olmo2", {"attention_bias": True}),
    "stablelm with a newer recipe": (
        "stablelm",
        {"rope_parameters": {"rope_theta": 1e3, "partial_rotary_factor": 0.5}, "rope_theta": None},
    ),
    "starcoder2 without biases": ("starcoder2", {"use_bias": False, "hidden_act": "gelu"}),
    "ministral3 past its original context": (
        "ministral3",
        {
            "rope_parameters": {
                "rope_type": "yarn",
                "rope_theta": 1e4,
                "factor": 16.0,
                "original_max_position_embeddings": 8,
                "mscale": 1.0,
                "mscale_all_dim": 1.0,
                "llama_4_scaling_beta": 0.7,
            },
            "rope_theta": None,
        },
    ),
    "ministral by kinds": (
        "ministral",
        {"layer_types": ["full_attention", "sliding_attention"] * 2, "sliding_window": 3},
    ),
}


@pytest.mark.parametrize("name", ODD)
def test_odd_configs_equal_transformers(tmp_path, name):
    family, overrides = ODD[name]
    config = write_tiny_model(tmp_path, TinyModel(family=family, overrides=overrides))
    expected = reference_logits(tmp_path, IDS)
    at_once = logits_of(config, tmp_path, cuts=[], chunks=[len(IDS)])
    in_chunks = logits_of(config, tmp_path, cuts=[1], chunks=[3, 1, 14, 1, 4])
    torch.testing.assert_close(at_once, expected, atol=1e-4, rtol=0)
    torch.testing.assert_close(in_chunks, expected, atol=1e-4, rtol=0)


def test_yarn_variants_equal_transformers(tmp_path):
    scaling = {
        **ROPES["yarn"],
        "beta_fast": 16.0,
        "beta_slow": 2.0,
        "mscale": 1.0,
        "mscale_all_dim": 0.5,
        "truncate": False,
    }
    config = tiny(tmp_path, "llama", rope_scaling=scaling)
    actual = logits_of(config, tmp_path, cuts=[], chunks=[len(IDS)])
    torch.testing.assert_close(actual, reference_logits(tmp_path, IDS), atol=2e-5, rtol=0)


@pytest.mark.parametrize("betas", [{"beta_fast": 0}, {"beta_slow": 0}, {"beta_fast": 0, "beta_slow": 0.0}])
def test_yarn_with_a_beta_of_zero_equals_transformers(tmp_path, betas):
    config = tiny(tmp_path, "llama", rope_scaling={**ROPES["yarn"], **betas})
    actual = logits_of(config, tmp_path, cuts=[], chunks=[len(IDS)])
    torch.testing.assert_close(actual, reference_logits(tmp_path, IDS), atol=2e-5, rtol=0)


@pytest.mark.parametrize("beside", [{}, {"rope_type": "default", "rope_theta": 5e5}])
def test_a_recipe_added_by_hand_equals_transformers(tmp_path, beside):
    config = tiny(tmp_path, "qwen2", rope_scaling=ROPES["yarn"], rope_parameters=beside)
    actual = logits_of(config, tmp_path, cuts=[], chunks=[len(IDS)])
    torch.testing.assert_close(actual, reference_logits(tmp_path, IDS), atol=2e-5, rtol=0)


def rewrite(directory: Path, change: Callable[[dict[str, torch.Tensor]], dict[str, torch.Tensor]]) -> None:
    path = directory / "model.safetensors"
    save_file(change(load_file(path)), path, metadata={"format": "pt"})


def without_prefix(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {name.removeprefix("model."): tensor for name, tensor in tensors.items()}


def with_another_head(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {**tensors, "lm_head.weight": tensors["model.embed_tokens.weight"].flip(0).contiguous()}


def with_the_same_head(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {**tensors, "lm_head.weight": tensors["model.embed_tokens.weight"].clone()}


def with_the_head_alone(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {"lm_head.weight": tensors.pop("model.embed_tokens.weight"), **tensors}


@pytest.mark.parametrize(
    ("change", "names_a_head"),
    [
        (without_prefix, False),
        (with_another_head, True),
        (with_the_same_head, False),
        (with_the_head_alone, False),
    ],
)
def test_ends_tied_in_the_config_are_what_the_files_hold(tmp_path, change, names_a_head):
    config = tiny(tmp_path, "qwen2")
    rewrite(tmp_path, change)
    expected = reference_logits(tmp_path, IDS)
    actual = logits_of(config, tmp_path, cuts=[2], chunks=[len(IDS)])
    torch.testing.assert_close(actual, expected, atol=2e-5, rtol=0)
    manifest = build_manifest(tmp_path)
    assert ("lm_head.weight" in manifest.tensors) == names_a_head
    head = load_head(tmp_path, config, dtype=torch.float32, manifest=manifest)
    row = torch.linspace(-1, 1, config.hidden_size)[None]
    unchecked = load_head(tmp_path, config, dtype=torch.float32)
    assert torch.equal(head.logits(row), unchecked.logits(row))


def test_tensors_without_the_prefix_of_untied_ends_equal_transformers(tmp_path):
    config = tiny(tmp_path, "llama", architectures=["LlamaModel"])
    rewrite(tmp_path, without_prefix)
    actual = logits_of(config, tmp_path, cuts=[], chunks=[len(IDS)])
    torch.testing.assert_close(actual, reference_logits(tmp_path, IDS), atol=2e-5, rtol=0)
