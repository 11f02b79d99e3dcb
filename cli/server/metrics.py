"""What Prometheus reads: counts and times of requests, and the engines' own figures."""

import time
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

from fastapi import APIRouter
from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    disable_created_metrics,
)
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector
from starlette.responses import Response
from starlette.types import Scope

from ... import __version__
from .errors import error_responses
from .request_record import current
from .served import ServedModel

if TYPE_CHECKING:
    from ...runtime.outputs import RequestMetrics
    from ...runtime.stats import EngineStats

_METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
_NO_PATH = "unmatched"  # all paths that there are not: a label each would never end
_UNROUTED = frozenset({"/openapi.json"})  # FastAPI's own, of which it leaves no route in the scope

_FIRST_TOKEN = (0.02, 0.05, 0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 12.8, 25.6, 60.0, 120.0)
_PER_TOKEN = (0.002, 0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.5, 1.0, 2.0)
_QUEUE = (0.001, 0.005, 0.02, 0.1, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0)
_LOAD = (0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 20.0, 40.0, 80.0, 160.0, 320.0, 640.0)
_WHOLE = (0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 20.0, 40.0, 80.0, 160.0, 320.0, 600.0)

# Field of EngineStats -> name and text.
_COUNTERS = {
    "steps": ("engine_steps", "Steps that the engine ran"),
    "decode_tokens": ("decode_tokens", "Tokens that were run after prefill"),
    "prefill_tokens": ("prefill_tokens", "Prompt tokens that were run, again after preemptions"),
    "cached_tokens": ("prefix_cache_hits", "Prompt tokens found in the prefix cache"),
    "queried_tokens": ("prefix_cache_queries", "Prompt tokens looked for in the prefix cache"),
    "evictions": ("evictions", "Cached KV pages that were forgotten for others"),
    "preemptions": ("preemptions", "Sequences that lost their pages and were computed again"),
    "cancellations": ("cancellations", "Requests that were cancelled"),
    "expirations": ("expirations", "Requests whose time was up"),
    "failures": ("failures", "Requests that an error ended"),
    "finished": ("finished", "Requests that came to their own end"),
}
_GAUGES = {
    "running": ("sequences_running", "Sequences that hold KV pages"),
    "waiting": ("sequences_waiting", "Sequences that wait for KV pages"),
    "pages_used": ("kv_pages_used", "KV pages that sequences hold"),
    "pages_cached": ("kv_pages_cached", "KV pages held by nobody, but findable as prefixes"),
    "pages_free": ("kv_pages_free", "KV pages that hold nothing"),
}


class ServerBooks:
    """The metrics of one server, in a registry of its own."""

    def __init__(self) -> None:
        disable_created_metrics()  # a time beside each count: Prometheus does without
        self.registry = CollectorRegistry()
        model = ["model", "dialect"]
        self._requests = self._counter(
            "requests", "Requests to the engine that ended", [*model, "reason"]
        )
        self._in_progress = Gauge(
            "llamba_requests_in_progress",
            "Requests that the engine has",
            model,
            registry=self.registry,
        )
        self._http = self._counter(
            "http_requests", "Requests that were answered", ["path", "method", "status"]
        )
        self._prompt = self._counter("prompt_tokens", "Tokens of prompts", ["model"])
        self._cached = self._counter(
            "cached_prompt_tokens", "Tokens of prompts that the KV cache had", ["model"]
        )
        self._completion = self._counter("completion_tokens", "Tokens of answers", ["model"])
        self._ttft = self._histogram(
            "time_to_first_token_seconds", "From submission to the first token", _FIRST_TOKEN
        )
        self._tpot = self._histogram(
            "time_per_output_token_seconds", "Of an answer, after its first token", _PER_TOKEN
        )
        self._queue = self._histogram("queue_seconds", "From submission to the first step", _QUEUE)
        self._whole = self._histogram("e2e_seconds", "From submission to the last token", _WHOLE)
        self._load = self._histogram("model_load_seconds", "Of loading a model", _LOAD)
        build = Gauge("llamba_build_info", "The version", ["version"], registry=self.registry)
        build.labels(__version__).set(1)
        started = Gauge(
            "llamba_start_time_seconds", "When the server began", registry=self.registry
        )
        started.set(time.time())

    def started(self, model: ServedModel, dialect: str) -> None:
        """A request was handed to the engine."""
        self._in_progress.labels(model.name, dialect).inc()
        record = current.get()
        if record is not None:
            record.model, record.dialect = model.name, dialect

    def ended(
        self, model: ServedModel, dialect: str, reason: str, metrics: "RequestMetrics | None"
    ) -> None:
        """It ended; metrics is None if nothing is known of it."""
        name = model.name
        self._in_progress.labels(name, dialect).dec()
        self._requests.labels(name, dialect, reason).inc()
        record = current.get()
        if record is not None:
            record.add(name, dialect, reason, metrics)
        if metrics is None:
            return
        self._prompt.labels(name).inc(metrics.prompt_tokens)
        self._cached.labels(name).inc(metrics.cached_tokens)
        self._completion.labels(name).inc(metrics.completion_tokens)
        self._queue.labels(name).observe(metrics.queue_s)
        if metrics.ttft_s is None:
            return
        self._ttft.labels(name).observe(metrics.ttft_s)
        self._whole.labels(name).observe(metrics.ttft_s + metrics.decode_s)
        after_first = metrics.completion_tokens / metrics.num_sequences - 1
        if after_first > 0:
            self._tpot.labels(name).observe(metrics.decode_s / after_first)

    def loaded(self, name: str, seconds: float) -> None:
        """A model was loaded."""
        self._load.labels(name).observe(seconds)

    def answered(self, scope: Scope, status: int) -> None:
        """An HTTP request was answered; status 499: its client has gone."""
        path = getattr(scope.get("route"), "path", None)
        if path is None:
            path = scope["path"] if scope["path"] in _UNROUTED else _NO_PATH
        method = scope["method"] if scope["method"] in _METHODS else "other"
        self._http.labels(path, method, str(status)).inc()

    def _counter(self, name: str, text: str, labels: list[str]) -> Counter:
        return Counter(f"llamba_{name}", text, labels, registry=self.registry)

    def _histogram(self, name: str, text: str, buckets: tuple[float, ...]) -> Histogram:
        return Histogram(f"llamba_{name}", text, ["model"], buckets=buckets, registry=self.registry)


class EngineCollector(Collector):
    """The engines' figures, read when somebody asks.

    Args:
        stats: (model's name, its figures, or None when it is not loaded) of each known model.
    """

    def __init__(self, stats: "Callable[[], Iterable[tuple[str, EngineStats | None]]]") -> None:
        self._stats = stats

    def describe(self) -> Iterable[Metric]:
        """Nothing: the registry need not ask the engines for the names."""
        return ()

    def collect(self) -> Iterator[Metric]:
        """All figures, a family of samples each."""
        found = list(self._stats())
        loaded = GaugeMetricFamily("llamba_model_loaded", "1: is in memory", labels=["model"])
        for name, stats in found:
            loaded.add_metric([name], 0 if stats is None else 1)
        yield loaded
        for field, (short, text) in _COUNTERS.items():
            yield _filled(
                CounterMetricFamily(f"llamba_{short}", text, labels=["model"]), field, found
            )
        for field, (short, text) in _GAUGES.items():
            yield _filled(
                GaugeMetricFamily(f"llamba_{short}", text, labels=["model"]), field, found
            )


def _filled(family: Any, field: str, found: "Iterable[tuple[str, EngineStats | None]]") -> Metric:
    for name, stats in found:
        if stats is not None:
            family.add_metric([name], getattr(stats, field))
    return family


def router(books: ServerBooks) -> APIRouter:
    """GET /metrics, in Prometheus' text form."""
    routes = APIRouter(tags=["operations"])

    async def metrics() -> Response:
        return Response(generate_latest(books.registry), media_type=CONTENT_TYPE_LATEST)

    text = {"text/plain": {"schema": {"type": "string"}}}
    routes.add_api_route(
        "/metrics",
        metrics,
        methods=["GET"],
        summary="Metrics for Prometheus",
        operation_id="metrics",
        response_class=Response,
        responses={
            **error_responses("openai"),
            200: {"description": "All metrics.", "content": text},
        },
    )
    return routes
