"""Gives the figures of suites from their rows, so that whoever has the rows can rebuild them.

Credit of an item: 1 for the right choice, and 1/k where it is among k best ones. Choices compare by
log-probability (`acc`), by that per character, UTF-8 byte or token of the answer, and by that minus
the log-probability of the answer after `Answer:` alone (`acc_unconditional`). `centred` is
(acc − chance) / (1 − chance). Brier score: Σ (p − right)² over choices, p from a softmax over
log-probabilities. Calibration error: mean distance of confidence and credit over ten bins.

Of a suite of likelihoods: `bits_per_byte`, the mean over items of −log₂ p / UTF-8 bytes of the
answer (as in OLMo-core; less is better), and `greedy`, the share of answers whose every token is
the most probable one (lm-eval's `acc` of LAMBADA).

Intervals: Wilson for independent right-or-wrong items, else a bootstrap over clusters.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow.parquet as pq

from tasks.corpus.statistics import Interval, detectable_difference, mean_interval, subset_gain
from tasks.evaluation.suites import Suite
from tasks.evaluation.text_metrics import (
    CORPUS_METRICS,
    ITEM_METRICS,
    corpus_metric,
    is_repetitive,
)
from tasks.runtime.artifact import Artifact

ROWS_FILE = "items.parquet"
CONFIDENCE_BINS = 10

Row = Mapping[str, Any]

CHOICE_SCORES: Mapping[str, Callable[[Row], float]] = {
    "acc": lambda choice: choice["logprob"],
    "acc_chars": lambda choice: choice["logprob"] / choice["chars"],
    "acc_bytes": lambda choice: choice["logprob"] / choice["bytes"],
    "acc_tokens": lambda choice: choice["logprob"] / choice["tokens"],
    "acc_unconditional": lambda choice: choice["logprob"] - choice["unconditional"],
}
"""Metric → what the choices of an item compare by."""

LIKELIHOODS: Mapping[str, Callable[[Row], float]] = {
    "bits_per_byte": lambda choice: -choice["logprob"] / math.log(2) / choice["bytes"],
    "greedy": lambda choice: float(choice["is_greedy"]),
}
"""Metric → its value of the one answer of an item."""


def read_suites(evaluate: Artifact) -> dict[str, Any]:
    """The figures of an artifact once more, from its rows and what it says about its suites."""
    known, rows = evaluate.metrics["suites"], read_rows(evaluate)
    return {name: suite | figures_of(rows[name], suite) for name, suite in known.items()}


def read_rows(evaluate: Artifact, model: str = "") -> dict[str, list[Row]]:
    """{suite: its rows} of one model; the empty name is that of the run's own."""
    found: dict[str, list[Row]] = {}
    for row in pq.read_table(evaluate.file(ROWS_FILE), use_threads=False).to_pylist():
        # Rows from before there were others are all of the run's own model.
        if row.get("model", "") == model:
            found.setdefault(row["suite"], []).append(row)
    return found


def describe(suite: Suite, shots: int, bootstrap_samples: int) -> dict[str, Any]:
    """What a suite is, beside its figures."""
    file = suite.file
    return {
        "kind": file.kind,
        "form": file.form,
        "version": file.version,
        "digest": suite.digest,
        "licence": file.licence,
        "language": file.language,
        "shots": shots,
        "asked": list(file.asked),
        "headline": file.headline or file.asked[0],
        "bootstrap_samples": bootstrap_samples,
    }


def figures_of(rows: Sequence[Row], about: Mapping[str, Any]) -> dict[str, Any]:
    """The figures of a suite that `describe` has described."""
    names = ("kind", "asked", "headline", "language", "bootstrap_samples")
    return figures(rows, *(about[name] for name in names))


def figures(
    rows: Sequence[Row],
    kind: str,
    asked: Sequence[str],
    headline: str,
    language: str,
    bootstrap_samples: int,
) -> dict[str, Any]:
    """Every figure of one suite: `metrics` with intervals, counts, and what they can tell apart."""
    clusters = [row["cluster"] for row in rows]
    found = {
        "items": len(rows),
        "clusters": len(set(clusters)),
        "truncated": sum(row["is_truncated"] for row in rows),
    }
    by_item = item_scores(rows, asked)
    metrics: dict[str, Any] = {}
    for name, scores in by_item.items():
        interval = mean_interval(scores, clusters, bootstrap_samples, seed=0)
        metrics[name] = _numbers(interval)
    for name in asked:
        if name in CORPUS_METRICS:
            answers, references = ([row[key] for row in rows] for key in ("answer", "references"))
            samples = clusters, language, bootstrap_samples
            metrics[name] = corpus_metric(name, answers, references, *samples)
    found["metrics"] = metrics
    if by_item:
        metric = headline if headline in by_item else next(iter(by_item))
        is_seen = np.array([row.get("is_in_training", False) for row in rows])
        found["clean"] = _clean(metric, by_item[metric], is_seen, clusters, bootstrap_samples)
    if headline in by_item:
        found["detectable_difference"] = detectable_difference(by_item[headline], clusters)
    if kind == "likelihood":
        return found | {"merged_frac": _merged_frac(rows)}
    return found | (_of_choices(rows, metrics) if kind == "choices" else _of_answers(rows))


def _clean(
    metric: str,
    scores: np.ndarray,
    is_seen: np.ndarray,
    clusters: Sequence[str],
    bootstrap_samples: int,
) -> dict[str, Any]:
    """The score of the items that are not in the training data, and how it differs from that of
    all, both drawn together; None where no item is left."""
    found: dict[str, Any] = {"metric": metric, "items": int((~is_seen).sum())}
    if not found["items"]:
        return found | {"value": None, "low": None, "high": None, "difference": None}
    names = [name for name, seen in zip(clusters, is_seen, strict=True) if not seen]
    interval = mean_interval(scores[~is_seen], names, bootstrap_samples, seed=0)
    difference = subset_gain(scores, ~is_seen, clusters, bootstrap_samples, seed=0)
    return found | _numbers(interval) | {"difference": _numbers(difference)}


def _numbers(interval: Interval) -> dict[str, float | None]:
    return {"value": interval.value, "low": interval.low, "high": interval.high}


def item_scores(rows: Sequence[Row], asked: Sequence[str]) -> dict[str, np.ndarray]:
    """{metric: score of each item} of those metrics that single items have: from 0 to 1, but for
    bits."""
    found: dict[str, np.ndarray] = {}
    for name in asked:
        if name in CHOICE_SCORES:
            found[name] = np.array([_credit(row, CHOICE_SCORES[name]) for row in rows])
        elif name in LIKELIHOODS:
            found[name] = np.array([LIKELIHOODS[name](row["choices"][0]) for row in rows])
        elif name in ITEM_METRICS:
            compare = ITEM_METRICS[name]
            found[name] = np.array(
                [max(compare(row["answer"], right) for right in row["references"]) for row in rows]
            )
    return found


def _credit(row: Row, score: Callable[[Row], float]) -> float:
    scores = [score(choice) for choice in row["choices"]]
    best = max(scores)
    return 1 / scores.count(best) if scores[row["label"]] == best else 0.0


def _of_choices(rows: Sequence[Row], metrics: Mapping[str, Any]) -> dict[str, Any]:
    chance = math.fsum(1 / len(row["choices"]) for row in rows) / len(rows)
    brier, confidence, credit = [], [], []
    for row in rows:
        logprobs = np.array([choice["logprob"] for choice in row["choices"]])
        shares = np.exp(logprobs - logprobs.max())
        shares /= shares.sum()
        right = np.arange(len(shares)) == row["label"]
        brier.append(float(((shares - right) ** 2).sum()))
        confidence.append(float(shares.max()))
        credit.append(_credit(row, CHOICE_SCORES["acc"]))
    bins = np.minimum((np.array(confidence) * CONFIDENCE_BINS).astype(int), CONFIDENCE_BINS - 1)
    gaps = np.bincount(bins, np.array(confidence) - np.array(credit))
    return {
        "chance": chance,
        "centred": (metrics["acc"]["value"] - chance) / (1 - chance),
        "brier": math.fsum(brier) / len(rows),
        "calibration_error": float(np.abs(gaps).sum()) / len(rows),
        "merged_frac": _merged_frac(rows),
    }


def _merged_frac(rows: Sequence[Row]) -> float:
    """Share of items of which some answer shares a token with its prompt."""
    merged = [any(choice["is_merged"] for choice in row["choices"]) for row in rows]
    return sum(merged) / len(rows)


def _of_answers(rows: Sequence[Row]) -> dict[str, Any]:
    return {
        "empty_frac": sum(not row["answer"] for row in rows) / len(rows),
        "cut_off_frac": sum(row["is_cut_off"] for row in rows) / len(rows),
        "repetitive_frac": sum(is_repetitive(row["answer"]) for row in rows) / len(rows),
    }


def over_suites(suites: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Means over suites of choices: `macro_centred`, in which each suite counts alike, and
    `pooled_acc`, in which each item does. Empty without one."""
    chosen = [suite for suite in suites.values() if suite["kind"] == "choices"]
    if not chosen:
        return {}
    num_items = sum(suite["items"] for suite in chosen)
    right = math.fsum(suite["metrics"]["acc"]["value"] * suite["items"] for suite in chosen)
    return {
        "macro_centred": math.fsum(suite["centred"] for suite in chosen) / len(chosen),
        "pooled_acc": right / num_items,
    }


def for_tracking(suites: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, float]]:
    """{suite: {metric, metric_low, metric_high}}, the names of MLflow.

    Metrics of items that are not in the training data end in `_clean`, and their difference to all
    in `_clean_gain`; where none is in it there are no such metrics.
    """
    told = {}
    for name, suite in suites.items():
        measured = dict(suite["metrics"])
        if (clean := suite.get("clean")) and clean["items"] < suite["items"]:
            measured[f"{clean['metric']}_clean"] = clean
            measured[f"{clean['metric']}_clean_gain"] = clean["difference"] or {}
        told[name] = {
            metric + end: found[key]
            for metric, found in measured.items()
            for key, end in (("value", ""), ("low", "_low"), ("high", "_high"))
            if found.get(key) is not None
        }
    return told
