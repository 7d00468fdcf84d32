"""Tells MLflow the scores of kept models on suites as series over trained tokens."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from flows.tracking.mlflow_log import Point
from flows.tracking.mlflow_names import METRIC_SEPARATOR, name_of


def curve_points(metrics: Mapping[str, Any], at_ms: int) -> list[Point]:
    """`curve/<suite>/<metric>` with `_low` and `_high`; a step is a number of trained tokens."""
    return [
        Point(
            name_of(["curve", name, curve["metric"] + end], METRIC_SEPARATOR),
            float(point[key]),
            at_ms,
            point["tokens"],
        )
        for name, curve in metrics.get("curves", {}).items()
        for point in curve["points"]
        for key, end in (("value", ""), ("low", "_low"), ("high", "_high"))
        if point[key] is not None
    ]
