"""``ministral3``: as mistral, with YaRN, and queries that grow past the original context."""

import dataclasses

from swarm.model.architectures import mistral
from swarm.model.architectures.traits import Traits
from swarm.model.fields import Fields
from swarm.model.rope import read_rope

DEFAULTS = {
    **mistral.DEFAULTS,
    "vocab_size": 131_072,
    "num_hidden_layers": 34,
    "head_dim": 128,
    "max_position_embeddings": 262_144,
    "rms_norm_eps": 1e-5,
    "sliding_window": None,
}
_RECIPE = {
    "type": "yarn",
    "rope_theta": 1_000_000.0,
    "factor": 16.0,
    "original_max_position_embeddings": 16_384,
    "mscale_all_dim": 1.0,
    "mscale": 1.0,
    "llama_4_scaling_beta": 0.1,
}


def read_traits(fields: Fields) -> Traits:
    """The traits of a Ministral 3 or Mistral Small 4 text model; all its blocks slide or none."""
    fields = fields.with_fallback("rope_parameters", _RECIPE)
    recipe = fields.section("rope_scaling") or fields.section("rope_parameters")
    beta = recipe.number("llama_4_scaling_beta") if recipe else 0.0
    window = fields.count_or("sliding_window", None)
    return Traits(
        windows=() if window is None else (window,) * fields.count("num_hidden_layers"),
        rope=dataclasses.replace(read_rope(fields), query_growth=beta),
    )
