"""A peer-to-peer volunteer swarm for LLM inference.

The public API of the library is what is listed here; it is imported when it is first used, so that
`import swarm` stays quick.
"""

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from swarm.client.blocking import BlockingClient
    from swarm.client.client import Client, ClientOptions
    from swarm.client.generation import Generation
    from swarm.client.reply import Piece, Reply
    from swarm.errors import SwarmError
    from swarm.model.sampling import Sampling

__all__ = [
    "BlockingClient",
    "Client",
    "ClientOptions",
    "Generation",
    "Piece",
    "Reply",
    "Sampling",
    "SwarmError",
]

_HOMES = {
    "BlockingClient": "swarm.client.blocking",
    "Client": "swarm.client.client",
    "ClientOptions": "swarm.client.client",
    "Generation": "swarm.client.generation",
    "Piece": "swarm.client.reply",
    "Reply": "swarm.client.reply",
    "Sampling": "swarm.model.sampling",
    "SwarmError": "swarm.errors",
}


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module 'swarm' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)
