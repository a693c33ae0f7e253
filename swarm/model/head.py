"""The small ends of a model: token ids to hidden states, and hidden states to logits.

The client holds them; peers never do. Knows no blocks and no sampling.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from swarm.errors import ModelError, RequestError
from swarm.model.config import ModelConfig
from swarm.model.layers import Norm
from swarm.model.linear.linear import Linear


@dataclass(frozen=True, slots=True)
class ScoredToken:
    """A token of a given text, and how likely the model held it to be after those before it."""

    token_id: int
    logprob: float
    rank: int  # 1 is the likeliest
    top_logprobs: tuple[tuple[int, float], ...] = ()  # (token id, logprob), likeliest first


class Head:
    """Embedding, final norm and lm_head (which may be the embedding once more)."""

    def __init__(self, config: ModelConfig, embed_tokens: Tensor, norm: Norm, lm_head: Linear) -> None:
        self.config = config
        self._embed_tokens = embed_tokens  # [vocab, hidden]
        self._norm = norm  # [hidden]
        self._embedding_scale = torch.tensor(config.design.embedding_multiplier, dtype=embed_tokens.dtype)
        self._lm_head = lm_head  # [vocab, hidden]

    @property
    def dtype(self) -> torch.dtype:
        """What it computes in, and the dtype of the hidden states it gives."""
        return self._embed_tokens.dtype

    @property
    def weights_bytes(self) -> int:
        """Memory the weights take; tied embeddings count once."""
        tied = self._lm_head.packed[0] is self._embed_tokens
        return self._embed_tokens.nbytes + self._norm.size_bytes + (0 if tied else self._lm_head.size_bytes)

    @torch.inference_mode()
    def embed(self, ids: Sequence[int]) -> Tensor:
        """Hidden states [tokens, hidden] of token ids. Raises `RequestError` for an unknown id."""
        for token_id in ids:
            if not 0 <= token_id < self.config.vocab_size:
                raise RequestError(
                    f"The token id {token_id} is not one of the model's {self.config.vocab_size}",
                    "Use the tokenizer of the same model.",
                )
        hidden = self._embed_tokens[torch.tensor(ids, dtype=torch.long)]
        return hidden if self.config.design.embedding_multiplier == 1 else hidden.mul_(self._embedding_scale)

    @torch.inference_mode()
    def logits(self, hidden: Tensor) -> Tensor:
        """Logits [tokens, vocab] in fp32 from the last block's hidden states [tokens, hidden]."""
        logits = self._lm_head(self.normed(hidden)).to(torch.float32)
        design = self.config.design
        if design.logit_multiplier != 1:
            logits = logits * design.logit_multiplier
        if design.logit_softcap is not None:
            logits = (logits / design.logit_softcap).tanh() * design.logit_softcap
        return logits

    @torch.inference_mode()
    def normed(self, hidden: Tensor) -> Tensor:
        """The last block's hidden states [tokens, hidden] behind the final norm."""
        return self._norm(hidden.to(self.dtype))

    @torch.inference_mode()
    def score(self, hidden: Tensor, following: Sequence[int], top: int) -> list[ScoredToken]:
        """How likely each of the `following` ids was after its row of hidden states [tokens, hidden].

        `top` likeliest tokens are told with each. Raises `ModelError` for logits that are not numbers.
        """
        logits = self.logits(hidden)  # [tokens, vocab]
        totals = logits.logsumexp(1, keepdim=True)
        if not bool(totals.isfinite().all()):
            raise ModelError("The logits are not numbers", "A peer may have computed wrongly; ask again.")
        own = logits.gather(1, torch.tensor(following, dtype=torch.long).unsqueeze(1))
        ranks = (logits > own).sum(1) + 1
        values, ids = logits.topk(min(top, logits.shape[1]), dim=1)
        tops = zip(ids.tolist(), (values - totals).tolist(), strict=True)
        return [
            ScoredToken(token_id, logprob, rank, tuple(zip(*likeliest, strict=True)))
            for token_id, [logprob], rank, likeliest in zip(
                following, (own - totals).tolist(), ranks.tolist(), tops, strict=True
            )
        ]
