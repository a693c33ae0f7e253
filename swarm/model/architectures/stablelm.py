"""``stablelm``: layer norms with biases, a quarter of each head turns, MLP perhaps beside attention."""

from swarm.model.architectures.traits import COMMON_DEFAULTS, BlockNames, Design, Traits, refuse_set
from swarm.model.fields import Fields
from swarm.model.rope import read_rope

DEFAULTS = {
    **COMMON_DEFAULTS,
    "vocab_size": 50_304,
    "hidden_size": 2560,
    "intermediate_size": 6912,
    "num_key_value_heads": 32,
    "max_position_embeddings": 4096,
    "layer_norm_eps": 1e-5,
    "partial_rotary_factor": 0.25,
    "bos_token_id": 0,
    "eos_token_id": 0,
}


def read_traits(fields: Fields) -> Traits:
    """The traits of a StableLM model. Raises `UnsupportedModel` for norms of single heads."""
    refuse_set(fields, "qk_layernorm", "A norm of its own for each head")
    side_by_side = fields.flag("use_parallel_residual", False)
    names = BlockNames(mlp_norm="") if side_by_side else BlockNames()
    return Traits(
        qkv_bias=fields.flag("use_qkv_bias", False),
        design=Design(norm="layer biased", parallel_residual=side_by_side, names=names),
        rope=read_rope(fields, partial=True),
        head_dim=fields.count("hidden_size") // fields.count("num_attention_heads"),
    )
