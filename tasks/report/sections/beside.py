"""Shows other models beside the run's own: a folder, fewer bits, and earlier steps of training."""

from __future__ import annotations

from functools import partial
from typing import Any

from tasks.report.charts import Chart, Mark, Reference, Series, forest, lines
from tasks.report.markup import foreign
from tasks.report.quantities import MINUS, Facts, fixed, size, span

MAX_CURVES = 12
"""Charts of learning curves; the table has all."""


def beside_of(evaluate: Facts) -> dict[str, Any]:
    """A row for bits per byte and for each suite that both models have, and a forest of what
    differs. Lower is better in bits, so they are in the table alone."""
    beside = Facts(evaluate.group("beside"))
    rows, marks = [], []
    if (value := beside.number("val_bpb", "value")) is not None:
        difference = Facts(beside.group("difference"))
        own = evaluate.number("val_bpb", "value")
        rows.append(("bits per byte", "", fixed(own), fixed(value), *_interval(difference), "–"))
    for name, found in beside.items("suite_differences"):
        metric, value = found.text("metric"), found.number("value")
        if metric is None or value is None:
            continue
        own, other = (
            Facts(each.group("suites", name, "metrics", metric)).number("value")
            for each in (evaluate, beside)
        )
        p_value = fixed(found.number("p_value_of_all"))
        values = fixed(own), fixed(other), *_interval(found), p_value
        rows.append((foreign(name), foreign(metric), *values))
        low, high = found.each("low", "high")
        if metric != "bits_per_byte":
            shown = f"{value:+.3f}".replace("-", MINUS)
            marks.append(Mark(name, value, shown, f"{name}: {metric} {shown}", low=low, high=high))
    zero = [Reference("no difference", 0.0)]
    return {
        "name": beside.text("name"),
        "no_bits": beside.text("no_bits"),
        "rows": rows,
        "chart": partial(forest, marks, zero, "folder − this model") if marks else None,
    }


def formats_of(evaluate: Facts) -> dict[str, Any]:
    """Bits per byte of each format of weights, the largest first; whiskers are those of the
    difference to the weights as trained."""
    trained = evaluate.number("formats", "trained", "val_bpb", "value")
    rows, marks = [], []
    for name, facts in evaluate.largest_first("formats", by=["weight_bytes"]):
        value, num_bytes = facts.number("val_bpb", "value"), facts.number("weight_bytes")
        if value is None or trained is None:
            continue
        more, low, high = Facts(facts.group("difference")).each("value", "low", "high")
        shown = "–" if more is None else fixed(more, 4)
        interval = "–" if low is None else span(low, high, 4)
        rows.append((name, size(num_bytes), fixed(value, 4), shown, interval))
        label = f"{name}, {size(num_bytes)}"
        title = f"{label}: {fixed(value, 4)} bits per byte"
        ends = [None if end is None else trained + end for end in (low, high)]
        marks.append(
            Mark(
                label,
                value,
                fixed(value, 4),
                title,
                low=ends[0],
                high=ends[1],
                against=trained,
            )
        )
    chart = partial(forest, marks, [], "bits per byte") if marks else None
    return {"rows": rows, "chart": chart}


def curves_of(evaluate: Facts) -> dict[str, Any]:
    """The headline of each suite against trained tokens."""
    charts: list[tuple[str, Chart, bool]] = []
    rows = []
    for name, curve in evaluate.items("curves"):
        metric = curve.text("metric") or ""
        points = []
        for row in curve.rows("points"):
            tokens, value, low, high = row.each("tokens", "value", "low", "high")
            if tokens is None or value is None:
                continue
            points.append((tokens / 1e6, value, low, high))
            known = foreign(name), foreign(metric), fixed(row.number("step"), 0)
            rows.append((*known, fixed(tokens / 1e6), fixed(value), span(low, high)))
        if not points:
            continue
        lows = [(x, low) for x, _, low, _ in points if low is not None]
        highs = [(x, high) for x, _, _, high in points if high is not None]
        bounds = [Series("lower end", lows, "bound"), Series("upper end", highs, "bound")]
        own = Series(metric, [(x, value) for x, value, _, _ in points], dots=True)
        chance = evaluate.number("suites", name, "chance")
        guessing = []
        if chance is not None and metric.startswith("acc"):
            guessing = [Reference("chance", chance)]
        chart = partial(
            lines,
            [one for one in (*bounds, own) if one.points],
            x_label="million tokens",
            y_label="score",
            references=guessing,
        )
        charts.append((f"{name}: {metric}", chart, bool(guessing)))
    return {"charts": charts[:MAX_CURVES], "rows": rows, "left_out": len(charts) - MAX_CURVES}


def _interval(facts: Facts) -> tuple[str, str]:
    value, low, high = facts.each("value", "low", "high")
    if value is None:
        return "–", "–"
    return fixed(value), span(low, high) if low is not None else "–"
