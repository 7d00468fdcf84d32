"""How documents score by models of good text, how far the models are to be trusted, and whom a cut
would lose."""

from __future__ import annotations

from tasks.corpus.score_cuts import BUCKETS, NO_BUCKET
from tasks.corpus.tally import OTHER
from tasks.report.charts import Bar, Series, bars, histogram, lines
from tasks.report.markup import Markup, foreign
from tasks.report.page import Section, absent, code, figure, folded, legend, pair, table
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

DIMENSIONS = {"register": "register", "language": "language", "source": "source"}
LARGEST = 12
KEPT = ("kept_0.1", "kept_0.25", "kept_0.5")


def scores_section(run: Run) -> Section | None:
    """None where no score is configured."""
    scores = run.metrics("scores").items("scores")
    if not scores:
        return None
    rules = [
        row
        for row in run.metrics("quality").rows("rules")
        if row.text("feature") in {name for name, _ in scores}
    ]
    cutting = [row for row in rules if row.value("drops") is True]
    finding: list[object] = [f"{plural(len(scores), 'score')} of models of good text. "]
    if cutting:
        removed = sum(_removed(run, row.text("name") or "") or 0 for row in cutting)
        limits = plural(len(cutting), "limit")
        finding.append(
            f"By {limits} on them {plural(removed, 'document')} would go, whatever other rules say"
            " of them."
        )
    else:
        finding.append("No limit stands on them: they are measured and drop nothing.")
    pieces: list[Markup | None] = []
    for name, facts in scores:
        pieces += [
            _summary(name, facts),
            pair(_distribution(name, facts), _calibration(name, facts)),
            _kept_by_register(name, facts),
        ]
        pieces += [folded(["What cuts on ", code(name), " would keep"], *_tables(facts))]
    pieces += [_removed_table(run, row) for row in cutting]
    pieces.append(_buckets(Facts(run.metrics("quality").group("buckets"))))
    return Section("scores", "Scores", finding, pieces)


def _summary(name: str, facts: Facts) -> Markup:
    training = Facts(facts.group("training"))
    auc = Facts(training.group("auc"))
    low, high = auc.number("low"), auc.number("high")
    rows: list[tuple[object, object]] = [
        (
            "documents with the score",
            f"{count(facts.number('scored'))}, {count(facts.number('unscored'))} without",
        ),
        ("median", significant(facts.number("quantiles", "0.5"))),
    ]
    if facts.text("kind") == "classifier" and training.number("positives") is not None:
        interval = f" ({span(low, high)})" if low is not None and high is not None else ""
        rows.append(
            (
                "learnt from",
                (
                    f"{plural(training.number('positives'), 'positive')},"
                    f" {plural(training.number('negatives'), 'negative')}"
                ),
            )
        )
        rows.append(
            ("area under the ROC curve, held out", f"{fixed(auc.number('value'))}{interval}")
        )
    for language, held_out in training.items("held_out")[:LARGEST]:
        reference = training.number("languages", language, "bytes")
        ngrams = plural(held_out.number("ngrams"), "n-gram")
        shown = (
            f"{significant(held_out.number('perplexity'))}, {ngrams} of {count(reference)} bytes"
        )
        rows.append(([foreign(language or "all"), ": perplexity of held-out reference"], shown))
    note = (
        "Each text is scored by a model that has not read it: held-out numbers are those of all"
        " training texts."
    )
    return table(
        f"{name}, {facts.text('kind') or 'score'}: {facts.text('best') or '?'} is good",
        ("measure", "value"),
        rows,
        note,
        left=2,
    )


def _distribution(name: str, facts: Facts) -> Markup:
    edges = [n for v in facts.sequence("histogram", "edges") if (n := number(v)) is not None]
    counts = [n for v in facts.sequence("histogram", "counts") if (n := number(v)) is not None]
    if len(edges) != len(counts) + 1 or not any(counts):
        return absent(f"Distribution of {name}", "The distribution")
    note = "Documents by score; the last half percent on each side stands in the outer bins."
    return figure(
        f"Distribution of {name}",
        lambda width: histogram(edges, counts, width, x_label="score", noun="documents"),
        note,
        half=True,
    )


def _calibration(name: str, facts: Facts) -> Markup | None:
    points = [
        (score, frac)
        for row in facts.rows("training", "calibration")
        if (score := row.number("mean_score")) is not None
        and (frac := row.number("positive_frac")) is not None
    ]
    if len(points) < 2:
        return None
    ideal = Series("calibrated", [(0.0, 0.0), (1.0, 1.0)], "b")
    found = Series("held out", points, dots=True)
    note = (
        "Share of positives among held-out texts, by their score in ten bins. On the straight line"
        " a score is a probability."
    )
    return figure(
        f"Calibration of {name}",
        lambda width: lines(
            [ideal, found], width, x_label="score", y_label="positives", from_zero=True
        ),
        note,
        half=True,
    )


def _kept_by_register(name: str, facts: Facts) -> Markup | None:
    marks = []
    for label, row in facts.items("by", "register"):
        scored, kept = row.number("scored"), row.number("kept_0.25")
        if scored and kept is not None and label != OTHER:
            shown = f"{share(kept, scored)} of {count(scored)}"
            marks.append(
                (
                    scored,
                    Bar(
                        label, kept, shown, f"{label}: {shown} scored documents kept", whole=scored
                    ),
                )
            )
    if len(marks) < 2:
        return None
    largest = [bar for _, bar in sorted(marks, key=lambda mark: -mark[0])[:LARGEST]]
    note = (
        "What a cut that keeps the best quarter would leave of each register. Classifiers are known"
        " to lose colloquial text."
    )
    return figure(
        f"Best quarter by {name}, by register",
        lambda width: bars(largest, width),
        note,
        legend(("a", "kept"), ("pale", "scored")),
    )


def _tables(facts: Facts) -> list[Markup]:
    tables = []
    for dimension, word in DIMENSIONS.items():
        rows = []
        ordered = sorted(
            facts.items("by", dimension),
            key=lambda item: (-(item[1].number("documents") or 0), item[0]),
        )
        for label, row in ordered:
            scored = row.number("scored")
            kept = [share(row.number(column), scored) if scored else "–" for column in KEPT]
            rows.append((foreign(label), count(row.number("documents")), count(scored), *kept))
        columns = (word, "documents", "scored", "best 10 %", "best 25 %", "best 50 %")
        tables.append(table(f"By {word}", columns, rows, "Shares are of scored documents."))
    return tables


def _buckets(buckets: Facts) -> Markup | None:
    """How many documents of each language are in its head, middle and tail, and where they part."""
    tables = buckets.items("by_language")
    if not tables:
        return None
    rows = []
    for label, row in sorted(tables, key=lambda item: (-sum(_bucket_counts(item[1])), item[0]))[
        :LARGEST
    ]:
        cuts = [significant(number(cut)) for cut in buckets.sequence("cuts", label)] or ["–", "–"]
        rows.append((foreign(label), *map(count, _bucket_counts(row)), *cuts))
    name = buckets.text("score") or NOT_MEASURED
    note = (
        "Documents read, before any rule. Each language is parted at its own values; documents"
        " without the score are in none."
    )
    columns = ("language", *BUCKETS, "none", "head ends", "middle ends")
    return table(f"Head, middle and tail by {name}", columns, rows, note)


def _bucket_counts(row: Facts) -> list[float]:
    return [row.number(bucket, "documents") or 0 for bucket in (*BUCKETS, NO_BUCKET)]


def _removed(run: Run, rule: str) -> float | None:
    tables = run.metrics("quality").items("score_rules", rule, "language")
    return sum(row.number("removed") or 0 for _, row in tables) if tables else None


def _removed_table(run: Run, rule: Facts) -> Markup:
    name = rule.text("name") or ""
    threshold, cuts = rule.number("threshold"), rule.items("cuts")
    bound = (
        significant(threshold)
        if threshold is not None
        else f"{plural(len(cuts), 'cut')} by language"
        if cuts
        else NOT_MEASURED
    )
    rows = []
    for dimension, word in DIMENSIONS.items():
        tables = run.metrics("quality").items("score_rules", name, dimension)
        for label, row in sorted(
            tables, key=lambda item: (-(item[1].number("removed") or 0), item[0])
        )[:LARGEST]:
            removed = row.number("removed")
            rows.append(
                (word, foreign(label), count(removed), share(removed, row.number("documents")))
            )
    heading = ["What ", code(name), f" ({bound}) removes, by whom it meets"]
    return folded(
        heading, table(None, ("by", "label", "removed", "of its documents"), rows, left=2)
    )
