"""``mistral``: no biases; one sliding window for every block, if any."""

from swarm.model.architectures.traits import Traits
from swarm.model.fields import Fields


def read_traits(fields: Fields) -> Traits:
    """The traits of a Mistral model."""
    window = fields.count_or("sliding_window", None)
    return Traits(windows=() if window is None else (window,) * fields.count("num_hidden_layers"))
