"""What to tell a person who has these machines and wants that model."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from swarm.bench.plan.estimate import (
    BYTES_PER_WEIGHT,
    HOSTED_DTYPES,
    Needs,
    Prediction,
    alone,
    best_split,
    blocks_on,
    needs,
)
from swarm.bench.plan.machines import Machine
from swarm.model.config import ModelConfig
from swarm.values import format_size

WORTH_SAYING = 1.1  # times faster
MOST_HELP = 1.15


@dataclass(frozen=True, slots=True)
class Question:
    """What is asked."""

    config: ModelConfig
    machines: tuple[Machine, ...]
    dtype: str
    context_tokens: int
    prompt_tokens: int

    @property
    def need(self) -> Needs:
        """What the model takes as asked."""
        return needs(self.config, self.dtype, self.context_tokens)

    def best(self, machines: Sequence[Machine] | None = None, dtype: str | None = None) -> Prediction | None:
        """The best split, with other machines or another number format."""
        need = needs(self.config, dtype or self.dtype, self.context_tokens)
        return best_split(machines or self.machines, need, self.prompt_tokens)


@dataclass(frozen=True, slots=True)
class PlanAnswer:
    """The plan."""

    question: Question
    prediction: Prediction | None
    bottleneck: str
    advice: tuple[str, ...]

    def to_json(self) -> dict[str, object]:
        """One object."""
        best = self.prediction
        return {
            "fits": best is not None,
            "split": [{"machine": p.machine.name, "blocks": str(p.span)} for p in best.parts] if best else [],
            "predicted": {"ttft_s": round(best.ttft_s, 3), "tokens_per_s": round(best.tokens_per_s, 2)}
            if best
            else None,
            "parts": {
                "compute_ms": round(best.compute_ms, 2),
                "network_ms": round(best.network_ms, 2),
                "protocol_ms": round(best.protocol_ms, 2),
                "tokens_per_s": {mode: round(rate, 2) for mode, rate in best.modes().items()},
            }
            if best
            else None,
            "bottleneck": self.bottleneck,
            "advice": list(self.advice),
        }


def answer(question: Question) -> PlanAnswer:
    """Plan, find what holds it back, and say what would help."""
    best = question.best()
    if best is None:
        return PlanAnswer(question, None, "memory", tuple(_when_it_does_not_fit(question)))
    advice = [
        *_about_splitting(question, best),
        *_about_unused(question, best),
        *_about_wifi(question, best),
        *_about_formats(question, best),
        *_about_one_more(question, best),
    ]
    return PlanAnswer(question, best, bottleneck(best), tuple(advice))


def bottleneck(best: Prediction) -> str:
    """The largest part of a token's time."""
    if best.network_ms + best.protocol_ms > best.compute_ms:
        slow = max(best.parts, key=lambda part: part.machine.rtt_ms * (not part.machine.is_client))
        return f"network of {slow.machine.name}"
    slow = max(best.parts, key=lambda part: len(part.span) / part.machine.reads_gb_per_s)
    return f"compute of {slow.machine.name}"


def _when_it_does_not_fit(question: Question) -> list[str]:
    need = question.need
    held = sum(blocks_on(machine, need) for machine in question.machines)
    advice = [
        f"It does not fit: {need.blocks} blocks take {format_size(need.total_bytes)} in {need.dtype} with "
        f"caches for {question.context_tokens} tokens, and these machines hold {held} of them."
    ]
    narrower = [dtype for dtype, size in BYTES_PER_WEIGHT.items() if size < BYTES_PER_WEIGHT[need.dtype]]
    fitting = next((dtype for dtype in narrower if question.best(dtype=dtype)), None)
    if fitting:
        how = f"--dtype {fitting}" if fitting in HOSTED_DTYPES else f"a model quantised to {fitting}"
        advice.append(f"Use {how}: then it fits.")
    else:
        advice.append("Use a smaller model, or a shorter --context.")
    short = (need.blocks - held) * (need.block_bytes + need.cache_bytes)
    advice.append(f"Or add a machine with {format_size(short)} of memory for blocks.")
    return advice


def _about_splitting(question: Question, best: Prediction) -> list[str]:
    one = [
        (machine, prediction)
        for machine in question.machines
        if (prediction := alone(machine, question.machines, question.need, question.prompt_tokens))
    ]
    if len(best.parts) > 1:
        if one:
            return []
        return [f"No machine holds it alone; {len(best.parts)} together give {_speed(best)}."]
    if len(question.machines) == 1:
        return ["One machine holds it; others would only serve more people at once."]
    name = best.parts[0].machine.name
    return [f"Do not split: {name} alone gives {_speed(best)}; every hop more only adds time on the way."]


def _about_unused(question: Question, best: Prediction) -> list[str]:
    used = {part.machine.name for part in best.parts}
    if len(used) == 1:
        return []
    return [
        f"{machine.name} is not used: the others hold the model, and with it every token would take longer."
        for machine in question.machines
        if machine.name not in used
    ]


def _about_wifi(question: Question, best: Prediction) -> list[str]:
    if not any(part.machine.wifi for part in best.parts):
        return []
    wired = question.best([machine.wired() for machine in question.machines])
    if wired is None or wired.tokens_per_s < WORTH_SAYING * best.tokens_per_s:
        return []
    return [f"Use cables instead of Wi-Fi: {_speed(wired)} instead of {_speed(best)}."]


def _about_formats(question: Question, best: Prediction) -> list[str]:
    for dtype in ("bf16", "int8", "int4"):
        if BYTES_PER_WEIGHT[dtype] >= BYTES_PER_WEIGHT[question.dtype]:
            continue
        other = question.best(dtype=dtype)
        if other is not None and other.tokens_per_s > 1.5 * best.tokens_per_s:
            return [f"In {dtype} it would give {_speed(other)} on {len(other.parts)} machine(s)."]
    return []


def _about_one_more(question: Question, best: Prediction) -> list[str]:
    fastest = max(question.machines, key=lambda machine: machine.reads_gb_per_s)
    another = replace(fastest, name=f"another {fastest.name}", is_client=False).wired()
    more = question.best([*question.machines, another])
    if more is None or more.tokens_per_s < MOST_HELP * best.tokens_per_s:
        return [
            "One machine more would not make a conversation faster; it would be a spare, or serve others."
        ]
    return [f"One more machine like {fastest.name}, on a cable, would give {_speed(more)}."]


def _speed(prediction: Prediction) -> str:
    return f"{prediction.tokens_per_s:.1f} tokens/s"
