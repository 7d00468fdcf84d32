"""Shows a scaling law on a page: the runs against their fit, curves of equal work, and the best
model of a budget."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from itertools import cycle
from pathlib import Path
from typing import Any

from llm_core.planner.scaling_fit import ScalingFit
from llm_core.printing import percent
from tasks.report.charts import Series, lines
from tasks.report.page import Section, page
from tasks.report.quantities import compact

TONES = ("a", "b", "r1", "r2")
NUM_BUDGETS = 4
"""Curves of equal work, from the least to the most that a run took."""
MARGIN = 2.0
"""Times beyond the smallest and the largest model that curves go on."""
HIGHEST = 1.3
"""Times the least loss of a curve of equal work up to which it is drawn."""


def write_scaling(
    fit: ScalingFit, runs: Sequence[Sequence[str]], optima: Sequence[Sequence[str]], file: Path
) -> Path:
    """Write the page; the file it is in. runs, optima: rows of the tables."""
    file.parent.mkdir(parents=True, exist_ok=True)
    charts = [
        ("Loss against weights, for each number of tokens", *_by_tokens(fit)),
        ("Loss against weights, for equal work", *_by_work(fit)),
    ]
    values = {"charts": charts, "runs": runs, "optima": optima, "law": law_text(fit)}
    section = Section("scaling_page", "Scaling law", finding(fit), values)
    text = page("Scaling law", f"{len(fit.points)} runs", [], None, [section], "Sweep")
    file.write_text(text, "utf-8")
    return file


def law_text(fit: ScalingFit) -> str:
    law = fit.law
    return (
        f"L = {law.floor:.3f} + {law.weights_factor:.4g} / N^{law.weights_power:.3f}"
        f" + {law.tokens_factor:.4g} / D^{law.tokens_power:.3f}"
    )


def finding(fit: ScalingFit) -> str:
    """What the law says, in one sentence."""
    a = fit.exponent
    return (
        f"The best size grows as C^a, a = {a.value:.3f} (95 % {a.low:.3f} to {a.high:.3f}, over"
        f" {len(fit.draws):,} draws of the runs); the law is within"
        f" {percent(fit.largest_error, '.1')} of every run."
    )


Drawn = tuple[Callable[[int], Any], list[tuple[str, str]]]


def _by_tokens(fit: ScalingFit) -> Drawn:
    """Runs as points, the law as lines."""
    series, legend = [], []
    counts = sorted({point.num_tokens for point in fit.points})
    for tokens, tone in zip(counts, cycle(TONES), strict=False):
        name = f"{compact(tokens)} tokens"
        curve = [(n, fit.law.loss(n, tokens)) for n in _sizes(fit)]
        series.append(Series(f"law, {name}", curve, tone))
        series += [
            Series(f"run, {name}", [(point.num_weights, point.loss)], tone)
            for point in fit.points
            if point.num_tokens == tokens
        ]
        legend.append((f"line {tone}", name))
    return _chart(series), legend


def _by_work(fit: ScalingFit) -> Drawn:
    """A curve for each budget, and its lowest point."""
    series, legend = [], []
    least, most = (end(point.flops for point in fit.points) for end in (min, max))
    for step, tone in zip(range(NUM_BUDGETS), cycle(TONES), strict=False):
        flops = least * (most / least) ** (step / (NUM_BUDGETS - 1))
        name = f"{flops:.1e} FLOP"
        best = fit.optimum(flops)
        whole = [(n, fit.law.loss(n, flops / 6 / n)) for n in _sizes(fit, best.num_weights.value)]
        curve = [(n, loss) for n, loss in whole if loss < HIGHEST * best.loss.value]
        series += [
            Series(name, curve, tone),
            Series(f"best, {name}", [(best.num_weights.value, best.loss.value)], tone),
        ]
        legend.append((f"line {tone}", name))
    return _chart(series), legend


def _sizes(fit: ScalingFit, *others: float) -> list[float]:
    """From below the smallest model of the runs, and of others, to above the largest."""
    weights = [*(point.num_weights for point in fit.points), *others]
    low, high = min(weights), max(weights)
    low, high = math.log(low / MARGIN), math.log(high * MARGIN)
    return [math.exp(low + (high - low) * step / 40) for step in range(41)]


def _chart(series: Sequence[Series]) -> Callable[[int], Any]:
    return partial(lines, series, x_label="weights", y_label="nats per token", log=True)
