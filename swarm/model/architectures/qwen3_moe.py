"""``qwen3_moe``: as qwen3, with a mixture of experts in every block; all its blocks slide or none."""

from swarm.model.architectures.traits import COMMON_DEFAULTS, Design, Experts, Traits, read_experts
from swarm.model.fields import Fields

DEFAULTS = {
    **COMMON_DEFAULTS,
    "vocab_size": 151_936,
    "hidden_size": 2048,
    "intermediate_size": 6144,
    "num_hidden_layers": 24,
    "num_key_value_heads": 4,
    "max_position_embeddings": 32_768,
    "sliding_window": 4096,
    "num_experts": 128,
    "num_experts_per_tok": 8,
    "moe_intermediate_size": 768,
}


def read_traits(fields: Fields) -> Traits:
    """The traits of a Qwen3 mixture of experts."""
    bias, slides = fields.flag("attention_bias", False), fields.flag("use_sliding_window", False)
    window = fields.count_or("sliding_window", None) if slides else None
    experts = read_experts(fields, "num_experts", "moe_intermediate_size")
    return Traits(
        qkv_bias=bias,
        output_bias=bias,
        qk_norm=True,
        windows=() if window is None else (window,) * fields.count("num_hidden_layers"),
        design=Design(experts=Experts(*experts, normalised=fields.flag("norm_topk_prob", False))),
    )
