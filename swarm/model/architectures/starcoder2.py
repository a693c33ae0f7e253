"""``starcoder2``: layer norms and linear layers with biases, and an MLP without a gate."""

from swarm.model.architectures.traits import COMMON_DEFAULTS, BlockNames, Design, Traits
from swarm.model.fields import Fields

DEFAULTS = {
    **COMMON_DEFAULTS,
    "vocab_size": 49_152,
    "hidden_size": 3072,
    "intermediate_size": 12_288,
    "num_hidden_layers": 30,
    "num_attention_heads": 24,
    "num_key_value_heads": 2,
    "hidden_act": "gelu_pytorch_tanh",
    "max_position_embeddings": 4096,
    "norm_epsilon": 1e-5,
    "tie_word_embeddings": True,
    "bos_token_id": 50_256,
    "eos_token_id": 50_256,
}
NAMES = BlockNames(gate_up=("mlp.c_fc",), down="mlp.c_proj")


def read_traits(fields: Fields) -> Traits:
    """The traits of a Starcoder2 model; all of its blocks slide or none."""
    bias, window = fields.flag("use_bias", True), fields.count_or("sliding_window", None)
    return Traits(
        qkv_bias=bias,
        output_bias=bias,
        mlp_bias=bias,
        windows=() if window is None else (window,) * fields.count("num_hidden_layers"),
        design=Design(norm="layer biased", gated_mlp=False, names=NAMES),
    )
