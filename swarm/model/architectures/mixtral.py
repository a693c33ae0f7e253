"""``mixtral``: as mistral, with a mixture of experts in every block."""

from swarm.model.architectures import mistral
from swarm.model.architectures.traits import Design, Experts, Traits, read_experts
from swarm.model.fields import Fields

DEFAULTS = {
    **mistral.DEFAULTS,
    "rms_norm_eps": 1e-5,
    "rope_theta": 1_000_000.0,
    "sliding_window": None,
    "num_local_experts": 8,
    "num_experts_per_tok": 2,
}


def read_traits(fields: Fields) -> Traits:
    """The traits of a Mixtral model; all of its blocks slide or none."""
    window = fields.count_or("sliding_window", None)
    experts = Experts(
        *read_experts(fields, "num_local_experts", "intermediate_size"),
        normalised=True,
        place="block_sparse_moe",
        gate_up=("w1", "w3"),
        down="w2",
    )
    return Traits(
        windows=() if window is None else (window,) * fields.count("num_hidden_layers"),
        design=Design(experts=experts),
    )
