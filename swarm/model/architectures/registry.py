"""The supported families by ``model_type``. Anything else is refused by name."""

from swarm.errors import UnsupportedModel
from swarm.model.architectures import llama, mistral, qwen2, qwen3
from swarm.model.architectures.traits import Traits
from swarm.model.fields import Fields

_READERS = {
    "llama": llama.read_traits,
    "mistral": mistral.read_traits,
    "qwen2": qwen2.read_traits,
    "qwen3": qwen3.read_traits,
}
SUPPORTED_MODEL_TYPES = tuple(sorted(_READERS))


def read_traits(model_type: str, fields: Fields) -> Traits:
    """The traits of a model from its config. Raises `UnsupportedModel` for an unknown family."""
    reader = _READERS.get(model_type)
    if reader is None:
        raise UnsupportedModel(
            f"The model type {model_type!r} in {fields.path} is not supported",
            f"Supported: {', '.join(SUPPORTED_MODEL_TYPES)}.",
        )
    return reader(fields)
