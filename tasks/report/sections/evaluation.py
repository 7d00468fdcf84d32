"""Shows how good the model is: bits per byte with intervals against baselines, by source and
language, and what it writes."""

from __future__ import annotations

from functools import partial
from typing import Any

from tasks.report.charts import Mark, Reference, forest
from tasks.report.markup import foreign
from tasks.report.page import Section
from tasks.report.quantities import (
    NOT_MEASURED,
    Facts,
    count,
    fixed,
    plural,
    significant,
    size,
    span,
)
from tasks.report.run import Run, interval_text
from tasks.report.sections.beside import beside_of, curves_of, formats_of
from tasks.report.sections.suites import suites_of

LARGEST = 20
BASELINES = (("bigram", "r1"), ("unigram", "r2"))
"""Baseline, and the class of its line."""


def evaluation_section(run: Run) -> Section:
    evaluate = run.metrics("evaluate")
    whole = Facts(evaluate.group("val_bpb"))
    value, documents = whole.each("value", "num_documents")
    verdicts = [verdict for name, _ in BASELINES if (verdict := run.against_baseline(name))]
    finding = (
        f"{fixed(value)} bits per byte on {plural(documents, 'held-out document')}"
        f"{': ' if verdicts else ''}{'; '.join(verdicts)}."
    )
    if value is None:
        finding = "How well the model predicts unseen text was not measured in this run."
    values = {
        "interval": run.interval_name,
        "whole": whole,
        "rows": [] if value is None else _rows(evaluate, value),
        "by_name": {name: _by_name(evaluate, f"by_{name}") for name in ("source", "language")},
        "references": reference_legend(references_of(evaluate)),
        "policy": _policy(evaluate),
        "perplexities": _perplexities(evaluate),
        "suites": suites_of(evaluate),
        "beside": beside_of(evaluate),
        "formats": formats_of(evaluate),
        "curves": curves_of(evaluate),
    }
    return Section("evaluation", "Evaluation", finding, values)


def samples_section(run: Run) -> Section:
    samples = []
    for sample in run.metrics("evaluate").rows("samples"):
        if (text := sample.text("text")) is not None:
            prompt = sample.text("prompt") or ""
            samples.append((prompt, text.removeprefix(prompt)))
    if not samples:
        return Section("samples", "Samples", "No sample generations were recorded in this run.")
    finding = (
        f"{plural(len(samples), 'continuation')} as the model wrote them, personal data replaced,"
        " not selected for quality."
    )
    return Section("samples", "Samples", finding, {"samples": samples})


def references_of(evaluate: Facts) -> list[Reference]:
    """The baselines as lines to compare with."""
    return [
        Reference(f"{name} baseline", value, tone)
        for name, tone in BASELINES
        if (value := evaluate.number(f"{name}_bpb")) is not None
    ]


def reference_legend(references: list[Reference]) -> list[tuple[str, str]]:
    return [(r.tone, f"{r.name} {fixed(r.value)}") for r in references]


def _rows(evaluate: Facts, value: float) -> list[tuple[str, ...]]:
    low, high = Facts(evaluate.group("val_bpb")).each("low", "high")
    rows: list[tuple[str, ...]] = [("model", fixed(value), span(low, high), "1")]
    for name, _ in BASELINES:
        baseline = evaluate.number(f"{name}_bpb")
        low, high = (evaluate.number("baselines", name, end) for end in ("low", "high"))
        ratio = f"{baseline / value:.2f}" if baseline is not None and value else NOT_MEASURED
        interval = span(low, high) if low is not None else "–"
        rows.append((f"{name} baseline", fixed(baseline), interval, ratio))
    gain = Facts(evaluate.group("gain_over_best_baseline"))
    if gain.number("value") is not None:
        interval = span(gain.number("low"), gain.number("high"))
        name = f"gain over the {gain.text('baseline') or 'best'}"
        rows.append((name, fixed(gain.number("value")), interval, "–"))
    return rows


def _perplexities(evaluate: Facts) -> list[tuple[str, ...]]:
    """2 to the power of bits per token, word and byte, each with what it compares with."""
    rows: list[tuple[str, ...]] = []
    for unit in ("token", "word", "byte"):
        value, low, high = Facts(evaluate.group("perplexity", unit)).each("value", "low", "high")
        if value is not None:
            note = (evaluate.text("policy", f"{unit} perplexity") or "–").removeprefix("compares ")
            ends = "–" if low is None else f"{significant(low)}–{significant(high)}"
            rows.append((unit, foreign(note), significant(value), ends))
    return rows


def _by_name(evaluate: Facts, group: str) -> dict[str, Any]:
    marks, rows = [], []
    for name, facts in evaluate.largest_first(group, by=["bytes"]):
        value, low, high = facts.each("value", "low", "high")
        if value is None:
            continue
        documents, num_bytes = facts.number("documents"), size(facts.number("bytes"))
        shown = interval_text(facts)
        title = f"{name}: {shown} bits per byte over {plural(documents, 'document')}, {num_bytes}"
        tone = "a small" if facts.value("small") is True else "a"
        marks.append(Mark(name, value, shown, title, low=low, high=high, tone=tone))
        rows.append((foreign(name), fixed(value), span(low, high), count(documents), num_bytes))
    legend = [("point", "model")]
    if any(mark.tone != "a" for mark in marks):
        legend.append(("point small", "model, too few documents for a sound interval"))
    more = ""
    if len(marks) > LARGEST:
        more = f" The {LARGEST} largest of {len(marks)}; the table has all."
    chart = partial(forest, marks[:LARGEST], references_of(evaluate), "bits per byte")
    return {"chart": chart if marks else None, "rows": rows, "legend": legend, "more": more}


def _policy(evaluate: Facts) -> list[tuple[str, Any, str]]:
    """How the numbers were made, in the words of the stage."""
    policy = evaluate.group("policy").items()
    entries = [
        (name.replace("_", " "), foreign(value), "")
        for name, value in policy
        if not name.endswith(" perplexity")  # said beside the figure
    ]
    mean = "mean per document; in no other figure"
    extra = (
        ("bits per token", "bits_per_token", "of the model, over the scored tokens"),
        ("bits of an end of text", "eos_bits_per_document", mean),
    )
    return entries + [
        (name, fixed(value), meaning)
        for name, key, meaning in extra
        if (value := evaluate.number(key)) is not None
    ]
