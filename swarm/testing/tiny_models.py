"""Tiny random models, written as real model directories: config, safetensors, tokenizer, template.

For tests and for trying things out in a second. Any supported family and rotary type; the same
arguments always give the same bytes.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import torch
from safetensors.torch import save_file
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from torch import Tensor

from swarm.model.config import ModelConfig, read_config
from swarm.model.dtypes import parse_dtype
from swarm.model.weights import block_tensors, head_tensors

SPECIAL_TOKENS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
VOCAB_SIZE = 256 + len(SPECIAL_TOKENS)

ROPES: Mapping[str, Mapping[str, object]] = {
    "default": {"rope_type": "default"},
    "linear": {"rope_type": "linear", "factor": 2.0},
    "dynamic": {"rope_type": "dynamic", "factor": 2.0},
    "llama3": {
        "rope_type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 64,
    },
    "yarn": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64},
}

CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + '\\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)


@dataclass(frozen=True, slots=True)
class TinyModel:
    """What to write. `overrides` are fields of config.json in Hugging Face's spelling; `left_out` are not."""

    family: str = "llama"
    num_blocks: int = 4
    rope: str = "default"
    dtype: str = "float32"
    seed: int = 0
    shards: int = 1
    overrides: Mapping[str, object] = field(default_factory=dict)
    left_out: frozenset[str] = frozenset()


def write_tiny_model(directory: Path, model: TinyModel = TinyModel()) -> ModelConfig:
    """Write a model directory, which is made if need be, and give its config."""
    directory.mkdir(parents=True, exist_ok=True)
    _write_json(directory / "config.json", _config(model))
    generation = {"eos_token_id": VOCAB_SIZE - 1, "bos_token_id": VOCAB_SIZE - 3}
    _write_json(directory / "generation_config.json", generation)
    _write_tokenizer(directory)
    config = read_config(directory)
    _write_tensors(directory, _random_tensors(config, model.seed), model)
    return config


def _config(model: TinyModel) -> dict[str, object]:
    fields = {
        "model_type": model.family,
        "num_hidden_layers": model.num_blocks,
        "hidden_size": 48,
        "intermediate_size": 80,
        "num_attention_heads": 6,
        "num_key_value_heads": 2,
        "head_dim": 8,
        "vocab_size": VOCAB_SIZE,
        "rms_norm_eps": 1e-5,
        "max_position_embeddings": 256,
        "rope_theta": 10_000.0,
        "rope_scaling": None if model.rope == "default" else dict(ROPES[model.rope]),
        "hidden_act": "silu",
        "sliding_window": None,
        "pad_token_id": 0,
        "tie_word_embeddings": False,
        "torch_dtype": model.dtype,
        "bos_token_id": VOCAB_SIZE - 3,
        "eos_token_id": VOCAB_SIZE - 1,
        **model.overrides,
    }
    return {name: value for name, value in fields.items() if name not in model.left_out}


def _random_tensors(config: ModelConfig, seed: int) -> dict[str, Tensor]:
    shapes = head_tensors(config)
    for block in range(config.num_blocks):
        shapes |= block_tensors(config, block)
    generator = torch.Generator().manual_seed(seed)
    mean = 0 if config.design.norm == "rms one more" else 1
    return {name: _random(name, shape, generator, mean) for name, shape in shapes.items()}


def _random(name: str, shape: tuple[int, ...], generator: torch.Generator, norm_mean: int) -> Tensor:
    tensor = torch.randn(shape, generator=generator)
    if name.endswith("norm.weight"):
        return norm_mean + 0.1 * tensor
    return tensor * (
        0.1 if len(shape) == 1 else shape[-1] ** -0.5 * 1.5
    )  # lively enough to tell prompts apart


def _write_tensors(directory: Path, tensors: dict[str, Tensor], model: TinyModel) -> None:
    dtype = parse_dtype(model.dtype)
    tensors = {name: tensor.to(dtype) for name, tensor in tensors.items()}
    if model.shards == 1:
        save_file(tensors, directory / "model.safetensors", metadata={"format": "pt"})
        return
    weight_map: dict[str, str] = {}
    names = sorted(tensors)
    for shard in range(model.shards):
        file = f"model-{shard + 1:05d}-of-{model.shards:05d}.safetensors"
        part = names[shard :: model.shards]
        save_file({name: tensors[name] for name in part}, directory / file, metadata={"format": "pt"})
        weight_map |= dict.fromkeys(part, file)
    total_size = sum(tensor.nbytes for tensor in tensors.values())
    index = {"metadata": {"total_size": total_size}, "weight_map": weight_map}
    _write_json(directory / "model.safetensors.index.json", index)


def _write_tokenizer(directory: Path) -> None:
    """One token for every byte, so that any text can be written and read back."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocab = {character: index for index, character in enumerate(alphabet)}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(
        [AddedToken(token, special=True, normalized=False) for token in SPECIAL_TOKENS]
    )
    tokenizer.save(str(directory / "tokenizer.json"))
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": SPECIAL_TOKENS[0],
        "eos_token": SPECIAL_TOKENS[2],
        "pad_token": SPECIAL_TOKENS[0],
        "add_bos_token": False,
        "clean_up_tokenization_spaces": False,
        "chat_template": CHAT_TEMPLATE,
    }
    _write_json(directory / "tokenizer_config.json", settings)


def _write_json(path: Path, value: object) -> None:
    path.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
