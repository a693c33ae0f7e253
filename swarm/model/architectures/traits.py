"""What may differ from one family of decoder to the next, as values.

The plain decoder is: RMS norm, grouped-query attention with rotary positions, RMS norm, gated SiLU
MLP. A file of this folder says, for one ``model_type``, where it differs.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from swarm.errors import UnsupportedModel
from swarm.model.fields import Fields, brief
from swarm.model.ranges import MAX_EXPERTS
from swarm.model.rope import Rope

Windows = tuple[int | None, ...]
NormKind = Literal["rms", "rms one more", "layer", "layer biased"]  # "one more": times 1 + weight

# What transformers' configuration classes of all these families have for a key that is left out.
COMMON_DEFAULTS: Mapping[str, object] = {
    "hidden_size": 4096,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "rms_norm_eps": 1e-6,
}


@dataclass(frozen=True, slots=True)
class BlockNames:
    """What a block's tensors are called in the files, below ``model.layers.N``.

    Where a norm stands is said by whether it has a name. One name for several matrices with the same
    input is one tensor in which they lie on top of each other.
    """

    input_norm: str = "input_layernorm"  # before attention; empty, as any norm, for none
    qkv: tuple[str, ...] = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj")
    q_norm: str = "self_attn.q_norm"
    k_norm: str = "self_attn.k_norm"
    output: str = "self_attn.o_proj"
    attention_out_norm: str = ""  # of what attention gives, before it is added
    mlp_norm: str = "post_attention_layernorm"  # before the MLP
    gate_up: tuple[str, ...] = ("mlp.gate_proj", "mlp.up_proj")  # an MLP without a gate: one name
    down: str = "mlp.down_proj"
    mlp_out_norm: str = ""  # of what the MLP gives, before it is added


@dataclass(frozen=True, slots=True)
class Experts:
    """A mixture of experts in place of every block's MLP, and what its tensors are called."""

    count: int
    per_token: int
    width: int  # of one expert's inner rows
    normalised: bool = False  # the shares of the chosen sum to 1
    shared_width: int = 0  # of the one that every token takes; 0 for none
    place: str = "mlp"
    gate_up: tuple[str, str] = ("gate_proj", "up_proj")
    down: str = "down_proj"


@dataclass(frozen=True, slots=True)
class Design:
    """How blocks and ends are computed, as far as it is not the plain decoder's way."""

    norm: NormKind = "rms"
    activation: str = "silu"
    gated_mlp: bool = True
    parallel_residual: bool = False  # attention and MLP take the same normed rows
    whole_qk_norm: bool = False  # over all heads together, not over each
    attention_scale: float | None = None  # of the scores; None: 1 / sqrt(head_dim)
    attention_softcap: float | None = None
    residual_multiplier: float = 1.0
    embedding_multiplier: float = 1.0
    logit_multiplier: float = 1.0
    logit_softcap: float | None = None
    names: BlockNames = BlockNames()
    experts: Experts | None = None


PLAIN = Design()


@dataclass(frozen=True, slots=True)
class Traits:
    """The differences of one model from the plain decoder."""

    qkv_bias: bool = False
    output_bias: bool = False
    mlp_bias: bool = False
    qk_norm: bool = False
    windows: Windows = ()  # by block, None for full attention; empty when every block has it
    design: Design = PLAIN
    rope: Rope | None = None  # None: read as most families write it
    ropes: tuple[Rope | None, ...] = ()  # by block, None for no positions; empty when every block has `rope`
    head_dim: int | None = None  # where a head_dim in the file does not count


def windows_by_layer(fields: Fields) -> Windows:
    """Sliding windows as the Qwen families write them: a switch, a size, and which layers slide."""
    slides = fields.flag("use_sliding_window", False)
    window = fields.count_or("sliding_window", None) if slides else None
    if fields.raw("layer_types") is not None:
        return windows_by_name(fields, window)
    if window is None:
        return ()
    full = fields.count("max_window_layers")
    return tuple(window if block >= full else None for block in range(fields.count("num_hidden_layers")))


def windows_by_name(fields: Fields, window: int | None) -> Windows:
    """Sliding windows where `layer_types` names the kind of each block's attention."""
    num_blocks, names = fields.count("num_hidden_layers"), fields.raw("layer_types")
    if not isinstance(names, list) or len(names) != num_blocks:
        raise fields.broken("layer_types", f"is not a list of {num_blocks} names")
    if window is None and "sliding_attention" in names:
        raise fields.broken("layer_types", "has blocks that slide, and no size of the window is given")
    return tuple(_window_of(name, window) for name in names)


def _window_of(layer_type: object, window: int | None) -> int | None:
    if layer_type == "sliding_attention":
        return window
    if layer_type == "full_attention":
        return None
    raise UnsupportedModel(
        f"The layer type {brief(layer_type)} is not supported",
        "Supported: full_attention, sliding_attention.",
    )


def refuse_set(fields: Fields, name: str, what: str) -> None:
    """Raise `UnsupportedModel` where a flag asks for something that is not computed."""
    if fields.flag(name, False):
        raise UnsupportedModel(f"{what}, as {name} in {fields.path} asks for, is not supported")


def read_experts(fields: Fields, count_key: str, width_key: str) -> tuple[int, int, int]:
    """How many experts, how many for each token, and their width.

    Raises `UnsupportedModel` where some blocks have none, `BrokenModel` where numbers do not fit.
    """
    if fields.raw("mlp_only_layers") or fields.count_or("decoder_sparse_step", 1) != 1:
        raise UnsupportedModel(
            f"Blocks of which only some have experts, as in {fields.path}, are not supported"
        )
    count, per_token = fields.count(count_key), fields.count("num_experts_per_tok")
    if per_token > count:
        raise fields.broken("num_experts_per_tok", f"is {per_token}, of {count} experts")
    if count * fields.count("num_hidden_layers") > MAX_EXPERTS:
        raise fields.broken(count_key, f"is {count} for each block: more than {MAX_EXPERTS:,} in all")
    return count, per_token, fields.count(width_key)


def layer_types_every(fields: Fields, period: int) -> list[str]:
    """The kinds of blocks where every so many see all and the others slide."""
    return [
        "sliding_attention" if (block + 1) % period else "full_attention"
        for block in range(fields.count("num_hidden_layers"))
    ]
