"""The supported families by ``model_type``. Anything else is refused by name."""

from collections.abc import Callable, Mapping
from typing import NamedTuple

from swarm.errors import UnsupportedModel
from swarm.model.architectures import (
    cohere2,
    gemma2,
    gemma3,
    glm4,
    granite,
    llama,
    ministral3,
    mistral,
    mixtral,
    olmo2,
    phi3,
    qwen2,
    qwen2_moe,
    qwen3,
    qwen3_moe,
    smollm3,
    stablelm,
    starcoder2,
)
from swarm.model.architectures.traits import Traits
from swarm.model.fields import Fields


class Family(NamedTuple):
    """How the config.json of one ``model_type`` is read."""

    defaults: Mapping[str, object]  # of transformers' configuration class, for keys that are left out
    read_traits: Callable[[Fields], Traits]
    eps_key: str = "rms_norm_eps"
    activation_key: str = "hidden_act"
    came_with_code: bool = False  # its repositories still name the code that transformers has taken over


_FAMILIES = {
    "cohere2": Family(cohere2.DEFAULTS, cohere2.read_traits, eps_key="layer_norm_eps"),
    "gemma2": Family(gemma2.DEFAULTS, gemma2.read_traits, activation_key="hidden_activation"),
    "gemma3_text": Family(gemma3.DEFAULTS, gemma3.read_traits, activation_key="hidden_activation"),
    "glm4": Family(glm4.DEFAULTS, glm4.read_traits),
    "granite": Family(granite.DEFAULTS, granite.read_traits),
    "llama": Family(llama.DEFAULTS, llama.read_traits),
    "ministral": Family(mistral.DEFAULTS, mistral.read_traits),
    "ministral3": Family(ministral3.DEFAULTS, ministral3.read_traits),
    "mistral": Family(mistral.DEFAULTS, mistral.read_traits),
    "mixtral": Family(mixtral.DEFAULTS, mixtral.read_traits),
    "olmo2": Family(olmo2.DEFAULTS, olmo2.read_traits),
    "phi3": Family(phi3.DEFAULTS, phi3.read_traits, came_with_code=True),
    "qwen2": Family(qwen2.DEFAULTS, qwen2.read_traits),
    "qwen2_moe": Family(qwen2_moe.DEFAULTS, qwen2_moe.read_traits),
    "qwen3": Family(qwen3.DEFAULTS, qwen3.read_traits),
    "qwen3_moe": Family(qwen3_moe.DEFAULTS, qwen3_moe.read_traits),
    "smollm3": Family(smollm3.DEFAULTS, smollm3.read_traits),
    "stablelm": Family(
        stablelm.DEFAULTS, stablelm.read_traits, eps_key="layer_norm_eps", came_with_code=True
    ),
    "starcoder2": Family(starcoder2.DEFAULTS, starcoder2.read_traits, eps_key="norm_epsilon"),
}
SUPPORTED_MODEL_TYPES = tuple(sorted(_FAMILIES))


def family_of(model_type: str, fields: Fields) -> Family:
    """The family of a model. Raises `UnsupportedModel` for an unknown one."""
    family = _FAMILIES.get(model_type)
    if family is None:
        raise UnsupportedModel(
            f"The model type {model_type!r} in {fields.path} is not supported",
            f"Supported: {', '.join(SUPPORTED_MODEL_TYPES)}.",
        )
    return family


def causal_model_names() -> set[str]:
    """What transformers calls the classes of the families, in lower case."""
    stems = {name.removesuffix("_text").replace("_", "") for name in SUPPORTED_MODEL_TYPES}
    return {f"{stem}{kind}" for stem in (*stems, "gemma3text") for kind in ("forcausallm", "model")}
