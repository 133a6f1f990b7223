"""What Prometheus reads at /metrics."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

_SECONDS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
_ROWS = (1, 2, 4, 8, 16, 32, 64, 128, 256)
_OF_A_MODEL = ("model", "version")


class Metrics:
    """The counters of one endpoint, apart from those of any other in the process."""

    def __init__(self) -> None:
        registry = CollectorRegistry()
        self._registry = registry
        self.requests = Counter(
            "attnport_requests",
            "Inference requests answered, by HTTP status.",
            (*_OF_A_MODEL, "code"),
            registry=registry,
        )
        self.errors = Counter(
            "attnport_errors",
            "Inference requests that got no result, by HTTP status; 499 is a client that left.",
            (*_OF_A_MODEL, "code"),
            registry=registry,
        )
        self.queue_seconds = Histogram(
            "attnport_queue_seconds",
            "From a request's being read to its computing.",
            _OF_A_MODEL,
            registry=registry,
            buckets=_SECONDS,
        )
        self.compute_seconds = Histogram(
            "attnport_compute_seconds",
            "Of the engine for the batch that a request was in.",
            _OF_A_MODEL,
            registry=registry,
            buckets=_SECONDS,
        )
        self.batch_rows = Histogram(
            "attnport_batch_rows",
            "Rows of the batch that a request was in.",
            _OF_A_MODEL,
            registry=registry,
            buckets=_ROWS,
        )
        self.in_progress = Gauge(
            "attnport_requests_in_progress",
            "Inference requests being read, waiting or computed.",
            registry=registry,
        )
        self.queue_length = Gauge(
            "attnport_queue_length", "Requests that wait.", _OF_A_MODEL, registry=registry
        )
        self.ready = Gauge(
            "attnport_model_ready",
            "1 once the bundle's cases came out right through the endpoint.",
            _OF_A_MODEL,
            registry=registry,
        )

    def count(self, model: str, version: str, status: int) -> None:
        """One request, answered or left."""
        self.requests.labels(model, version, status).inc()
        if status >= 400:
            self.errors.labels(model, version, status).inc()

    def page(self) -> bytes:
        """In Prometheus' text format."""
        return generate_latest(self._registry)
