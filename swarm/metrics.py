"""Prometheus metrics: one registry for each program, every name with the prefix `swarm_`.

Knows no metric itself: a program declares its own. Labels never hold a peer id, a model path or
anything else without a small bound.
"""

from collections.abc import Sequence

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_LATEST

PREFIX = "swarm_"
CONTENT_TYPE = CONTENT_TYPE_LATEST  # of what `Metrics.render` gives

# from a step between neighbours (1 ms) to a whole reply over slow links (10 min)
SECONDS_BUCKETS = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0, 600.0)


class Metrics:
    """Makes metrics in a registry of its own and renders them for a scrape.

    Names are given without the prefix and in base units; a counter's ``_total`` is added by the
    library. The same name twice is a `ValueError` of the library: declare each metric once.
    """

    def __init__(self) -> None:
        self._registry = CollectorRegistry()

    def counter(self, name: str, text: str, labels: Sequence[str] = ()) -> Counter:
        """A count that only goes up, for example ``sessions_opened``."""
        return Counter(PREFIX + name, text, labels, registry=self._registry)

    def gauge(self, name: str, text: str, labels: Sequence[str] = ()) -> Gauge:
        """A value that goes up and down, for example ``kv_tokens_free``."""
        return Gauge(PREFIX + name, text, labels, registry=self._registry)

    def histogram(
        self, name: str, text: str, labels: Sequence[str] = (), buckets: Sequence[float] = SECONDS_BUCKETS
    ) -> Histogram:
        """A distribution, for example ``step_compute_seconds``."""
        return Histogram(PREFIX + name, text, labels, registry=self._registry, buckets=buckets)

    def render(self) -> bytes:
        """All metrics in the text format that Prometheus scrapes."""
        return generate_latest(self._registry)
