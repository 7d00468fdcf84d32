"""Shows where documents came from and where they went: funnel, reasons, sources, lengths,
languages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from markupsafe import Markup

from tasks.corpus.tally import OTHER
from tasks.report.charts import Chart, Mark, bars, histogram
from tasks.report.markup import amount, code, foreign
from tasks.report.page import Section
from tasks.report.quantities import (
    NARROW,
    NOT_MEASURED,
    Facts,
    count,
    most_first,
    numbers,
    plural,
    share,
    size,
)
from tasks.report.run import Run
from tasks.report.scales import tick_text

LARGEST = 15
"""Rows drawn of a long distribution; the table below it has all."""
STAGE_WORDS = {
    "read": "read",
    "ingest": "became documents",
    "language": "language known",
    "quality": "passed quality rules",
    "dedup": "distinct",
    "contamination": "no evaluation items",
    "pii": "not dropped for personal data",
    "documents": "kept",
}
REPAIRS = {
    "NUL": "NUL byte",
    "BOM": "byte order mark",
    "CRLF": "Windows line end",
    "LONE_SURROGATE": "lone surrogate",
    "RECODED": "other encoding than UTF-8",
    "ENCODING": "undecodable byte of a page",
}


def documents_section(run: Run) -> Section:
    reasons = _reasons(run)
    read, kept = run.documents_read, run.documents_kept
    finding = f"Of {plural(read, 'record')} read, {count(kept)} ({share(kept, read)}) were kept."
    if read is None or kept is None:
        finding = "How many records were read and kept was not measured in this run."
    if reasons:
        stage, reason, lost = max(reasons, key=lambda r: r[2])
        largest = Markup(" The largest loss is {} in {}: {}.")
        finding += largest.format(code(reason), stage, plural(lost, "document"))
    most = max((lost for _, _, lost in reasons), default=0)
    ingest = run.metrics("ingest")
    licences = most_first(ingest.group("licenses"))
    total = sum(n for _, n in licences)
    values = {
        "funnel": _funnel(run),
        "reasons": [(code(r), s, amount(n, most), share(n, read)) for s, r, n in reasons],
        "sources": distribution(
            ingest.largest_first("by_source"), run.metrics("documents").group("by_source")
        ),
        "lengths": _lengths(ingest),
        "quarantined": run.counters("ingest").number("quarantined"),
        "quarantined_by": most_first(run.counters("ingest").group("quarantined_by")),
        "repaired": _repaired(run.counters("ingest")),
        "quarantine": [
            (
                foreign(example.text("file") or "–"),
                foreign(example.text("error") or "–"),
                count(example.number("line")),
                count(example.number("byte_offset")),
            )
            for example in ingest.rows("quarantine_examples")
        ],
        "licences": [(foreign(k), amount(n, licences[0][1]), share(n, total)) for k, n in licences],
    }
    return Section("documents", "Documents", finding, values)


def languages_section(run: Run) -> Section:
    found = run.metrics("language").largest_first("languages")
    if not found:
        return Section("languages", "Languages", "Languages were not measured in this run.")
    total = sum(facts.number("documents") or 0 for _, facts in found)
    name, largest = found[0]
    num_known = sum(name != "und" for name, _ in found)
    finding = Markup("{} identified; the largest is {} with {} of the documents.").format(
        plural(num_known, "language"), foreign(name), share(largest.number("documents"), total)
    )
    if unknown := dict(found).get("und", Facts({})).number("documents"):
        finding += f" {plural(unknown, 'document')} could not be assigned (und)."
    kept = run.metrics("documents").group("by_language")
    values = {"languages": distribution(found, kept)}
    return Section("languages", "Languages", finding, values)


def _funnel(run: Run) -> Chart | None:
    rows = run.metrics("documents").rows("funnel")
    read = run.documents_read or max((row.number("documents") or 0 for row in rows), default=0)
    marks: list[Mark] = []
    before = None
    for row in rows:
        left, name = row.number("documents") or 0, row.text("stage") or ""
        if name == "documents" and left == before:
            continue  # writing what is kept loses nothing
        title = f"{name}: {plural(left, 'document')}, {share(left, read)} of those read"
        if before is not None and before > left:
            title += f", {count(before - left)} fewer than before"
        shown = f"{count(left)} · {share(left, read)}"
        marks.append(Mark(STAGE_WORDS.get(name, name), left, shown, title, whole=max(read, left)))
        before = left
    return partial(bars, marks) if marks else None


def _reasons(run: Run) -> list[tuple[str, str, float]]:
    """(stage, reason, documents), by stage in order of the run, largest first within."""
    order = {stage: i for i, stage in enumerate(run.artifacts)}
    dropped = run.metrics("documents").group("dropped")
    return [
        (stage, reason, lost)
        for stage in sorted(dropped, key=lambda stage: (order.get(stage, len(order)), stage))
        for reason, lost in most_first(Facts(dropped[stage]).group())
        if lost
    ]


def distribution(
    read: Sequence[tuple[str, Facts]], kept: Mapping[str, object]
) -> dict[str, Any] | None:
    """Kept of read, by name in the given order: the largest as bars, all in a table, and in `more`
    what the bars leave out.

    The rest entry of a long table is not compared: which names it sums up differs between read and
    kept.
    """
    marks, rows = [], []
    for name, facts in read:
        there, bytes_read = facts.number("documents"), size(facts.number("bytes"))
        if name == OTHER:
            rows.append((name, count(there), bytes_read, "–", "–", "–"))
            continue
        there = there or 0
        left, bytes_left = (n or 0 for n in Facts(kept.get(name)).each("documents", "bytes"))
        title = f"{name}: {count(left)} of {plural(there, 'document')} kept, {bytes_read} read"
        marks.append(Mark(name, left, f"{count(left)} of {count(there)}", title, whole=there))
        cells = (count(there), bytes_read, count(left), size(bytes_left), share(left, there))
        rows.append((foreign(name), *cells))
    more = ""
    if len(marks) > LARGEST:
        of_all, table_has = f"{len(marks)}", "all"
        if len(rows) > len(marks):  # how many names the rest has is not known
            of_all = f"more than {len(marks)}"
            table_has = f"the {len(marks)} largest and the rest in one row"
        more = f" The {LARGEST} largest of {of_all}; the table has {table_has}."
    chart = partial(bars, marks[:LARGEST]) if marks else None
    return {"chart": chart, "rows": rows, "more": more} if rows else None


def _lengths(ingest: Facts) -> Chart | None:
    edges = ingest.numbers("length_histogram", "edges_bytes")
    counts = ingest.numbers("length_histogram", "counts")
    if len(edges) != len(counts) + 1 or not any(counts):
        return None
    return partial(
        histogram,
        edges,
        counts,
        x_label="bytes of text",
        noun="documents",
        log=True,
        shown=size,
        tick=_byte_tick,
    )


def _byte_tick(value: float) -> str:
    text = tick_text(value)
    return f"{text}B" if text[-1].isalpha() else f"{text}{NARROW}B"


def _repaired(ingest: Facts) -> str:
    repaired = numbers(ingest.group("repaired"))
    words = [f"{REPAIRS.get(k, k)} in {plural(n, 'document')}" for k, n in repaired.items() if n]
    return ", ".join(words) or ("none" if repaired else NOT_MEASURED)
