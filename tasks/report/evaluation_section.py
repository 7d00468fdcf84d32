"""How good the model is: bits per byte with intervals against baselines, by source and language,
and what it writes."""

from __future__ import annotations

from collections.abc import Sequence

from tasks.report.charts import Estimate, Reference, forest
from tasks.report.markup import Markup, foreign, tag
from tasks.report.page import Section, absent, figure, folded, ledger, legend, table
from tasks.report.quantities import NOT_MEASURED, Facts, count, fixed, plural, size, span
from tasks.report.run import Run, interval_text

LARGEST = 20
BASELINES = (("bigram", "r1"), ("unigram", "r2"))
"""Baseline, and the class of its line."""
SMALL = (("point small", "model, too few documents for a sound interval"),)


def evaluation_section(run: Run) -> Section:
    evaluate = run.metrics("evaluate")
    documents = evaluate.number("val_bpb", "num_documents")
    finding: list[object] = [
        f"{fixed(evaluate.number('val_bpb', 'value'))} bits per byte on"
        f" {plural(documents, 'held-out document')}"
    ]
    verdicts = [verdict for name, _ in BASELINES if (verdict := run.against_baseline(name))]
    finding.append(f": {'; '.join(verdicts)}." if verdicts else ".")
    measured = evaluate.number("val_bpb", "value") is not None
    if not measured:
        finding = ["How well the model predicts unseen text was not measured in this run."]
    pieces: list[Markup | None] = [
        _eval_table(run, evaluate) if measured else absent("Bits per byte", "The evaluation")
    ]
    pieces.extend(_by_name(run, evaluate, "by_source", "source"))
    pieces.extend(_by_name(run, evaluate, "by_language", "language"))
    pieces.append(_policy(evaluate))
    return Section("evaluation", "Evaluation", finding, pieces)


def samples_section(run: Run) -> Section:
    samples = [s for s in run.metrics("evaluate").rows("samples") if s.text("text") is not None]
    if not samples:
        return Section("samples", "Samples", "No sample generations were recorded in this run.", [])
    finding = (
        f"{plural(len(samples), 'continuation')} as the model wrote them, personal data replaced,"
        " not selected for quality."
    )
    shown = []
    for sample in samples:
        prompt, text = sample.text("prompt") or "", sample.text("text") or ""
        rest = text[len(prompt) :] if prompt and text.startswith(prompt) else text
        shown.append(tag("div", tag("p", tag("b", prompt), rest, dir="auto"), class_="sample"))
    note = tag(
        "p",
        "Bold: the prompt. What follows was generated; whatever it claims is made up.",
        class_="note",
    )
    return Section("samples", "Samples", finding, [*shown, note])


def references_of(evaluate: Facts) -> list[Reference]:
    """The baselines as lines to compare with."""
    found = [(name, evaluate.number(f"{name}_bpb"), tone) for name, tone in BASELINES]
    return [
        Reference(f"{name} baseline", value, tone)
        for name, value, tone in found
        if value is not None
    ]


def reference_legend(references: Sequence[Reference], *first: tuple[str, str]) -> Markup:
    return legend(*first, *((r.tone, f"{r.name} {fixed(r.value)}") for r in references))


def _eval_table(run: Run, evaluate: Facts) -> Markup:
    whole, gain = Facts(evaluate.group("val_bpb")), Facts(evaluate.group("gain_over_best_baseline"))
    value = whole.number("value") or 0.0
    rows = [
        (
            "model",
            fixed(whole.number("value")),
            span(whole.number("low"), whole.number("high")),
            "1",
        )
    ]
    for name, _ in BASELINES:
        baseline, interval = (
            evaluate.number(f"{name}_bpb"),
            Facts(evaluate.group("baselines", name)),
        )
        low, high = interval.number("low"), interval.number("high")
        ratio = f"{baseline / value:.2f}" if baseline is not None and value else NOT_MEASURED
        rows.append(
            (
                f"{name} baseline",
                fixed(baseline),
                span(low, high) if low is not None else "–",
                ratio,
            )
        )
    if gain.number("value") is not None:
        best = gain.text("baseline") or "best"
        rows.append(
            (
                f"gain over the {best}",
                fixed(gain.number("value")),
                span(gain.number("low"), gain.number("high")),
                "–",
            )
        )
    note = (
        f"Bits per byte over {plural(whole.number('num_documents'), 'validation document')}"
        f" ({size(whole.number('num_bytes'))}): the negative log₂ likelihoods of all tokens,"
        f" summed, per UTF-8 byte of text. Comparable between tokenizers. The {run.interval_name}"
        " says how far it would move with other documents of this kind; that of the gain compares"
        " both models on the same documents, so it is the one to judge by. Baselines are fitted to"
        " the training tokens: unigram knows how often each token occurs, bigram which follows"
        " which."
    )
    return table(
        "Bits per byte", ("", "bits per byte", run.interval_name, "times the model"), rows, note
    )


def _by_name(run: Run, evaluate: Facts, group: str, what: str) -> list[Markup]:
    found = [(name, f) for name, f in evaluate.items(group) if f.number("value") is not None]
    if not found:
        return [absent(f"Bits per byte by {what}", f"The evaluation by {what}")]
    ordered = sorted(found, key=lambda item: (-(item[1].number("bytes") or 0), item[0]))
    marks, rows, any_small = [], [], False
    for name, f in ordered:
        value, low, high = f.number("value") or 0.0, f.number("low"), f.number("high")
        over = f"{plural(f.number('documents'), 'document')}, {size(f.number('bytes'))}"
        title = f"{name}: {interval_text(f)} bits per byte over {over}"
        tone = "a small" if f.value("small") is True else "a"
        marks.append(Estimate(name, value, low, high, interval_text(f), title, tone))
        any_small |= tone != "a"
        rows.append(
            (
                foreign(name),
                fixed(value),
                span(low, high),
                count(f.number("documents")),
                size(f.number("bytes")),
            )
        )
    references = references_of(evaluate)
    more = (
        f" The {LARGEST} largest of {len(marks)}; the table has all."
        if len(marks) > LARGEST
        else ""
    )
    note = (
        f"Point: bits per byte on held-out documents of one {what}. Whisker: {run.interval_name},"
        " if there are enough. Largest first. The baselines are those of the whole validation"
        f" set.{more}"
    )
    chart = figure(
        f"Bits per byte by {what}",
        lambda width: forest(marks[:LARGEST], references, "bits per byte", width),
        note,
        reference_legend(
            references,
            ("point", "model"),
            *(SMALL if any_small else ()),
        ),
    )
    columns = (what, "bits per byte", run.interval_name, "documents", "bytes")
    return [chart, folded(f"{plural(len(rows), 'row')} by {what}", table(None, columns, rows))]


def _policy(evaluate: Facts) -> Markup | None:
    """How the numbers were made, in the words of the stage."""
    policy = evaluate.group("policy")
    entries: list[tuple[str, object, str]] = [
        (name.replace("_", " "), foreign(value), "") for name, value in policy.items()
    ]
    extra = [
        (
            "bits per token",
            evaluate.number("bits_per_token"),
            "of the model, over the scored tokens",
        ),
        (
            "bits of an end of text",
            evaluate.number("eos_bits_per_document"),
            "mean per document; in no other figure",
        ),
    ]
    entries += [
        (name, fixed(value), meaning) for name, value, meaning in extra if value is not None
    ]
    return folded("How this was measured", ledger(entries)) if entries else None
