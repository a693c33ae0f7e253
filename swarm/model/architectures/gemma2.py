"""``gemma2``: norms before and after, capped scores and logits, every other block sliding, GELU."""

from swarm.model.architectures.traits import (
    COMMON_DEFAULTS,
    BlockNames,
    Design,
    Traits,
    layer_types_every,
    refuse_set,
    windows_by_name,
)
from swarm.model.fields import Fields

DEFAULTS = {
    **COMMON_DEFAULTS,
    "vocab_size": 256_000,
    "hidden_size": 2304,
    "intermediate_size": 9216,
    "num_hidden_layers": 26,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 256,
    "hidden_activation": "gelu_pytorch_tanh",
    "max_position_embeddings": 8192,
    "query_pre_attn_scalar": 256,
    "sliding_window": 4096,
    "attn_logit_softcapping": 50.0,
    "final_logit_softcapping": 30.0,
    "tie_word_embeddings": True,
    "bos_token_id": 2,
    "eos_token_id": 1,
}
NAMES = BlockNames(
    attention_out_norm="post_attention_layernorm",
    mlp_norm="pre_feedforward_layernorm",
    mlp_out_norm="post_feedforward_layernorm",
)


def read_traits(fields: Fields) -> Traits:
    """The traits of a Gemma 2 model."""
    bias = fields.flag("attention_bias", False)
    fields = fields.with_fallback("layer_types", layer_types_every(fields, 2))
    return Traits(
        qkv_bias=bias,
        output_bias=bias,
        windows=windows_by_name(fields, fields.count_or("sliding_window", None)),
        design=read_design(fields, fields.number_or("attn_logit_softcapping", None)),
    )


def read_design(fields: Fields, attention_softcap: float | None) -> Design:
    """How Gemma 2 and 3 compute. Raises `UnsupportedModel` where attention looks ahead."""
    refuse_set(fields, "use_bidirectional_attention", "Attention that looks ahead")
    return Design(
        norm="rms one more",
        attention_scale=fields.number("query_pre_attn_scalar") ** -0.5,
        attention_softcap=attention_softcap,
        embedding_multiplier=fields.count("hidden_size") ** 0.5,
        logit_softcap=fields.number_or("final_logit_softcapping", None),
        names=NAMES,
    )
