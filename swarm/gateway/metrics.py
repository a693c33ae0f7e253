"""What a gateway counts, for Prometheus, by vLLM's names where they mean the same."""

from collections.abc import Callable

from swarm.gateway.choices import Choice
from swarm.metrics import Metrics


class GatewayMetrics:
    """The gateway's metrics in a registry of their own."""

    def __init__(self) -> None:
        self.metrics = metrics = Metrics()
        self._prompt = metrics.counter("prompt_tokens", "Prompt tokens processed.", ["model_name"])
        self._generated = metrics.counter("generation_tokens", "Tokens generated.", ["model_name"])
        self._ended = metrics.counter(
            "request_success", "Choices that ended, by why.", ["model_name", "finished_reason"]
        )
        self._failed = metrics.counter("request_failure", "Replies that failed.", ["model_name", "code"])
        self._resumes = metrics.counter("resumes", "Peers lost in mid-reply and replaced.", ["model_name"])
        self._ttft = metrics.histogram(
            "time_to_first_token_seconds", "Until the first token.", ["model_name"]
        )
        self._latency = metrics.histogram("e2e_request_latency_seconds", "Of a whole choice.", ["model_name"])
        self._between = metrics.histogram(
            "inter_token_latency_seconds", "Between two tokens of a choice.", ["model_name"]
        )
        self._http = metrics.counter("http_requests", "HTTP requests answered.", ["method", "status"])

    def watch(self, running: Callable[[], float], waiting: Callable[[], float]) -> None:
        """Read these whenever they are scraped."""
        self.metrics.gauge("num_requests_running", "Replies in the making.").set_function(running)
        self.metrics.gauge("num_requests_waiting", "Requests that wait for a slot.").set_function(waiting)

    def note_prompt(self, model: str, tokens: int) -> None:
        """A reply was admitted."""
        self._prompt.labels(model).inc(tokens)

    def note_token(self, model: str, since_last_s: float | None, ttft_s: float | None) -> None:
        """A token came: the first of a choice after `ttft_s`, or another `since_last_s` after the last."""
        self._generated.labels(model).inc()
        if ttft_s is not None:
            self._ttft.labels(model).observe(ttft_s)
        if since_last_s is not None:
            self._between.labels(model).observe(since_last_s)

    def note_end(self, model: str, choice: Choice, seconds: float) -> None:
        """A choice is complete."""
        self._ended.labels(model, choice.finish_reason or "stop").inc()
        self._latency.labels(model).observe(seconds)
        self._resumes.labels(model).inc(len(choice.resumes))

    def note_failure(self, model: str, code: str) -> None:
        """A reply ended in an error."""
        self._failed.labels(model, code).inc()

    def note_http(self, method: str, status: int) -> None:
        """A request was answered."""
        self._http.labels(method, str(status)).inc()
