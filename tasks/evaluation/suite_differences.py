"""Compares two evaluations on the same items of the same suites.

Each suite is compared by the first metric of single items that it has. The interval is that of the
mean difference, items of a cluster drawn together. The p-value is McNemar's exact one, where a
cluster is better or worse as a whole, corrected by Holm over the suites. A suite whose items or
prompts differ is refused, with what differs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from tasks.corpus.statistics import cluster_sums, holm, mcnemar, ratio_bootstrap
from tasks.evaluation.suite_results import Row, item_scores, read_rows
from tasks.runtime.artifact import Artifact

SIGNIFICANT = 0.05
ROUND_DIGITS = 9
"""Of differences of a cluster."""
MUST_AGREE = ("digest", "shots", "asked")


def suite_differences(first: Artifact, other: Artifact) -> dict[str, dict[str, Any]]:
    """{suite: what differs}, of suites that both have scored: other minus first."""
    known = [each.metrics.get("suites", {}) for each in (first, other)]
    if not known[0].keys() & known[1].keys():
        return {}
    return differences(*known, *(read_rows(each) for each in (first, other)))


def differences(
    first: Mapping[str, Any],
    other: Mapping[str, Any],
    first_rows: Mapping[str, Sequence[Row]],
    other_rows: Mapping[str, Sequence[Row]],
) -> dict[str, dict[str, Any]]:
    """The same of {suite: its figures} and {suite: its rows} of two models."""
    shared = [name for name in first if name in other]
    found = {
        name: _difference(first[name], other[name], first_rows[name], other_rows[name])
        for name in shared
    }
    tested = [name for name in shared if "p_value" in found[name]]
    for name, value in zip(tested, holm([found[n]["p_value"] for n in tested]), strict=True):
        found[name]["p_value_of_all"] = value
        found[name]["verdict"] = (
            "differs" if value < SIGNIFICANT else "no difference seen at this number of items"
        )
    return found


def _difference(
    first: Mapping[str, Any],
    other: Mapping[str, Any],
    first_rows: Sequence[Row],
    other_rows: Sequence[Row],
) -> dict[str, Any]:
    differing = [name for name in MUST_AGREE if first[name] != other[name]]
    pairs = [[(r["item"], r["prompt_digest"]) for r in rows] for rows in (first_rows, other_rows)]
    if not differing and pairs[0] != pairs[1]:
        differing = ["items" if len(pairs[0]) != len(pairs[1]) else "prompts"]
    if differing:
        return {"refused": f"not compared: {', '.join(differing)} differ"}
    scores = [item_scores(rows, first["asked"]) for rows in (first_rows, other_rows)]
    if not scores[0]:
        return {"refused": "not compared: no metric of single items"}
    metric = first["headline"] if first["headline"] in scores[0] else next(iter(scores[0]))
    gains, sizes = cluster_sums(
        scores[1][metric] - scores[0][metric], [row["cluster"] for row in first_rows]
    )
    interval = ratio_bootstrap(gains, sizes, first["bootstrap_samples"], seed=0)
    return {
        "metric": metric,
        "items": len(first_rows),
        "value": interval.value,
        "low": interval.low,
        "high": interval.high,
        # Shares of a credit add up to zero only up to rounding.
        "p_value": mcnemar(np.zeros(len(gains)), gains.round(ROUND_DIGITS)),
    }
