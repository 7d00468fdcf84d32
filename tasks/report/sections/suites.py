"""Shows how a model does on suites: a forest with lines of chance, and a table of every metric."""

from __future__ import annotations

from functools import partial
from typing import Any

from tasks.report.charts import Mark, forest
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
            over = plural(suite.number("items"), "item")
            title = f"{name}: {metric} {fixed(value)} over {over}, chance {fixed(chance, 2)}"
            mark = Mark(name, value, fixed(value), title, low=low, high=high, against=chance)
            marks.append(mark)
    chart = partial(forest, marks, [], "share of items") if marks else None
    return {
        "chart": chart,
        "legend": [("point", "headline of a suite"), ("r1", "guessing")],
        "rows": rows,
        "limits": _limits(evaluate),
        "answers": _answers(evaluate),
        "clean": _clean(evaluate),
    }


def _limits(evaluate: Facts) -> list[tuple[str, ...]]:
    """Of each suite: its score above guessing, how far its probabilities are to be trusted, and
    what it can tell apart."""
    rows: list[tuple[str, ...]] = []
    for name, suite in evaluate.items("suites"):
        merged = suite.number("merged_frac")
        centred, brier, calibration, seen = (
            "–" if value is None else fixed(value)
            for value in suite.each(
                "centred", "brier", "calibration_error", "detectable_difference"
            )
        )
        cut = count(suite.number("truncated")), "–" if merged is None else percent(merged)
        rows.append((foreign(name), centred, brier, calibration, *cut, seen))
    return rows


def _clean(evaluate: Facts) -> list[tuple[str, ...]]:
    """Of suites that were looked for in the training data: what is left without the items found."""
    rows: list[tuple[str, ...]] = []
    for name, suite in evaluate.items("suites"):
        clean, searched = Facts(suite.group("clean")), suite.number("searched_in_training")
        items, left = suite.number("items"), clean.number("items")
        if searched is None or items is None or left is None:
            continue
        metric = clean.text("metric") or ""
        gain = Facts(clean.group("difference"))
        low, high = gain.each("low", "high")
        rows.append(
            (
                foreign(name),
                foreign(metric),
                count(searched),
                count(items - left),
                fixed(suite.number("metrics", metric, "value")),
                fixed(clean.number("value")),
                fixed(gain.number("value")),
                span(low, high) if low is not None else "–",
            )
        )
    return rows


def _answers(evaluate: Facts) -> list[tuple[str, ...]]:
    """Of suites with generated answers: shares that are empty, cut off or repetitive."""
    shares = ("empty_frac", "cut_off_frac", "repetitive_frac")
    return [
        (foreign(name), *map(percent, found))
        for name, suite in evaluate.items("suites")
        if None not in (found := suite.each(*shares))
    ]
