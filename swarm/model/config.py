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
from swarm.model.architectures.registry import Family, causal_model_names, family_of
from swarm.model.architectures.traits import PLAIN, BlockNames, Design, Experts, Windows
from swarm.model.fields import Fields, brief, read_fields
from swarm.model.ranges import MAX_ATTENTION_WIDTH
from swarm.model.rope import Rope, extended_context, read_rope
from swarm.values import Span

if TYPE_CHECKING:
    from swarm.model.sampling import Sampling

_MAX_NAME_CHARS = 80
_DEFAULT_TOP_K = 50  # transformers'
_LEAST_TOP_P = 1e-6  # no token's probability is as small and the largest
_ACTIVATIONS = {  # what transformers calls them, and what they are
    "silu": "silu",
    "swish": "silu",
    "gelu": "gelu",
    "gelu_pytorch_tanh": "gelu_pytorch_tanh",
    "gelu_new": "gelu_pytorch_tanh",
}
SUPPORTED_DTYPES = ("bfloat16", "float16", "float32")


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
    design: Design = PLAIN
    ropes: tuple[Rope | None, ...] = ()  # by block, None for no positions; empty: `rope` everywhere
    tie_word_embeddings: bool = False
    dtype: str = "float32"  # as stored; a peer may compute in another
    bos_token_id: int | None = None
    stop_token_ids: tuple[int, ...] = ()

    def window(self, block: int) -> int | None:
        """How many tokens back the block sees, itself included; None for all."""
        return self.windows[block] if self.windows else None

    def rope_of(self, block: int) -> Rope | None:
        """The block's rotary embedding; None for a block without positions."""
        return self.ropes[block] if self.ropes else self.rope

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
        if "ropes" in kept:
            kept["ropes"] = [None if rope is None else _non_default(rope) for rope in self.ropes]
        if "design" in kept:
            design = {**_non_default(self.design), "names": _non_default(self.design.names)}
            if self.design.experts is not None:
                design["experts"] = _non_default(self.design.experts)
            kept["design"] = design
        return json.dumps(kept, sort_keys=True, separators=(",", ":")).encode()


def _non_default(value: ModelConfig | Rope | Design | BlockNames | Experts) -> dict[str, object]:
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
    written = read_fields(directory / "config.json")
    model_type = written.text_or("model_type", "")
    if not model_type:
        raise written.broken("model_type", "is missing")
    family = family_of(model_type, written)
    fields = written.with_defaults(family.defaults)
    _refuse_unsupported(fields, model_type, family)
    traits = family.read_traits(fields)
    rope = traits.rope or read_rope(fields)
    num_heads = fields.count("num_attention_heads")
    hidden_size = fields.count("hidden_size")
    head_dim = fields.count_or("head_dim", hidden_size // num_heads)
    config = ModelConfig(
        model_type=model_type,
        num_blocks=fields.count("num_hidden_layers"),
        hidden_size=hidden_size,
        intermediate_size=fields.count("intermediate_size"),
        num_heads=num_heads,
        num_kv_heads=fields.count_or("num_key_value_heads", num_heads),
        head_dim=head_dim if traits.head_dim is None else traits.head_dim,
        vocab_size=fields.count("vocab_size"),
        rms_norm_eps=fields.number(family.eps_key),
        context_length=extended_context(rope, fields),
        rope=rope,
        windows=traits.windows if any(traits.windows) else (),
        qkv_bias=traits.qkv_bias,
        output_bias=traits.output_bias,
        mlp_bias=traits.mlp_bias,
        qk_norm=traits.qk_norm,
        design=dataclasses.replace(traits.design, activation=_read_activation(fields, family)),
        ropes=traits.ropes,
        tie_word_embeddings=fields.flag("tie_word_embeddings", False),
        dtype=_read_dtype(fields),
        bos_token_id=next(iter(fields.token_ids("bos_token_id")), None),
        stop_token_ids=_read_stop_ids(directory, written, fields),
    )
    _check_heads(config, fields)
    return config


def read_generation_defaults(directory: Path) -> "Sampling":
    """The model's own sampling defaults from generation_config.json; greedy where it says nothing.

    As in transformers, a temperature counts only with ``do_sample``, and a top_k that is not given is 50.
    Above 1, top_p keeps all; 0 keeps the likeliest. Raises `BrokenModel` for a number out of its range.
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
        top_k=max(0, fields.count_or("top_k", _DEFAULT_TOP_K)),  # some write -1 for all
        top_p=min(max(fields.number_or("top_p", 1.0), _LEAST_TOP_P), 1.0),
        min_p=fields.number_or("min_p", 0.0),
        repetition_penalty=penalty,
    )


def _read_activation(fields: Fields, family: Family) -> str:
    name = fields.text_or(family.activation_key, "silu")
    if name not in _ACTIVATIONS:
        raise UnsupportedModel(
            f"The activation {name!r} in {fields.path} is not supported",
            f"Supported: {', '.join(_ACTIVATIONS)}.",
        )
    return _ACTIVATIONS[name]


def _refuse_unsupported(fields: Fields, model_type: str, family: Family) -> None:
    _refuse_other_tasks(fields, model_type, family)
    for name in ("quantization_config", "compression_config"):
        section = fields.section(name)
        if section is not None:
            method = section.text_or("quant_method", section.text_or("format", "unknown"))
            raise UnsupportedModel(
                f"{fields.path} says that the tensors are quantised ({method}), which cannot be loaded",
                "Use the unquantised version of the model.",
            )


def _refuse_other_tasks(fields: Fields, model_type: str, family: Family) -> None:
    """Refuse what has the tensors of a family and computes something else with them."""
    classes = fields.raw("architectures")
    if classes is not None and not isinstance(classes, list):
        raise fields.broken("architectures", f"is {brief(classes)}, not a list of names")
    known = causal_model_names()
    if classes and not any(str(name).lower() in known for name in classes):
        name = str(classes[0])[:_MAX_NAME_CHARS]
        raise UnsupportedModel(
            f"{fields.path} names the architecture {name!r}, which is not supported",
            "Supported are the families' causal language models, as LlamaForCausalLM.",
        )
    if not fields.flag("is_causal", True):
        raise UnsupportedModel(f"{fields.path} says that attention is not causal, which is not supported")
    if fields.raw("auto_map") and not family.came_with_code:
        raise UnsupportedModel(
            f"{fields.path} has an auto_map: the model is computed by code of its own, which is never run",
            "Use a model that transformers computes without trust_remote_code.",
        )


def _read_dtype(fields: Fields) -> str:
    name = fields.text_or("dtype", fields.text_or("torch_dtype", "float32")).removeprefix("torch.")
    if name not in SUPPORTED_DTYPES:
        raise UnsupportedModel(
            f"The dtype {name!r} in {fields.path} is not supported",
            f"Supported: {', '.join(SUPPORTED_DTYPES)}.",
        )
    return name


def _read_stop_ids(directory: Path, written: Fields, fields: Fields) -> tuple[int, ...]:
    """Those of both files. The family's default counts only where there is no second file."""
    path = directory / "generation_config.json"
    if not path.exists():
        return fields.token_ids("eos_token_id")
    ids = written.token_ids("eos_token_id") + read_fields(path).token_ids("eos_token_id")
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
    for rope in {config.rope, *config.ropes}:
        _check_turning(rope, config.head_dim, fields)


def _check_turning(rope: Rope | None, head_dim: int, fields: Fields) -> None:
    turning = head_dim if rope is None else rope.turning(head_dim)
    if turning < 2 or turning % 2:
        raise fields.broken("partial_rotary_factor", f"turns {turning} of {head_dim} components, not pairs")
    if rope is not None and rope.type == "longrope" and len(rope.short_factors) != turning // 2:
        raise fields.broken(
            "rope_scaling", f"has {len(rope.short_factors)} short factors, not one for each of {turning // 2}"
        )
