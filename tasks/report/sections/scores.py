"""Shows how documents score by models of good text, how far the models are to be trusted, and whom
a cut would lose."""

from __future__ import annotations

from functools import partial
from typing import Any

from markupsafe import Markup

from tasks.corpus.score_cuts import BUCKETS, NO_BUCKET
from tasks.corpus.tally import OTHER
from tasks.report.charts import Chart, Mark, Series, bars, histogram, lines
from tasks.report.markup import code, foreign
from tasks.report.page import Section
from tasks.report.quantities import (
    NOT_MEASURED,
    Facts,
    count,
    fixed,
    number,
    plural,
    share,
    significant,
    span,
)
from tasks.report.run import Run

DIMENSIONS = ("register", "language", "source")
LARGEST = 12
KEPT = ("kept_0.1", "kept_0.25", "kept_0.5")


def scores_section(run: Run) -> Section | None:
    """None where no score is configured."""
    scores, quality = run.metrics("scores").items("scores"), run.metrics("quality")
    if not scores:
        return None
    names = {name for name, _ in scores}
    rules = [row for row in quality.rows("rules") if row.text("feature") in names]
    cutting = [row for row in rules if row.value("drops") is True]
    finding = f"{plural(len(scores), 'score')} of models of good text. "
    if cutting:
        removed = sum(_removed(quality, row.text("name") or "") for row in cutting)
        finding += (
            f"By {plural(len(cutting), 'limit')} on them {plural(removed, 'document')} would go,"
            " whatever other rules say of them."
        )
    else:
        finding += "No limit stands on them: they are measured and drop nothing."
    buckets = Facts(quality.group("buckets"))
    values = {
        "scores": [_score(name, facts) for name, facts in scores],
        "removed": [_removed_table(quality, row) for row in cutting],
        "bucket_columns": ["language", *BUCKETS, "none", "head ends", "middle ends"],
        "bucket_score": buckets.text("score") or NOT_MEASURED,
        "buckets": _buckets(buckets),
    }
    return Section("scores", "Scores", finding, values)


def _score(name: str, facts: Facts) -> dict[str, Any]:
    return {
        "name": name,
        "kind": facts.text("kind") or "score",
        "best": facts.text("best") or "?",
        "summary": _summary(facts),
        "distribution": _distribution(facts),
        "calibration": _calibration(facts),
        "by_register": _kept_by_register(facts),
        "tables": {dimension: _kept(facts, dimension) for dimension in DIMENSIONS},
    }


def _summary(facts: Facts) -> list[tuple[str, str]]:
    training = Facts(facts.group("training"))
    scored = f"{count(facts.number('scored'))}, {count(facts.number('unscored'))} without"
    median = significant(facts.number("quantiles", "0.5"))
    rows = [("documents with the score", scored), ("median", median)]
    if facts.text("kind") == "classifier" and training.number("positives") is not None:
        learnt = (plural(training.number(f"{kind}s"), kind) for kind in ("positive", "negative"))
        rows.append(("learnt from", ", ".join(learnt)))
        auc, low, high = Facts(training.group("auc")).each("value", "low", "high")
        interval = f" ({span(low, high)})" if low is not None and high is not None else ""
        rows.append(("area under the ROC curve, held out", f"{fixed(auc)}{interval}"))
    for language, held_out in training.items("held_out")[:LARGEST]:
        reference = training.number("languages", language, "bytes")
        ngrams = plural(held_out.number("ngrams"), "n-gram")
        perplexity = significant(held_out.number("perplexity"))
        what = foreign(language or "all") + ": perplexity of held-out reference"
        rows.append((what, f"{perplexity}, {ngrams} of {count(reference)} bytes"))
    return rows


def _distribution(facts: Facts) -> Chart | None:
    edges, counts = (facts.numbers("histogram", key) for key in ("edges", "counts"))
    if len(edges) != len(counts) + 1 or not any(counts):
        return None
    return partial(histogram, edges, counts, x_label="score", noun="documents")


def _calibration(facts: Facts) -> Chart | None:
    bins = facts.rows("training", "calibration")
    pairs = [row.each("mean_score", "positive_frac") for row in bins]
    points = [(x, y) for x, y in pairs if x is not None and y is not None]
    if len(points) < 2:
        return None
    ideal = Series("calibrated", [(0.0, 0.0), (1.0, 1.0)], "b")
    series = [ideal, Series("held out", points, dots=True)]
    return partial(lines, series, x_label="score", y_label="positives", from_zero=True)


def _kept_by_register(facts: Facts) -> Chart | None:
    marks = []
    for label, row in facts.largest_first("by", "register", by=["scored"]):
        scored, kept = row.number("scored"), row.number("kept_0.25")
        if scored and kept is not None and label != OTHER:
            shown = f"{share(kept, scored)} of {count(scored)}"
            title = f"{label}: {shown} scored documents kept"
            marks.append(Mark(label, kept, shown, title, whole=scored))
    return partial(bars, marks[:LARGEST]) if len(marks) > 1 else None


def _kept(facts: Facts, dimension: str) -> list[tuple[Any, ...]]:
    rows = []
    for label, row in facts.largest_first("by", dimension):
        scored = row.number("scored")
        kept = [share(row.number(column), scored) if scored else "–" for column in KEPT]
        rows.append((foreign(label), count(row.number("documents")), count(scored), *kept))
    return rows


def _buckets(buckets: Facts) -> list[tuple[Any, ...]]:
    """How many documents of each language are in its head, middle and tail, and where they part."""
    counted = [
        (label, [row.number(bucket, "documents") or 0 for bucket in (*BUCKETS, NO_BUCKET)])
        for label, row in buckets.items("by_language")
    ]
    counted.sort(key=lambda one: (-sum(one[1]), one[0]))
    rows = []
    for label, counts in counted[:LARGEST]:
        cuts = [significant(number(cut)) for cut in buckets.sequence("cuts", label)] or ["–", "–"]
        rows.append((foreign(label), *map(count, counts), *cuts))
    return rows


def _removed(quality: Facts, rule: str) -> float:
    tables = quality.items("score_rules", rule, "language")
    return sum(row.number("removed") or 0 for _, row in tables)


def _removed_table(quality: Facts, rule: Facts) -> dict[str, Any]:
    name = rule.text("name") or ""
    bound, cuts = significant(rule.number("threshold")), rule.items("cuts")
    if rule.number("threshold") is None and cuts:
        bound = f"{plural(len(cuts), 'cut')} by language"
    rows = []
    for dimension in DIMENSIONS:
        found = quality.largest_first("score_rules", name, dimension, by=["removed"])
        for label, row in found[:LARGEST]:
            removed = row.number("removed")
            of_its = share(removed, row.number("documents"))
            rows.append((dimension, foreign(label), count(removed), of_its))
    title = Markup("What {} ({}) removes, by whom it meets").format(code(name), bound)
    return {"title": title, "rows": rows}
