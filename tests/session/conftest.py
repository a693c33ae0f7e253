"""The swarms of the client's tests: what opens a chain is tested on real peers, too."""

from tests.client.conftest import play, tiny_directory

__all__ = ["play", "tiny_directory"]
