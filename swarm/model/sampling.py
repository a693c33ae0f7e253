"""From logits to the next token: what is kept, and which of it is drawn.

Processors and their order are vLLM's: allowed tokens, logit bias, penalties, temperature, min-p,
top-k, top-p. The randomness is a pure function of (seed, tokens so far), so that every process, and
every retry after a lost peer, draws the same token.
"""

import hashlib
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from swarm.errors import ModelError, SwarmError, UsageError

_FIRST_PREFIX = 256
_DRAW_BITS = 53  # a float's worth
_LEAST_TEMPERATURE = 1e-5  # below it the likeliest is drawn anyway, and a division would overflow


@dataclass(frozen=True, slots=True)
class Sampling:
    """How a token is chosen. The defaults choose the likeliest."""

    temperature: float = 0.0  # 0 is greedy, and so is what hardly differs from it
    top_k: int = 0  # 0 keeps all
    top_p: float = 1.0
    min_p: float = 0.0  # relative to the likeliest token's probability
    repetition_penalty: float = 1.0  # over prompt and output, as in transformers
    presence_penalty: float = 0.0  # over the output, as OpenAI has it
    frequency_penalty: float = 0.0  # over the output, as OpenAI has it
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    seed: int | None = None  # needed above temperature 0

    def __post_init__(self) -> None:
        _require("temperature", self.temperature, 0 <= self.temperature <= 100, "from 0 to 100")
        _require("top_k", self.top_k, self.top_k >= 0, "0 (all) or more")
        _require("top_p", self.top_p, 0 < self.top_p <= 1, "above 0, at most 1")
        _require("min_p", self.min_p, 0 <= self.min_p <= 1, "from 0 to 1")
        penalty = self.repetition_penalty
        _require("repetition_penalty", penalty, 0 < penalty < math.inf, "above 0")
        _require("presence_penalty", self.presence_penalty, abs(self.presence_penalty) <= 2, "from -2 to 2")
        _require(
            "frequency_penalty", self.frequency_penalty, abs(self.frequency_penalty) <= 2, "from -2 to 2"
        )
        _require(
            "seed", self.seed, self.seed is None or -(2**63) <= self.seed < 2**63, "a whole number of 64 bits"
        )
        for token_id, bias in self.logit_bias.items():
            _require(f"logit_bias[{token_id}]", bias, abs(bias) <= 100, "from -100 to 100")


def _require(name: str, value: object, holds: bool, wanted: str) -> None:
    if not holds:
        raise UsageError(f"{name} cannot be {value}", f"Give it a value {wanted}.", name.partition("[")[0])


@dataclass(frozen=True, slots=True)
class SampledToken:
    """A chosen token. Log probabilities are of the model's own logits, before any processing."""

    token_id: int
    logprob: float
    top_logprobs: tuple[tuple[int, float], ...] = ()  # likeliest first


@dataclass(frozen=True, slots=True)
class Constraint:
    """What a choice must respect and report, beside the sampling."""

    allowed: Tensor | None = None  # [vocab] bool; None allows all
    top_logprobs: int = 0


def choose(
    logits: Tensor,
    sampling: Sampling,
    prompt_ids: Sequence[int],
    output_ids: Sequence[int],
    constraint: Constraint = Constraint(),
) -> SampledToken:
    """Choose the token that follows prompt and output, from logits [vocab] fp32 (left untouched).

    Raises `UsageError` for a sampling that does not fit the model or leaves no token, `ModelError`
    for logits that are not numbers.
    """
    processed = _penalize(_restrict(logits, sampling, constraint), sampling, prompt_ids, output_ids)
    best = int(processed.argmax())  # the first of equals
    if not math.isfinite(float(processed[best])):
        raise _no_token(logits)
    if sampling.temperature < _LEAST_TEMPERATURE:
        return _choice(best, logits, constraint)
    draw = uniform(sampling, len(prompt_ids) + len(output_ids))
    return _choice(_draw(processed.div_(sampling.temperature), sampling, draw), logits, constraint)


def uniform(sampling: Sampling, position: int) -> float:
    """A number in [0, 1) that depends on the seed and the position alone."""
    if sampling.seed is None:
        raise UsageError("A temperature above 0 needs a seed", "Set a seed, or a temperature of 0.")
    key = sampling.seed.to_bytes(8, "little", signed=True) + position.to_bytes(8, "little")
    digest = hashlib.sha256(b"swarm sampling 1\n" + key).digest()
    bits = int.from_bytes(digest[:8], "little") >> (64 - _DRAW_BITS)
    return math.ldexp(bits, -_DRAW_BITS)


def _restrict(logits: Tensor, sampling: Sampling, constraint: Constraint) -> Tensor:
    processed = logits.clone()
    if constraint.allowed is not None:
        processed.masked_fill_(~constraint.allowed, -torch.inf)
    for token_id, bias in sampling.logit_bias.items():
        if not 0 <= token_id < len(processed):
            raise UsageError(
                f"logit_bias names the token {token_id}, which the model does not have",
                f"Use token ids from 0 to {len(processed) - 1}.",
                "logit_bias",
            )
        processed[token_id] += bias
    return processed


def _penalize(
    logits: Tensor, sampling: Sampling, prompt_ids: Sequence[int], output_ids: Sequence[int]
) -> Tensor:
    """Penalties, in place. Repetition as in CTRL (arXiv:1909.05858): divide above zero, else multiply."""
    if sampling.repetition_penalty != 1.0:
        seen = torch.tensor(sorted({*prompt_ids, *output_ids}), dtype=torch.long)
        scores, penalty = logits[seen], sampling.repetition_penalty
        logits[seen] = torch.where(scores > 0, scores / penalty, scores * penalty)
    if output_ids and (sampling.presence_penalty or sampling.frequency_penalty):
        counts = Counter(output_ids)
        seen = torch.tensor(list(counts), dtype=torch.long)
        penalties = (
            sampling.frequency_penalty * torch.tensor(list(counts.values())) + sampling.presence_penalty
        )
        logits[seen] -= penalties
    return logits


def _draw(scores: Tensor, sampling: Sampling, draw: float) -> int:
    """Inverse of the cumulative distribution over the kept tokens, likeliest first, ties by id.

    Sorting a whole vocabulary for each token is slow, so only as long a prefix of the order is
    sorted as is needed; its probabilities are exact, for the sum over all is known.
    """
    scores = _keep_likely(scores, sampling)
    total = scores.double().logsumexp(0)
    wanted = sampling.top_p if sampling.top_p < 1 else draw
    size = min(_FIRST_PREFIX, len(scores))
    ids, cumulative = _cumulative(scores, total, size)
    while size < len(scores) and float(cumulative[-1]) <= wanted:
        size = min(size * 8, len(scores))
        ids, cumulative = _cumulative(scores, total, size)
    mass = 1.0
    if sampling.top_p < 1:
        kept = 1 + int((cumulative[:-1] < sampling.top_p).sum())  # the one that reaches top_p is kept
        cumulative = cumulative[:kept]
        mass = float(cumulative[-1])
    index = int(torch.searchsorted(cumulative, draw * mass, right=True))
    return int(ids[min(index, len(cumulative) - 1)])


def _cumulative(scores: Tensor, total: Tensor, size: int) -> tuple[Tensor, Tensor]:
    """The `size` likeliest tokens (and those equal to the last), in order, and their summed probabilities."""
    threshold = scores.topk(size).values[-1]
    ids = ((scores >= threshold) & (scores > -torch.inf)).nonzero().squeeze(1)
    ids = ids[scores[ids].argsort(descending=True, stable=True)]
    return ids, (scores[ids].double() - total).exp().cumsum(0)


def _keep_likely(scores: Tensor, sampling: Sampling) -> Tensor:
    """Apply min-p, then top-k; tokens as likely as the last one kept are kept too."""
    if sampling.min_p > 0:
        scores = scores.masked_fill(scores < scores.max() + math.log(sampling.min_p), -torch.inf)
    if 0 < sampling.top_k < len(scores):
        scores = scores.masked_fill(scores < scores.topk(sampling.top_k).values[-1], -torch.inf)
    return scores


def _choice(token_id: int, logits: Tensor, constraint: Constraint) -> SampledToken:
    total = float(logits.logsumexp(0))
    top: tuple[tuple[int, float], ...] = ()
    if constraint.top_logprobs:
        values, ids = logits.topk(min(constraint.top_logprobs, len(logits)))
        top = tuple((each, value - total) for each, value in zip(ids.tolist(), values.tolist(), strict=True))
    return SampledToken(token_id, float(logits[token_id]) - total, top)


def _no_token(logits: Tensor) -> SwarmError:
    if bool(logits.isnan().any()) or bool(logits.isinf().any()):
        return ModelError("The logits are not numbers", "A peer may have computed wrongly; ask again.")
    return UsageError("Not one token of the vocabulary is allowed", "Loosen the constraint on the reply.")
