"""``smollm3``: as llama, where every fourth block, or those that are listed, knows no positions."""

from swarm.model.architectures.traits import COMMON_DEFAULTS, Traits, windows_by_name
from swarm.model.fields import Fields, brief
from swarm.model.rope import read_rope

DEFAULTS = {
    **COMMON_DEFAULTS,
    "vocab_size": 128_256,
    "hidden_size": 2048,
    "intermediate_size": 11_008,
    "num_hidden_layers": 36,
    "num_attention_heads": 16,
    "num_key_value_heads": 4,
    "max_position_embeddings": 32_768,
    "rope_theta": 2_000_000.0,
    "tie_word_embeddings": True,
    "bos_token_id": 128_000,
    "eos_token_id": 128_001,
}


def read_traits(fields: Fields) -> Traits:
    """The traits of a SmolLM3 model."""
    bias = fields.flag("attention_bias", False)
    turning = _turning(fields)
    slides = fields.flag("use_sliding_window", False)
    window = fields.count_or("sliding_window", None) if slides else None
    kinds = ["full_attention" if window is None or turns else "sliding_attention" for turns in turning]
    rope = read_rope(fields)
    return Traits(
        qkv_bias=bias,
        output_bias=bias,
        mlp_bias=fields.flag("mlp_bias", False),
        windows=windows_by_name(fields.with_fallback("layer_types", kinds), window),
        rope=rope,
        ropes=() if all(turning) else tuple(rope if turns else None for turns in turning),
    )


def _turning(fields: Fields) -> list[bool]:
    """For each block, whether it has positions."""
    num_blocks = fields.count("num_hidden_layers")
    listed = fields.raw("no_rope_layers")
    if listed is None:
        period = fields.count_or("no_rope_layer_interval", 4)
        return [(block + 1) % period != 0 for block in range(num_blocks)]
    if not isinstance(listed, list) or len(listed) < num_blocks or any(each not in (0, 1) for each in listed):
        raise fields.broken("no_rope_layers", f"is {brief(listed)}, not {num_blocks} times 0 or 1")
    return [bool(each) for each in listed[:num_blocks]]
