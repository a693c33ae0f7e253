"""Metrics as a scrape sees them."""

from swarm.metrics import Metrics


def test_every_metric_has_the_prefix_and_its_kind():
    metrics = Metrics()
    metrics.counter("sessions_opened", "Sessions opened").inc(2)
    metrics.gauge("kv_tokens_free", "Tokens free").set(7)
    metrics.histogram("step_compute_seconds", "Compute").observe(0.02)
    lines = metrics.render().decode().splitlines()
    assert "swarm_sessions_opened_total 2.0" in lines
    assert "swarm_kv_tokens_free 7.0" in lines
    assert 'swarm_step_compute_seconds_bucket{le="0.01"} 0.0' in lines
    assert 'swarm_step_compute_seconds_bucket{le="0.03"} 1.0' in lines


def test_labels_are_rendered():
    metrics = Metrics()
    metrics.counter("faults", "Faults", ["code"]).labels(code="position").inc()
    assert 'swarm_faults_total{code="position"} 1.0' in metrics.render().decode()


def test_two_programs_in_one_process_do_not_share_metrics():
    first, second = Metrics(), Metrics()
    first.gauge("queue_depth", "Queue").set(1)
    second.gauge("queue_depth", "Queue").set(2)
    assert "swarm_queue_depth 1.0" in first.render().decode()
    assert "swarm_queue_depth 2.0" in second.render().decode()
