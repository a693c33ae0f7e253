"""``mistral``: no biases; one sliding window for every block, if any, or blocks that slide by name."""

from swarm.model.architectures.traits import COMMON_DEFAULTS, Traits, windows_by_name
from swarm.model.fields import Fields

DEFAULTS = {
    **COMMON_DEFAULTS,
    "vocab_size": 32_000,
    "intermediate_size": 14_336,
    "num_key_value_heads": 8,
    "max_position_embeddings": 131_072,
    "sliding_window": 4096,
    "bos_token_id": 1,
    "eos_token_id": 2,
}


def read_traits(fields: Fields) -> Traits:
    """The traits of a Mistral model; with `layer_types`, by block, as transformers' ``ministral``."""
    window = fields.count_or("sliding_window", None)
    if fields.raw("layer_types") is not None:
        return Traits(windows=windows_by_name(fields, window))
    return Traits(windows=() if window is None else (window,) * fields.count("num_hidden_layers"))
