"""Tests whether the new documents of a night are like those of the night before.

Numbers are compared by the two-sample Kolmogorov-Smirnov test, labels by the chi-square test of
independence. Labels with an expected count below five are joined. p-values are adjusted
over all tests of a night (Holm, 1979). A measure drifts where its adjusted p-value is below `p` and
its effect is at least `effect`: a large sample makes any difference significant, a small one any
effect large. The effect is the largest distance between the cumulative distributions, or between
the shares of labels the total variation; both are 0 for equal and 1 for disjoint distributions, and
do not depend on how many documents there are.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from llm_core.config import check_bounds

LEAST_EXPECTED = 5.0
REST = "(rest)"
MOST_SHARES = 5


@dataclass(frozen=True)
class DriftConfig:
    """What is tested for drift, and what counts as drift."""

    sample_documents: int = 5000
    """Most documents on each side of a test."""
    least_documents: int = 50
    """With fewer new documents nothing is tested."""
    p: float = 0.001
    """Drift needs a p-value below this, over all tests of a run (Holm, 1979)."""
    effect: float = 0.1
    """Drift needs an effect of at least this: the largest distance of two cumulative distributions,
    or the share of documents whose label would have to change."""

    def __post_init__(self) -> None:
        check_bounds(self, sample_documents=(100, 1_000_000), least_documents=(20, 1_000_000))
        check_bounds(self, p=(1e-12, 0.5), effect=(0.0, 1.0))


def compare_distributions(
    new: Mapping[str, Sequence[Any]], before: Mapping[str, Sequence[Any]], config: DriftConfig
) -> list[dict[str, Any]]:
    """One row per measure that both have, largest effect first; JSON-able.

    new, before: {measure: its values, of documents}: numbers as an array, NaN where there is none,
    or labels as a list of texts.
    """
    rows = [
        {"measure": name, **_compare(new[name], before[name])} for name in new if name in before
    ]
    order = sorted(range(len(rows)), key=lambda i: float(rows[i]["p"]))
    worst = 0.0
    for place, i in enumerate(order):
        worst = max(worst, min(1.0, float(rows[i]["p"]) * (len(rows) - place)))
        rows[i]["p_adjusted"] = worst
        rows[i]["drifts"] = worst < config.p and rows[i]["effect"] >= config.effect
    return sorted(rows, key=lambda row: (-row["drifts"], -row["effect"], row["measure"]))


def _compare(new: Sequence[Any], before: Sequence[Any]) -> dict[str, Any]:
    if isinstance(new, np.ndarray) and isinstance(before, np.ndarray):
        return _compare_numbers(new[np.isfinite(new)], before[np.isfinite(before)])
    return _compare_labels(Counter(new), Counter(before))


def _compare_numbers(new: np.ndarray, before: np.ndarray) -> dict[str, Any]:
    statistic, p = 0.0, 1.0
    if len(new) == len(before) == 1:  # the asymptotic distribution begins with three values
        statistic = float(new[0] != before[0])
    elif len(new) and len(before):
        from scipy.stats import ks_2samp  # a second, which runs without drift do without

        found = ks_2samp(new, before, method="asymp")
        statistic, p = float(found.statistic), float(found.pvalue)
    sides = _quantiles(new), _quantiles(before)
    return _found("Kolmogorov-Smirnov", statistic, p, statistic, sides)


def _found(
    test: str, statistic: float, p: float, effect: float, sides: tuple[Any, Any]
) -> dict[str, Any]:
    new, before = sides
    return {
        "test": test,
        "statistic": statistic,
        "p": p,
        "effect": effect,
        "new": new,
        "before": before,
    }


def _quantiles(values: np.ndarray) -> dict[str, float]:
    if not len(values):
        return {}
    named = zip(("p10", "p50", "p90"), np.quantile(values, (0.1, 0.5, 0.9)), strict=True)
    return {name: float(value) for name, value in named}


def _compare_labels(new: Counter[str], before: Counter[str]) -> dict[str, Any]:
    num_new, num_before = new.total(), before.total()
    total = new + before
    statistic, p, effect = 0.0, 1.0, 0.0
    if num_new and num_before:
        apart = (abs(new[k] / num_new - before[k] / num_before) for k in total)
        effect = min(1.0, 0.5 * math.fsum(apart))  # shares are rounded
        smaller = min(num_new, num_before) / (num_new + num_before)
        kept = [k for k, n in total.items() if n * smaller >= LEAST_EXPECTED]
        counts = [[side[k] for k in kept] for side in (new, before)]
        rest = [num_new - sum(counts[0]), num_before - sum(counts[1])]
        if sum(rest):
            counts = [[*row, more] for row, more in zip(counts, rest, strict=True)]
        if len(counts[0]) > 1:
            from scipy.stats import chi2_contingency

            found = chi2_contingency(np.array(counts), correction=False)
            statistic, p = float(found.statistic), float(found.pvalue)
    return _found("chi-square", statistic, p, effect, (_shares(new), _shares(before)))


def _shares(counts: Counter[str]) -> dict[str, float]:
    """Shares of the most frequent labels, and of all others together."""
    total = counts.total()
    most = sorted(counts.items(), key=lambda item: (-item[1], item[0]))[:MOST_SHARES]
    shares = {label: count / total for label, count in most}
    rest = 1.0 - sum(shares.values())
    return shares | ({REST: rest} if len(counts) > MOST_SHARES else {})
