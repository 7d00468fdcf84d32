"""Shows which evaluation items occur in the documents, and where."""

from __future__ import annotations

from markupsafe import Markup

from tasks.report.markup import amount, foreign, hashed
from tasks.report.page import Section
from tasks.report.quantities import count, plural, share
from tasks.report.run import Run


def contamination_section(run: Run) -> Section | None:
    """None where no suite is configured."""
    found = run.metrics("contamination")
    suites = found.largest_first("suites", by=["hit_items"])
    if not suites:
        return None
    documents = found.number("documents")
    items = [row.number("hit_items") or 0 for _, row in suites]
    read = run.counters("contamination").number("read")
    done = "are kept, as the run asks" if found.text("action") == "report" else "were dropped"
    finding = (
        f"{plural(documents, 'document')} ({share(documents, read)} of those read) hold"
        f" n-grams of {plural(sum(items), 'evaluation item')} and {done}."
    )
    rows = []
    for name, row in suites:
        all_items, hit = row.each("items", "hit_items")
        of_items = (count(all_items), amount(hit, max(items)), share(hit, all_items))
        others = map(count, row.each("hit_documents", "too_short"))
        rows.append((foreign(name), *of_items, *others))
    sources = found.largest_first("by_source")
    title = Markup("An excerpt: {}, item {}")
    values = {
        "suites": rows,
        "ignored": found.number("ignored_ngrams"),
        "sources": [(foreign(name), count(row.number("documents"))) for name, row in sources],
        "examples": [
            (
                title.format(foreign(e.text("suite") or ""), foreign(e.text("item") or "")),
                e.text("excerpt") or "",
                hashed(e.text("document") or ""),
            )
            for e in found.rows("examples")
        ],
    }
    return Section("contamination", "Evaluation items in the data", finding, values)
