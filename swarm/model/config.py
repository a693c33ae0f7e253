"""What a model is, read from its config.json into one typed value.

Reads the older and the newer spelling of every field. Knows nothing of tensors and imports no
torch. A field that is needed and missing, or a number out of its range, is a `BrokenModel`; a value that
this version cannot compute with is an `UnsupportedModel`, never silently ignored.
"""

import dataclasses
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from swarm.errors import UnsupportedModel, UsageError
from swarm.model.architectures.registry import read_traits
from swarm.model.architectures.traits import Windows
from swarm.model.fields import Fields, read_fields
from swarm.model.ranges import MAX_ATTENTION_WIDTH
from swarm.values import Span

if TYPE_CHECKING:
    from swarm.model.sampling import Sampling

SUPPORTED_ROPE_TYPES = ("default", "linear", "llama3", "yarn")
SUPPORTED_DTYPES = ("bfloat16", "float16", "float32")


@dataclass(frozen=True, slots=True)
class Rope:
    """Rotary position embedding: which kind, and its parameters (names as Hugging Face's)."""

    type: str = "default"
    theta: float = 10_000.0
    factor: float = 1.0
    original_context_length: int = 0  # llama3, yarn
    low_freq_factor: float = 1.0  # llama3
    high_freq_factor: float = 4.0  # llama3
    beta_fast: float = 32.0  # yarn
    beta_slow: float = 1.0  # yarn
    attention_factor: float | None = None  # yarn
    mscale: float | None = None  # yarn
    mscale_all_dim: float | None = None  # yarn
    truncate: bool = True  # yarn


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """The shape of a model: everything that decides what is computed from its tensors."""

    model_type: str
    num_blocks: int
    hidden_size: int
    intermediate_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    vocab_size: int
    rms_norm_eps: float
    context_length: int  # tokens, prompt and reply together
    rope: Rope = field(default_factory=Rope)
    windows: Windows = ()  # sliding window by block, None for full attention; empty: full everywhere
    qkv_bias: bool = False
    output_bias: bool = False
    mlp_bias: bool = False
    qk_norm: bool = False
    tie_word_embeddings: bool = False
    dtype: str = "float32"  # as stored; a peer may compute in another
    bos_token_id: int | None = None
    stop_token_ids: tuple[int, ...] = ()

    def window(self, block: int) -> int | None:
        """How many tokens back the block sees, itself included; None for all."""
        return self.windows[block] if self.windows else None

    def check_span(self, span: Span) -> None:
        """Raise `UsageError` when the span reaches past the model's last block."""
        if span.end > self.num_blocks:
            raise UsageError(
                f"The span {span} is outside the model, which has {self.num_blocks} blocks",
                f"Choose blocks within 0:{self.num_blocks}.",
            )

    def canonical(self) -> bytes:
        """The fields that decide what is computed, in one spelling, as the manifest hashes them.

        A field at its default is left out, so that a later version with more fields agrees. How
        the tensors are stored is in their own digests; where a reply ends is the client's choice.
        """
        kept = _non_default(self)
        for name in ("dtype", "bos_token_id", "stop_token_ids"):
            kept.pop(name, None)
        if "rope" in kept:
            kept["rope"] = _non_default(self.rope)
        return json.dumps(kept, sort_keys=True, separators=(",", ":")).encode()


def _non_default(value: ModelConfig | Rope) -> dict[str, object]:
    return {
        each.name: getattr(value, each.name)
        for each in dataclasses.fields(value)
        if getattr(value, each.name) != each.default
    }


def read_config(directory: Path) -> ModelConfig:
    """Read config.json (and the stop ids of generation_config.json) of a model directory.

    Raises `BrokenModel` for a missing or senseless field and `UnsupportedModel` for a family,
    rotary type, activation or quantisation that this version cannot compute with.
    """
    fields = read_fields(directory / "config.json")
    model_type = fields.text_or("model_type", "")
    if not model_type:
        raise fields.broken("model_type", "is missing")
    traits = read_traits(model_type, fields)
    _refuse_unsupported(fields)
    num_heads = fields.count("num_attention_heads")
    hidden_size = fields.count("hidden_size")
    head_dim = fields.count_or("head_dim", traits.default_head_dim or hidden_size // num_heads)
    config = ModelConfig(
        model_type=model_type,
        num_blocks=fields.count("num_hidden_layers"),
        hidden_size=hidden_size,
        intermediate_size=fields.count("intermediate_size"),
        num_heads=num_heads,
        num_kv_heads=fields.count_or("num_key_value_heads", num_heads),
        head_dim=head_dim,
        vocab_size=fields.count("vocab_size"),
        rms_norm_eps=fields.number("rms_norm_eps"),
        context_length=fields.count("max_position_embeddings"),
        rope=_read_rope(fields),
        windows=traits.windows if any(traits.windows) else (),
        qkv_bias=traits.qkv_bias,
        output_bias=traits.output_bias,
        mlp_bias=traits.mlp_bias,
        qk_norm=traits.qk_norm,
        tie_word_embeddings=fields.flag("tie_word_embeddings", False),
        dtype=_read_dtype(fields),
        bos_token_id=next(iter(fields.token_ids("bos_token_id")), None),
        stop_token_ids=_read_stop_ids(directory, fields),
    )
    _check_heads(config, fields)
    return config


def read_generation_defaults(directory: Path) -> "Sampling":
    """The model's own sampling defaults from generation_config.json; greedy where it says nothing.

    As in transformers, a temperature counts only with ``do_sample``.
    """
    from swarm.model.sampling import Sampling  # imports torch

    path = directory / "generation_config.json"
    if not path.exists():
        return Sampling()
    fields = read_fields(path)
    penalty = fields.number_or("repetition_penalty", 1.0)
    if not fields.flag("do_sample", False):
        return Sampling(repetition_penalty=penalty)
    return Sampling(
        temperature=fields.number_or("temperature", 1.0),
        top_k=int(fields.number_or("top_k", 0)),
        top_p=fields.number_or("top_p", 1.0),
        min_p=fields.number_or("min_p", 0.0),
        repetition_penalty=penalty,
    )


def _refuse_unsupported(fields: Fields) -> None:
    activation = fields.text_or("hidden_act", "silu")
    if activation != "silu":
        raise UnsupportedModel(
            f"The activation {activation!r} in {fields.path} is not supported", "Supported: silu."
        )
    quantization = fields.section("quantization_config")
    if quantization is not None:
        method = quantization.text_or("quant_method", "unknown")
        raise UnsupportedModel(
            f"{fields.path} says that the tensors are quantised ({method}), which cannot be loaded",
            "Use the unquantised version of the model.",
        )


def _read_dtype(fields: Fields) -> str:
    name = fields.text_or("dtype", fields.text_or("torch_dtype", "float32")).removeprefix("torch.")
    if name not in SUPPORTED_DTYPES:
        raise UnsupportedModel(
            f"The dtype {name!r} in {fields.path} is not supported",
            f"Supported: {', '.join(SUPPORTED_DTYPES)}.",
        )
    return name


def _read_stop_ids(directory: Path, fields: Fields) -> tuple[int, ...]:
    ids = fields.token_ids("eos_token_id")
    path = directory / "generation_config.json"
    if path.exists():
        ids += read_fields(path).token_ids("eos_token_id")
    return tuple(dict.fromkeys(ids))


def _check_heads(config: ModelConfig, fields: Fields) -> None:
    if config.num_heads % config.num_kv_heads:
        raise fields.broken("num_key_value_heads", f"does not divide the {config.num_heads} attention heads")
    if config.head_dim < 2 or config.head_dim % 2:
        raise fields.broken("head_dim", f"is {config.head_dim}, not an even number")
    if config.num_heads * config.head_dim > MAX_ATTENTION_WIDTH:
        raise fields.broken(
            "num_attention_heads",
            f"is {config.num_heads}, of {config.head_dim} each: more than {MAX_ATTENTION_WIDTH:,} in all",
        )


def _read_rope(fields: Fields) -> Rope:
    """Rotary parameters in the newer spelling (`rope_parameters`) or the older two fields."""
    scaling = fields.section("rope_parameters") or fields.section("rope_scaling")
    scaling = scaling or Fields(fields.path, {}, "rope_parameters.")
    rope_type = scaling.text_or("rope_type", scaling.text_or("type", "default"))
    if rope_type not in SUPPORTED_ROPE_TYPES:
        raise UnsupportedModel(
            f"The rotary embedding {rope_type!r} in {fields.path} is not supported",
            f"Supported: {', '.join(SUPPORTED_ROPE_TYPES)}.",
        )
    if (scaling.number_or("partial_rotary_factor", fields.number_or("partial_rotary_factor", 1.0))) != 1.0:
        raise UnsupportedModel(f"A partial rotary embedding, as in {fields.path}, is not supported")
    theta = scaling.number_or("rope_theta", fields.number_or("rope_theta", 10_000.0))
    rope = Rope(type=rope_type, theta=theta)
    if rope_type == "default":
        return rope
    return _read_scaling(rope, scaling, fields)


def _read_scaling(rope: Rope, scaling: Fields, fields: Fields) -> Rope:
    context_length = fields.count("max_position_embeddings")
    key = "original_max_position_embeddings"
    original = fields.count_or(
        key, scaling.count_or(key, context_length)
    )  # the outer one wins, as in transformers
    factor = scaling.number_or("factor", context_length / original if rope.type == "yarn" else None)
    if factor is None:
        raise scaling.broken("factor", "is missing")
    rope = dataclasses.replace(rope, factor=factor)
    if rope.type == "linear":
        return rope
    rope = dataclasses.replace(rope, original_context_length=original)
    if rope.type == "llama3":
        low, high = scaling.number("low_freq_factor"), scaling.number("high_freq_factor")
        if high <= low:
            raise scaling.broken("high_freq_factor", f"is {high}, not above low_freq_factor, {low}")
        return dataclasses.replace(rope, low_freq_factor=low, high_freq_factor=high)
    return dataclasses.replace(
        rope,
        beta_fast=scaling.number_or("beta_fast", 32.0),
        beta_slow=scaling.number_or("beta_slow", 1.0),
        attention_factor=scaling.number_or("attention_factor", None),
        mscale=scaling.number_or("mscale", None),
        mscale_all_dim=scaling.number_or("mscale_all_dim", None),
        truncate=scaling.flag("truncate", True),
    )
