"""``qwen2_moe``: as qwen2, with a mixture of experts in every block, one of which all rows take."""

from swarm.model.architectures import qwen3_moe
from swarm.model.architectures.traits import Design, Experts, Traits, read_experts, refuse_set
from swarm.model.fields import Fields

DEFAULTS = {
    **qwen3_moe.DEFAULTS,
    "intermediate_size": 5632,
    "num_attention_heads": 16,
    "num_key_value_heads": 16,
    "num_experts": 60,
    "num_experts_per_tok": 4,
    "moe_intermediate_size": 1408,
    "shared_expert_intermediate_size": 5632,
}


def read_traits(fields: Fields) -> Traits:
    """The traits of a Qwen1.5 or Qwen2 mixture of experts. Raises `UnsupportedModel` for sliding windows."""
    refuse_set(fields, "use_sliding_window", "A sliding window of this family")
    experts = Experts(
        *read_experts(fields, "num_experts", "moe_intermediate_size"),
        normalised=fields.flag("norm_topk_prob", False),
        shared_width=fields.count("shared_expert_intermediate_size"),
    )
    return Traits(qkv_bias=fields.flag("qkv_bias", True), design=Design(experts=experts))
