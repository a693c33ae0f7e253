"""What a peer counts, for Prometheus."""

from collections.abc import Callable

from swarm.metrics import Metrics
from swarm.peer.executor import StepResult

Gauges = dict[tuple[str, str], Callable[[], float]]  # (name, text) -> value now


class PeerMetrics:
    """The peer's metrics in a registry of their own."""

    def __init__(self) -> None:
        self.metrics = Metrics()
        self._steps = self.metrics.counter("steps", "Steps computed.")
        self._tokens = self.metrics.counter("step_tokens", "Rows pushed through the span.")
        self._compute = self.metrics.histogram(
            "step_compute_seconds", "Computing a step, its batch included."
        )
        self._queue = self.metrics.histogram("step_queue_seconds", "Waiting of a step for its turn.")

    def note_step(self, result: StepResult) -> None:
        """Count a finished step."""
        self._steps.inc()
        self._tokens.inc(len(result.hidden))
        self._compute.observe(result.compute_ms / 1e3)
        self._queue.observe(result.queue_ms / 1e3)

    def watch(self, gauges: Gauges) -> None:
        """Read these whenever they are scraped."""
        for (name, text), read in gauges.items():
            self.metrics.gauge(name, text).set_function(read)
