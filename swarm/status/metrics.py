"""What the status page counts and shows of itself and of the swarm, for Prometheus."""

from swarm.metrics import Metrics
from swarm.status.snapshot import SwarmState


class StatusMetrics:
    """The page's metrics in a registry of their own. No model or peer is a label: anyone can announce one."""

    def __init__(self) -> None:
        self.metrics = Metrics()
        self.requests = self.metrics.counter("status_requests", "HTTP requests answered.")
        self.write_failures = self.metrics.counter(
            "status_history_write_failures", "States not written down."
        )
        self._models = self.metrics.gauge("status_models", "Models by what they are seen as.", ["health"])
        self._peers = self.metrics.gauge("status_peers", "Peers by what they are seen as.", ["condition"])
        self._replicas = self.metrics.gauge(
            "status_fewest_replicas", "Working peers on the weakest block of any model."
        )
        self._seen_at = self.metrics.gauge(
            "status_directory_seen_timestamp_seconds", "Last crawl that worked."
        )
        self._canaries = self.metrics.gauge("status_canary_runs", "Canaries run through the models shown.")

    def show(self, state: SwarmState) -> None:
        """Take over a state."""
        self._models.clear()
        self._peers.clear()
        for model in state.models:
            self._models.labels(model.health).inc()
            for peer in model.peers:
                self._peers.labels(peer.condition).inc()
        self._replicas.set(min((model.replicas for model in state.models), default=0))
        self._seen_at.set(state.seen_at or 0.0)
        self._canaries.set(sum(model.canary_runs for model in state.models))
