"""GGUF file -> Hugging Face directory: config.json, model.safetensors and the tokenizer's files.

One tensor is in memory at a time. Whatever is not known to be converted exactly (architecture, rotary
scaling, tensor, tokenizer) is refused. llama.cpp's `convert_hf_to_gguf.py` is the inverse.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import torch
from gguf import GGUFReader, ReaderTensor, dequantize

from swarm.errors import BrokenModel, UnsupportedModel, UsageError
from swarm.model.config import ModelConfig, read_config
from swarm.model.fields import brief
from swarm.model.files import StageProgress, ignore_progress, write_json
from swarm.model.gguf_header import check_gguf_header
from swarm.model.gguf_tokenizer import Metadata, write_tokenizer
from swarm.model.safetensors_file import write_safetensors
from swarm.model.weights import block_tensors, head_tensors

Number: TypeAlias = Any  # an int in one file is a float in another; both are what the field means

_CLASSES = {"llama": "LlamaForCausalLM", "qwen2": "Qwen2ForCausalLM", "qwen3": "Qwen3ForCausalLM"}
_TOP_TENSORS = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}
_BLOCK_TENSORS = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_TAKE_ANOTHER = "Download the file again, or take another."


@dataclass(frozen=True, slots=True)
class _Source:
    """A GGUF file that was parsed and is of an architecture we know."""

    path: Path
    metadata: Metadata
    tensors: Mapping[str, ReaderTensor]  # by Hugging Face name, in the order of names

    @property
    def architecture(self) -> str:
        return str(self.metadata["general.architecture"])

    def number(self, key: str, default: float | None = None) -> Number:
        """A field of the architecture. Raises `BrokenModel` without it and without a default."""
        value = self.metadata.get(f"{self.architecture}.{key}", default)
        if not isinstance(value, int | float):
            raise BrokenModel(f"{self.path}: the field {self.architecture}.{key} is missing", _TAKE_ANOTHER)
        return value


def convert_gguf(
    path: Path,
    directory: Path,
    *,
    dtype: torch.dtype = torch.bfloat16,
    on_progress: StageProgress = ignore_progress,
) -> None:
    """Write the model in the GGUF file `path` into `directory`, weights in `dtype`.

    The directory exists and is empty; it is the caller's to make it appear at once. Raises
    `UsageError` when there is no such file, `BrokenModel` when it is truncated or not GGUF,
    `UnsupportedModel` naming what cannot be converted.
    """
    on_progress("reading", 0, 0)
    source = _open(path)
    write_tokenizer(source.metadata, directory)
    write_json(directory / "config.json", _config(source, dtype))
    write_json(directory / "generation_config.json", _token_ids(source.metadata) | {"do_sample": False})
    shapes = {name: _shape(tensor) for name, tensor in source.tensors.items()}
    _check_shapes(path, read_config(directory), shapes)
    tensors = _convert_tensors(source, on_progress)
    write_safetensors(directory / "model.safetensors", shapes, dtype, tensors)


def _open(path: Path) -> _Source:
    if not path.is_file():
        raise UsageError(f"There is no file {path}", "Give the path of a GGUF file.")
    try:
        check_gguf_header(path)
        reader = GGUFReader(path)
        metadata = {key: field.contents() for key, field in reader.fields.items()}
    except (ValueError, LookupError, OSError, ArithmeticError, TypeError) as error:
        raise BrokenModel(f"{path} is truncated or not a GGUF file: {error}", _TAKE_ANOTHER) from error
    _refuse_unsupported(path, metadata)
    architecture = str(metadata["general.architecture"])
    tensors = {_hugging_face_name(path, architecture, tensor.name): tensor for tensor in reader.tensors}
    return _Source(path, metadata, dict(sorted(tensors.items())))


def _refuse_unsupported(path: Path, metadata: Metadata) -> None:
    architecture = metadata.get("general.architecture")
    if not isinstance(architecture, str) or architecture not in _CLASSES:
        raise UnsupportedModel(
            f"{path} has the architecture {brief(architecture)}", f"Supported are: {', '.join(_CLASSES)}."
        )
    scaling = metadata.get(f"{architecture}.rope.scaling.type", "none")
    for found, what in (
        (scaling != "none", f"rotary scaling of type {brief(scaling)}"),
        (metadata.get(f"{architecture}.attention.sliding_window"), "a sliding window"),
        (metadata.get(f"{architecture}.expert_count"), "a mixture of experts"),
    ):
        if found:
            raise UnsupportedModel(
                f"{path} has {what}, which the import cannot convert", "Pull the model's original directory."
            )


def _hugging_face_name(path: Path, architecture: str, name: str) -> str:
    if name in _TOP_TENSORS:
        return _TOP_TENSORS[name]
    match name.split("."):
        case ["blk", block, part, "weight"] if part in _BLOCK_TENSORS:
            return f"model.layers.{block}.{_BLOCK_TENSORS[part]}.weight"
        case ["blk", block, "attn_q" | "attn_k" | "attn_v" as part, "bias"] if architecture == "qwen2":
            return f"model.layers.{block}.{_BLOCK_TENSORS[part]}.bias"
    raise UnsupportedModel(
        f"{path} has the tensor {name!r}, which the import does not know",
        "Pull the model's original directory.",
    )


def _shape(tensor: ReaderTensor) -> tuple[int, ...]:
    return tuple(int(size) for size in reversed(tensor.shape))  # GGUF has the fastest axis first


def _check_shapes(path: Path, config: ModelConfig, found: Mapping[str, tuple[int, ...]]) -> None:
    """Raise `BrokenModel` unless the tensors are those of the config, before one is converted."""
    wanted = head_tensors(config)
    for block in range(config.num_blocks):
        wanted |= block_tensors(config, block)
    for name in wanted.keys() | found.keys():
        if wanted.get(name) != found.get(name):
            raise BrokenModel(
                f"{path}: the tensor {name} has the shape {found.get(name)} "
                f"where the fields ask for {wanted.get(name)}",
                _TAKE_ANOTHER,
            )


def _convert_tensors(source: _Source, on_progress: StageProgress) -> Iterator[tuple[str, torch.Tensor]]:
    total = sum(int(tensor.n_bytes) for tensor in source.tensors.values())
    done = 0
    for name, tensor in source.tensors.items():
        on_progress("converting", done, total)
        yield name, torch.from_numpy(_weights(source, name, tensor))
        done += int(tensor.n_bytes)
    on_progress("converting", total, total)


def _weights(source: _Source, name: str, tensor: ReaderTensor) -> np.ndarray[Any, np.dtype[np.float32]]:
    try:
        values = dequantize(tensor.data, tensor.tensor_type)
    except NotImplementedError as error:
        raise UnsupportedModel(
            f"{source.path}: {name} is quantised as {tensor.tensor_type.name}, which cannot be read",
            "Take a file with another quantisation, for example Q8_0.",
        ) from error
    values = values.reshape(_shape(tensor))
    if source.architecture == "llama" and ".q_proj." in name:
        values = _unpermute(values, source.number("attention.head_count"))
    elif source.architecture == "llama" and ".k_proj." in name:
        values = _unpermute(values, _num_kv_heads(source))
    return np.array(values, dtype=np.float32)  # owned and writable, as torch wants it


def _unpermute(weights: np.ndarray[Any, Any], num_heads: int) -> np.ndarray[Any, Any]:
    """Rows of q or k from llama.cpp's order to Hugging Face's.

    For the architecture `llama`, GGUF has the rotary pairs interleaved (x0, y0, x1, y1, ...) and
    Hugging Face rotates halves (x0, x1, ..., y0, y1, ...): the inverse of `permute` in
    `convert_hf_to_gguf.py`.
    """
    half = weights.shape[0] // num_heads // 2
    return weights.reshape(num_heads, half, 2, *weights.shape[1:]).swapaxes(1, 2).reshape(weights.shape)


def _num_kv_heads(source: _Source) -> int:
    return int(source.number("attention.head_count_kv", source.number("attention.head_count")))


def _token_ids(metadata: Metadata) -> dict[str, Any]:
    roles = {"bos": "bos_token_id", "eos": "eos_token_id", "padding": "pad_token_id"}
    return {name: metadata.get(f"tokenizer.ggml.{role}_token_id") for role, name in roles.items()}


def _config(source: _Source, dtype: torch.dtype) -> dict[str, Any]:
    heads, hidden = source.number("attention.head_count"), source.number("embedding_length")
    if not heads:
        raise BrokenModel(f"{source.path} claims to have no attention heads", _TAKE_ANOTHER)
    if "model.embed_tokens.weight" not in source.tensors:
        raise BrokenModel(f"{source.path}: the tensor token_embd.weight is missing", _TAKE_ANOTHER)
    return {
        "architectures": [_CLASSES[source.architecture]],
        "model_type": source.architecture,
        "hidden_act": "silu",
        "hidden_size": hidden,
        "intermediate_size": source.number("feed_forward_length"),
        "num_hidden_layers": source.number("block_count"),
        "num_attention_heads": heads,
        "num_key_value_heads": _num_kv_heads(source),
        "head_dim": source.number("attention.key_length", hidden // heads),
        "max_position_embeddings": source.number("context_length"),
        # GGUF has it in float32: 9.999999747e-06 was 1e-05
        "rms_norm_eps": float(f"{source.number('attention.layer_norm_rms_epsilon'):.6g}"),
        "rope_theta": float(source.number("rope.freq_base", 10000.0)),
        "rope_scaling": None,
        "tie_word_embeddings": "lm_head.weight" not in source.tensors,
        "vocab_size": _shape(source.tensors["model.embed_tokens.weight"])[0],
        "attention_bias": False,
        "mlp_bias": False,
        "use_sliding_window": False,
        "torch_dtype": str(dtype).removeprefix("torch."),
        **_token_ids(source.metadata),
    }
