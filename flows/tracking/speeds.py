"""Tells MLflow the measurements of `bench` as series, so that its own charts draw them.

The step of a cell is its context in prompt tokens, that of a closed loop its concurrency, that of
an open loop the percentage of the fastest closed loop that arrives.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import product
from typing import Any

from flows.tracking.mlflow_log import Point
from flows.tracking.mlflow_names import METRIC_SEPARATOR, name_of

CELL_VALUES = ("decode_tok_s", "prefill_tok_s", "mbu", "mfu", "peak_bytes", "cache_bytes")
LOAD_VALUES = (
    ("tok_s",),
    ("requests_per_s",),
    *product(("ttft_s", "tpot_s", "e2e_s"), ("p50", "p90")),
    ("queue_s", "mean"),
    ("goodput", "server", "kept_frac"),
)


def speed_points(metrics: Mapping[str, Any], at_ms: int) -> list[Point]:
    """Points of all cells and loads that were measured."""
    return [
        Point(name_of(path, METRIC_SEPARATOR), float(value), at_ms, step)
        for path, value, step in (*_of_cells(metrics), *_of_loads(metrics))
        if value is not None
    ]


def _of_cells(metrics: Mapping[str, Any]) -> Iterator[tuple[list[str], Any, int]]:
    for row in metrics.get("cells", ()):
        sizes = [f"batch_{row['batch']}", f"new_{row['new_tokens']}"]
        path = ["grid", row.get("weights", "model"), row.get("cache") or row["mode"], *sizes]
        for name in CELL_VALUES:
            value = row.get(name)
            median = value["median"] if isinstance(value, Mapping) else value
            yield [*path, name], median, row["prompt_tokens"]


def _of_loads(metrics: Mapping[str, Any]) -> Iterator[tuple[list[str], Any, int]]:
    for row in metrics.get("loads", ()):
        is_closed = row["kind"] == "closed"
        step = row["concurrency"] if is_closed else round(100 * row["arrival_frac"])
        for path in LOAD_VALUES:
            value: Any = row
            for name in path:
                value = value.get(name) if isinstance(value, Mapping) else None
            yield ["load", row["target"], row["kind"], *path], value, step
