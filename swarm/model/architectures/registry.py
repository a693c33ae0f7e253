"""The supported families by ``model_type``. Anything else is refused by name."""

from collections.abc import Callable, Mapping
from typing import NamedTuple

from swarm.errors import UnsupportedModel
from swarm.model.architectures import llama, mistral, qwen2, qwen3
from swarm.model.architectures.traits import Traits
from swarm.model.fields import Fields


class Family(NamedTuple):
    """How the config.json of one ``model_type`` is read."""

    defaults: Mapping[str, object]  # of transformers' configuration class, for keys that are left out
    read_traits: Callable[[Fields], Traits]


_FAMILIES = {
    "llama": Family(llama.DEFAULTS, llama.read_traits),
    "mistral": Family(mistral.DEFAULTS, mistral.read_traits),
    "qwen2": Family(qwen2.DEFAULTS, qwen2.read_traits),
    "qwen3": Family(qwen3.DEFAULTS, qwen3.read_traits),
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
