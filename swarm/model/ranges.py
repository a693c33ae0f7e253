"""How large and how small every number of a model's configuration may be.

Far beyond every model there is, and finite: sizes are computed with, lists are as long as there are
blocks, and a number that no formula can take (a logarithm of zero) is refused where it is read.
"""

from collections.abc import Mapping
from typing import NamedTuple

MAX_ATTENTION_WIDTH = 2**18  # heads times their size
MAX_EXPERTS = 2**15  # of all blocks together: each has tensors that are named


class Range(NamedTuple):
    """From the least to the most, both allowed."""

    least: float
    most: float

    def holds(self, value: float) -> bool:
        """Whether the value lies within; never for NaN."""
        return self.least <= value <= self.most

    def __str__(self) -> str:
        return f"from {_plain(self.least)} to {_plain(self.most)}"


def _plain(value: float) -> str:
    return f"{value:,}" if 1 <= abs(value) < 1e12 or not value else f"{value:g}"


_TOKENS = Range(1, 2**27)  # of a context: a hundred times the longest there is
_TOKEN_ID = Range(0, 2**22 - 1)
_RATIO = Range(1e-6, 1e6)

RANGES: Mapping[str, Range] = {
    "num_hidden_layers": Range(1, 1024),  # as many as a record in the directory may name
    "max_window_layers": Range(0, 1024),
    "hidden_size": Range(1, 2**17),
    "intermediate_size": Range(1, 2**20),
    "moe_intermediate_size": Range(1, 2**20),
    "shared_expert_intermediate_size": Range(1, 2**20),
    "num_experts": Range(1, 2**12),
    "num_local_experts": Range(1, 2**12),
    "num_experts_per_tok": Range(1, 2**12),
    "decoder_sparse_step": Range(1, 1024),
    "num_attention_heads": Range(1, 2**12),
    "num_key_value_heads": Range(1, 2**12),
    "head_dim": Range(2, 2**12),
    "vocab_size": Range(1, 2**22),
    "max_position_embeddings": _TOKENS,
    "original_max_position_embeddings": _TOKENS,
    "sliding_window": _TOKENS,
    "sliding_window_pattern": Range(1, 1024),
    "no_rope_layer_interval": Range(1, 1024),
    "rms_norm_eps": Range(0, 1),
    "layer_norm_eps": Range(0, 1),
    "norm_epsilon": Range(0, 1),
    "query_pre_attn_scalar": _RATIO,
    "attn_logit_softcapping": _RATIO,
    "final_logit_softcapping": _RATIO,
    "embedding_multiplier": _RATIO,
    "residual_multiplier": _RATIO,
    "attention_multiplier": _RATIO,
    "logits_scaling": _RATIO,
    "logit_scale": _RATIO,
    "rope_theta": Range(1.001, 1e15),
    "rope_local_base_freq": Range(1.001, 1e15),
    "llama_4_scaling_beta": Range(0, 1e3),
    "partial_rotary_factor": Range(0, 1),
    "factor": _RATIO,
    "short_factor": _RATIO,
    "low_freq_factor": _RATIO,
    "high_freq_factor": _RATIO,
    "beta_fast": Range(0, 1e6),
    "beta_slow": Range(0, 1e6),
    "attention_factor": _RATIO,
    "mscale": Range(0, 1e6),
    "mscale_all_dim": Range(0, 1e6),
    "bos_token_id": _TOKEN_ID,
    "eos_token_id": _TOKEN_ID,
    "temperature": Range(0, 100),
    "top_k": Range(-1, 2**22),
    "top_p": Range(0, 2),
    "min_p": Range(0, 1),
    "repetition_penalty": Range(1e-3, 1e3),
}
