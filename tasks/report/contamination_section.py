"""Shows which evaluation items occur in the documents, and where."""

from __future__ import annotations

from tasks.report.markup import Markup, foreign, tag
from tasks.report.page import Section, amount, folded, table
from tasks.report.quantities import count, plural, share
from tasks.report.run import Run


def contamination_section(run: Run) -> Section | None:
    """None where no suite is configured."""
    found = run.metrics("contamination")
    suites = found.items("suites")
    if not suites:
        return None
    documents, items = (
        found.number("documents"),
        sum(row.number("hit_items") or 0 for _, row in suites),
    )
    done = "are kept, as the run asks" if found.text("action") == "report" else "were dropped"
    finding = (
        f"{plural(documents, 'document')}"
        f" ({share(documents, run.counters('contamination').number('read'))} of those read) hold"
        f" n-grams of {plural(items, 'evaluation item')} and {done}."
    )
    largest = max((row.number("hit_items") or 0 for _, row in suites), default=0) or 1
    rows = [
        (
            foreign(name),
            count(row.number("items")),
            amount(row.number("hit_items"), largest),
            share(row.number("hit_items"), row.number("items")),
            count(row.number("hit_documents")),
            count(row.number("too_short")),
        )
        for name, row in sorted(
            suites, key=lambda item: (-(item[1].number("hit_items") or 0), item[0])
        )
    ]
    note = (
        "Items found: those with an n-gram in some document. Too short: items in many texts by"
        f" chance, not looked for. {plural(found.number('ignored_ngrams'), 'n-gram')} of many"
        " documents were taken for phrases of the language. hits.jsonl of the artifact lists every"
        " item with its document and place; `textmill hits` shows the texts of both."
    )
    pieces: list[Markup | None] = [
        table(
            "Found by suite",
            ("suite", "items", "items found", "of items", "documents", "too short"),
            rows,
            note,
        ),
        _sources(run),
        *_examples(run),
    ]
    return Section("contamination", "Evaluation items in the data", finding, pieces)


def _sources(run: Run) -> Markup | None:
    sources = run.metrics("contamination").items("by_source")
    if not sources:
        return None
    rows = [
        (foreign(name), count(row.number("documents")))
        for name, row in sorted(
            sources, key=lambda item: (-(item[1].number("documents") or 0), item[0])
        )
    ]
    return folded(
        f"The {plural(len(rows), 'source')} of these documents",
        table(None, ("source", "documents"), rows),
    )


def _examples(run: Run) -> list[Markup]:
    shown = []
    for example in run.metrics("contamination").rows("examples"):
        where = [
            foreign(example.text("suite") or ""),
            ", item ",
            foreign(example.text("item") or ""),
        ]
        shown.append(
            folded(
                ["An excerpt: ", where],
                tag("p", example.text("excerpt") or "", dir="auto"),
                tag(
                    "p",
                    "Document ",
                    tag("code", example.text("document") or "", class_="hash"),
                    ", personal data replaced.",
                    class_="note",
                ),
            )
        )
    return shown
