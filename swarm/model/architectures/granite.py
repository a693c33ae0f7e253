"""``granite``: as llama, with factors for the embedding, the scores, the residuals and the logits."""

from swarm.model.architectures import llama
from swarm.model.architectures.traits import Design, Traits
from swarm.model.fields import Fields

DEFAULTS = llama.DEFAULTS


def read_traits(fields: Fields) -> Traits:
    """The traits of a dense Granite 3 model."""
    bias = fields.flag("attention_bias", False)
    return Traits(
        qkv_bias=bias,
        output_bias=bias,
        mlp_bias=fields.flag("mlp_bias", False),
        design=Design(
            attention_scale=fields.number_or("attention_multiplier", 1.0),
            residual_multiplier=fields.number_or("residual_multiplier", 1.0),
            embedding_multiplier=fields.number_or("embedding_multiplier", 1.0),
            logit_multiplier=1 / fields.number_or("logits_scaling", 1.0),
        ),
    )
