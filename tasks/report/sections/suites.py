"""Shows how a model does on suites: a forest with the chance of each, a table of every metric."""

from __future__ import annotations

from functools import partial
from typing import Any

from tasks.report.charts import Mark, Reference, forest
from tasks.report.markup import foreign
from tasks.report.quantities import Facts, count, fixed, percent, plural, span


def suites_of(evaluate: Facts) -> dict[str, Any]:
    """What the template shows of suites; no rows without them."""
    marks, rows = [], []
    for name, suite in evaluate.items("suites"):
        headline = suite.text("headline") or ""
        for metric, facts in suite.items("metrics"):
            value, low, high = facts.each("value", "low", "high")
            chance = suite.number("chance") if metric.startswith("acc") else None
            rows.append(
                (
                    foreign(name),
                    foreign(metric),
                    fixed(value),
                    span(low, high),
                    fixed(chance) if chance is not None else "–",
                    count(suite.number("items")),
                    count(suite.number("shots")),
                )
            )
            if metric != headline or chance is None or value is None:
                continue
            title = f"{name}: {metric} {fixed(value)} over {plural(suite.number('items'), 'item')}"
            by_chance = Reference("chance", chance)
            marks.append(
                Mark(name, value, fixed(value), title, low=low, high=high, reference=by_chance)
            )
    chart = partial(forest, marks, [], "share of items") if marks else None
    return {
        "chart": chart,
        "legend": [("point", "headline of a suite"), ("r1", "its chance")],
        "rows": rows,
        "answers": _answers(evaluate),
    }


def _answers(evaluate: Facts) -> list[tuple[str, ...]]:
    """Of suites with generated answers: shares that are empty, cut off or repetitive."""
    shares = ("empty_frac", "cut_off_frac", "repetitive_frac")
    return [
        (foreign(name), *map(percent, found))
        for name, suite in evaluate.items("suites")
        if None not in (found := suite.each(*shares))
    ]
