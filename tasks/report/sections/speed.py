"""Shows how fast the model writes, with and without the key-value cache; no speed is shown unless
both give the same answer."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from tasks.report.charts import Chart, Mark, bars
from tasks.report.markup import foreign
from tasks.report.page import Section
from tasks.report.quantities import (
    NOT_MEASURED,
    Facts,
    compact,
    count,
    percent,
    plural,
    significant,
)
from tasks.report.run import Run
from tasks.report.sections.loads import load_values


def speed_section(run: Run) -> Section:
    bench = run.metrics("bench")
    all_cells = bench.rows("cells")
    cells = [cell for cell in all_cells if _is_headline(cell)]
    headline = f"{compact(bench.number('decode_tok_s'))} tokens per second"
    gains = _gains(cells)
    finding = f"{headline} with the key-value cache"
    finding += f", {_times(min(gains), max(gains))} as fast as without it." if gains else "."
    if run.speed_withheld:
        finding = f"Speed is withheld: {run.speed_withheld}. A fast wrong answer is not a result."
    passed = bench.value("correctness", "passed")
    verdict = NOT_MEASURED if not isinstance(passed, bool) else "passed" if passed else "failed"
    environment = Facts(bench.group("environment"))
    dtype, threads = environment.text("dtype"), environment.number("threads")
    arithmetic = [dtype, plural(threads, "thread") if threads is not None else None]
    values = {
        "withheld": bool(run.speed_withheld),
        "bench": bench,
        "verdict": verdict,
        "headline_cell": headline_cell(bench),
        "arithmetic": " · ".join(a for a in arithmetic if a) or NOT_MEASURED,
        "device": environment.text("device")
        or run.record("bench").text("identity", "device")
        or NOT_MEASURED,
        "chart": _chart(cells),
        "spread": _spread_name(cells),
        "cells": [_row(cell) for cell in all_cells],
        "num_skipped": sum(cell.number("batch") is not None for cell in bench.rows("skipped")),
        "left_out": [
            (foreign(cell.text("weights") or f"load {cell.text('load')}"), foreign(reason), "")
            for cell in bench.rows("skipped")
            if cell.number("batch") is None and (reason := cell.text("reason"))
        ],
        "definitions": [
            (name, foreign(text), "")
            for kind in ("definitions", "load_definitions")
            for name, text in sorted(bench.group(kind).items())
        ],
        **load_values(bench),
    }
    return Section("speed", "Decode speed", finding, values)


def headline_cell(bench: Facts) -> str:
    """Where the headline speed was measured, as far as the stage says so."""
    batch, prompt = Facts(bench.group("headline")).each("batch", "prompt_tokens")
    known = batch is not None and prompt is not None
    return f"; batch {count(batch)}, {count(prompt)} prompt tokens" if known else ""


def _is_headline(cell: Facts) -> bool:
    """Whether a cell has the model's own weights, and a static cache or none."""
    weights, cache = cell.text("weights") or "model", cell.text("cache") or "static"
    return (weights, cache) == ("model", "static")


def _cell_name(cell: Facts) -> str:
    batch, prompt, new = map(count, cell.each("batch", "prompt_tokens", "new_tokens"))
    return f"batch {batch}, {prompt} + {new}"


def _gains(cells: Sequence[Facts]) -> list[float]:
    """Cached over uncached decode tokens/s of the cells measured both ways."""
    medians: dict[str, dict[str, float]] = {}
    for cell in cells:
        if median := cell.number("decode_tok_s", "median"):
            medians.setdefault(_cell_name(cell), {})[cell.text("mode") or ""] = median
    both = [m for m in medians.values() if "cached" in m and "uncached" in m]
    return [m["cached"] / m["uncached"] for m in both]


def _times(low: float, high: float) -> str:
    low_text, high_text = significant(low, 2), significant(high, 2)
    return f"{low_text} times" if low_text == high_text else f"{low_text} to {high_text} times"


def _chart(cells: Sequence[Facts]) -> Chart | None:
    marks = []
    for cell in cells:
        median, (low, high) = cell.number("decode_tok_s", "median"), _ends(cell)
        if median is None:
            continue
        mode, name, shown = cell.text("mode") or "?", _cell_name(cell), significant(median)
        title = f"{mode}, {name} tokens: {shown} tokens/s, {_spread_name([cell])} {_spread(cell)}"
        tone, label = "a" if mode == "cached" else "b", f"{name} · {mode}"
        marks.append(Mark(label, median, shown, title, low=low, high=high, tone=tone))
    return partial(bars, marks) if marks else None


def _row(cell: Facts) -> tuple[Any, ...]:
    prefill_s = cell.number("prefill_s", "median")
    return (
        f"{cell.text('mode') or '–'}{_kind(cell)}",
        *map(count, cell.each("batch", "prompt_tokens", "new_tokens")),
        significant(cell.number("decode_tok_s", "median")),
        _spread(cell),
        NOT_MEASURED if prefill_s is None else f"{significant(1000 * prefill_s)} ms",
        percent(cell.number("mbu")),
        percent(cell.number("mfu")),
        cell.text("bound") or "–",
        count(cell.number("decode_tok_s", "repeats")),
    )


def _kind(cell: Facts) -> str:
    """Cache and weights of a row, where several were measured."""
    named = [name for name in (cell.text("cache"), cell.text("weights")) if name]
    return f", {', '.join(named)}" if named else ""


def _spread(cell: Facts) -> str:
    low, high = _ends(cell)
    known = low is not None and high is not None
    return f"{significant(low)}–{significant(high)}" if known else NOT_MEASURED


def _ends(cell: Facts) -> tuple[float | None, float | None]:
    """What a whisker spans: percentiles where there are enough repeats for them, else the
    extremes."""
    speed = Facts(cell.group("decode_tok_s"))
    names = ("p05", "p95") if speed.number("p05") is not None else ("min", "max")
    return speed.number(names[0]), speed.number(names[1])


def _spread_name(cells: Sequence[Facts]) -> str:
    are_percentiles = [cell.number("decode_tok_s", "p05") is not None for cell in cells]
    return "5th to 95th percentile" if all(are_percentiles) else "smallest to largest"
