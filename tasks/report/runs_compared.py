"""Shows compared runs on a page: settings, results, paired differences, curves over tokens."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from itertools import cycle
from pathlib import Path
from typing import Any

from tasks.report.charts import Mark, Reference, Series, forest, lines
from tasks.report.page import Section, page

TONES = ("a", "b", "r1", "r2")


def write_comparison(found: Mapping[str, Any], rows: Mapping[str, Any], file: Path) -> Path:
    """Write the page; the file it is in. rows: cells of the tables of settings, results and
    suites."""
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(comparison_page(found, rows), "utf-8")
    return file


def comparison_page(found: Mapping[str, Any], rows: Mapping[str, Any]) -> str:
    names = [f"{letter}: {run['name']}" for letter, run in found["runs"].items()]
    tones = list(zip(names, cycle(TONES), strict=False))
    charts = []
    for metric, title in (("val_loss", "Validation loss"), ("train_loss", "Training loss")):
        series = [
            Series(name, [(x / 1e6, y) for x, y in curve[metric]], tone, dots=metric == "val_loss")
            for (name, tone), curve in zip(tones, found["curves"], strict=True)
            if curve[metric]
        ]
        if series:
            drawn = partial(lines, series, x_label="million tokens", y_label="nats per token")
            charts.append((title, drawn))
    values = {
        "runs": [(letter, run["name"], run["run_id"]) for letter, run in found["runs"].items()],
        "letters": list(found["runs"]),
        "settings": rows["settings"],
        "results": rows["results"],
        "suites": rows["suites"],
        "refused": rows["refused"],
        "differences": _differences(found["differences"], names),
        "charts": charts,
        "legend": [(f"line {tone}", name) for name, tone in tones],
    }
    section = Section("runs_compared", "Comparison", "", values)
    return page("Runs compared", f"{len(names)} runs", [], None, [section], "Comparison")


def _differences(differences: Sequence[Mapping[str, Any] | None], names: Sequence[str]) -> Any:
    marks = [
        Mark(
            name,
            one["value"],
            f"{one['value']:+.4f}",
            f"{name}: {one['value']:+.4f}, {one['documents']} documents",
            low=one["low"],
            high=one["high"],
        )
        for name, one in zip(names, differences, strict=True)
        if one is not None and one["low"] is not None and one["low"] < one["high"]
    ]
    zero = [Reference("no difference", 0.0)]
    return partial(forest, marks, zero, "bits per byte") if marks else None
