"""Writes one page about what a run changed: inputs, documents, reasons, and tests for drift.

Takes what `tasks.analysis.changes` found, and the names of the two runs. The page is like that of a
run: one file, no script, every name from the data escaped.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from markupsafe import Markup

from tasks.report.markup import code, foreign
from tasks.report.page import Card, Section, page
from tasks.report.quantities import MINUS, compact, count, percent, plural, significant

Changes = Mapping[str, Any]
WORDS = {
    "read": "records read",
    "quarantined": "quarantined",
    "lost_estimate": "lost in damaged files, estimated",
    "withdrawn": "withdrawn",
    "ingested": "became documents",
    "kept": "documents kept",
}


def changes_page(changes: Changes, run: str, before: str, limits: Mapping[str, float]) -> str:
    """run, before: names of the two runs. limits: `effect` and `p` of drift."""
    inputs, kept, drift = changes["inputs"], changes["documents"]["kept"], changes["drift"]
    tokens = changes["tokens"]["tokens"]
    cards = [
        Card("Files", count(inputs["new"]), [_files(inputs)], "new in the source"),
        Card(
            "Documents",
            f"+{count(kept['added'])}",
            [f"{count(kept['gone'])} gone, {count(kept['now'])} in all"],
            "kept now and not before",
        ),
        Card(
            "Tokens", compact(tokens["now"]), [f"before {compact(tokens['before'])}"], "in shards"
        ),
        Card(
            "Drift",
            count(len(drift["drifts"])) if drift["tests"] else "not tested",
            [f"of {plural(len(drift['tests']), 'measure')}"],
            "measures of the new documents unlike those before",
        ),
    ]
    notices = [drift_line(changes)] if drift["drifts"] else []
    subtitle = f"Run {run} compared with run {before}."
    sections = changes_sections(changes, limits)
    return page("What changed", subtitle, cards, notices or None, sections, "Refresh")


def changes_sections(changes: Changes, limits: Mapping[str, float]) -> list[Section]:
    """What changed, and whether it drifts, as parts of a page."""
    return [_changes_section(changes), _drift_section(changes, limits)]


def describe_changes(changes: Changes) -> str:
    """The same in one line, for a terminal."""
    return f"{_counts_line(changes)}; {drift_line(changes)}"


def _counts_line(changes: Changes) -> str:
    inputs, kept = changes["inputs"], changes["documents"]["kept"]
    documents = f"documents: {count(kept['added'])} added, {count(kept['gone'])} gone"
    return f"files: {count(inputs['new'])} new, {_files(inputs)}; {documents}"


def drift_line(changes: Changes) -> str:
    """Which measures drift, largest effect first; names of measures and numbers only."""
    drift = changes["drift"]
    new = plural(drift["new_documents"], "new document")
    if not drift["tests"]:
        return f"drift: not tested ({new})"
    if not drift["drifts"]:
        return f"drift: none ({plural(len(drift['tests']), 'test')} on {new})"
    found = [row for row in drift["tests"] if row["drifts"]]
    shown = ", ".join(f"{row['measure']} (effect {row['effect']:.2f})" for row in found[:5])
    more = f" and {len(found) - 5} more" if found[5:] else ""
    return f"drift: {shown}{more} in {new}"


def _files(inputs: Mapping[str, Any]) -> str:
    return f"{count(inputs['changed'])} changed, {count(inputs['gone'])} gone"


def _changes_section(changes: Changes) -> Section:
    inputs, documents = changes["inputs"], changes["documents"]
    amounts: list[tuple[str, ...]] = [
        (WORDS[k], *_cells(v)) for k, v in documents.items() if any(v.values())
    ]
    amounts += [("tokens", *_cells(changes["tokens"]["tokens"]))]
    density = changes["tokens"]["bytes_per_token"]
    amounts += [("bytes per token", *map(significant, (density["now"], density["before"])), "")]
    names = [(foreign(n), kind) for kind, some in inputs["names"].items() for n in some]
    unnamed = inputs["new"] + inputs["changed"] + inputs["gone"] - len(names)
    values = {
        "amounts": amounts,
        "files": names,
        "more_files": f"And {plural(unnamed, 'more file')}." if unnamed else "",
        "dropped": [(r["stage"], code(r["reason"]), *_cells(r)) for r in changes["dropped"]],
    }
    return Section("changes", "Changes", _counts_line(changes).capitalize() + ".", values)


def _cells(row: Mapping[str, float]) -> tuple[str, str, str]:
    change = row["now"] - row["before"]
    sign = "+" if change > 0 else MINUS if change < 0 else ""
    return count(row["now"]), count(row["before"]), f"{sign}{count(abs(change))}"


def _drift_section(changes: Changes, limits: Mapping[str, float]) -> Section:
    tests = changes["drift"]["tests"]
    finding = f"D{drift_line(changes)[1:]}."
    if not tests:
        return Section("drift", "Drift", finding)
    rows: Sequence[Any] = [
        (
            code(row["measure"]),
            "drift" if row["drifts"] else "",
            _side(row["new"]),
            _side(row["before"]),
            row["test"],
            f"{row['effect']:.3f}",
            f"{row['p_adjusted']:.2g}" if row["p_adjusted"] else "<\u202f1e-300",
        )
        for row in tests
    ]
    values = {"tests": rows, "effect": f"{limits['effect']:g}", "p": f"{limits['p']:g}"}
    return Section("drift", "Drift", finding, values)


def _side(summary: Mapping[str, float]) -> Markup:
    if "p50" in summary:
        return Markup("{}").format(" · ".join(map(significant, summary.values())))
    shares = (Markup("{} {}").format(foreign(k), percent(v)) for k, v in summary.items())
    return Markup(", ").join(shares)
