"""Counts what the server does, for Prometheus."""

from __future__ import annotations

from collections.abc import Callable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from llm_core.infer.engine import Engine

LATENCIES_S = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)


class Metrics:
    """The numbers of one server."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.requests = Counter(
            "textmill_requests",
            "Requests answered, by path and status.",
            ("path", "status"),
            registry=self.registry,
        )
        self.refused = self._counter("requests_refused", "Requests that found the queue full.")
        self.cancelled = self._counter("requests_cancelled", "Requests whose client went away.")
        self.prompt_tokens = self._counter("prompt_tokens", "Tokens of prompts.")
        self.new_tokens = self._counter("new_tokens", "Tokens of answers.")
        self.first_token_s = self._histogram(
            "time_to_first_token_seconds", "From a request to its first token, waiting included."
        )
        self.request_s = self._histogram(
            "request_seconds", "From a request to its last token, waiting included."
        )

    def watch(self, engine: Engine) -> None:
        """Show the state of an engine, asked for when the numbers are."""
        self._gauge("answers_running", "Answers being written.", lambda: engine.num_running)
        self._gauge("answers_waiting", "Answers that wait.", lambda: engine.num_waiting)
        self._gauge("cache_blocks", "Blocks of the cache.", lambda: engine.num_blocks)
        self._gauge(
            "cache_blocks_used", "Blocks that requests hold.", lambda: engine.num_used_blocks
        )
        self._gauge(
            "computed_tokens",
            "Tokens computed since the start.",
            lambda: engine.num_computed_tokens,
        )
        self._gauge(
            "prefix_tokens", "Tokens found in the cache instead.", lambda: engine.num_prefix_tokens
        )
        self._gauge(
            "preemptions",
            "Answers interrupted because blocks ran out.",
            lambda: engine.num_preemptions,
        )

    def shown(self) -> bytes:
        return generate_latest(self.registry)

    def _gauge(self, name: str, meaning: str, value: Callable[[], float]) -> None:
        Gauge(f"textmill_{name}", meaning, registry=self.registry).set_function(value)

    def _counter(self, name: str, meaning: str) -> Counter:
        return Counter(f"textmill_{name}", meaning, registry=self.registry)

    def _histogram(self, name: str, meaning: str) -> Histogram:
        return Histogram(f"textmill_{name}", meaning, buckets=LATENCIES_S, registry=self.registry)
