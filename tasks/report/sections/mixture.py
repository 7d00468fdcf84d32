"""Shows in which mixture training reads the documents."""

from __future__ import annotations

from functools import partial

from tasks.corpus.tally import OTHER
from tasks.report.charts import Mark, bars
from tasks.report.markup import foreign
from tasks.report.page import Section
from tasks.report.quantities import NARROW, Facts, count, share, significant, size
from tasks.report.run import Run

MOST_LABELS = 15


def mixture_section(run: Run) -> Section:
    mixture = Facts(run.metrics("documents").value("mixture"))
    there, reached, planned = mixture.each("bytes", "reached_bytes", "planned_bytes")
    if there is None:
        finding = "How often documents are read was not measured in this run."
        return Section("mixture", "Mixture", finding)
    if mixture.value("configured") is not True:
        finding = (
            f"No mixture is set: every training document is read once in an epoch, {size(reached)}"
            " in all."
        )
        return Section("mixture", "Mixture", finding)
    times = significant((reached or 0) / there) if there else "–"
    finding = (
        f"One epoch reads {size(reached)} of training text, {times} times what is there; planned"
        f" were {size(planned)}. Validation documents are read once."
    )
    axes = {axis: _mixed(mixture, axis) for axis in ("source", "language")}
    return Section("mixture", "Mixture", finding, {"axes": axes})


def _mixed(mixture: Facts, axis: str) -> dict[str, object]:
    found = mixture.largest_first(f"by_{axis}", by=["reached_bytes"])
    keys = ("bytes", "planned_bytes", "reached_bytes")
    totals = [sum(facts.number(key) or 0 for _, facts in found) for key in keys]
    marks, rows = [], []
    for name, facts in found:
        amounts = [facts.number(key) or 0 for key in keys]
        there, planned, reached = amounts
        shares = [share(n, total) for n, total in zip(amounts, totals, strict=True)]
        times = f"{significant(reached / there)}{NARROW}×" if there else "–"
        title = f"{name}: {size(there)} there, {size(planned)} planned, {size(reached)} reached"
        marks.append(Mark(name, reached, f"{shares[2]} · {times}", title, whole=planned))
        label = name if name == OTHER else foreign(name)
        rows.append((label, size(there), *shares, times, count(facts.number("documents"))))
    return {"chart": partial(bars, marks[:MOST_LABELS]), "rows": rows}
