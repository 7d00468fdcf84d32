"""Shows how much text there is, how good and how varied it is, before and after filtering."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from markupsafe import Markup

from tasks.corpus.tally import OTHER
from tasks.report.charts import Chart, Series, histogram, lines
from tasks.report.markup import code, foreign
from tasks.report.page import Section
from tasks.report.quantities import (
    NOT_MEASURED,
    Facts,
    compact,
    count,
    fixed,
    most_first,
    number,
    percent,
    share,
    significant,
    size,
)
from tasks.report.run import Run

STATES = {"ingest": "read", "quality": "good", "dedup": "distinct", "documents": "kept, edited"}
"""What a reader calls the states of the data."""
MOST_HISTOGRAMS = 6
MOST_OF_CURVE = 100
"""How much longer the last beginning on a curve of growth is than the first that is drawn; others
lie on each other."""
FIRST, LAST = "ingest", "documents"


def variety_section(run: Run) -> Section:
    analysis = run.metrics("analysis")
    states = {name: Facts(value) for name, value in analysis.group("states").items()}
    states = {name: states[name] for name in STATES if name in states}
    if not states:
        finding = "Scale and variety were not measured in this run."
        return Section("variety", "Scale and variety", finding)
    shown = list(states)
    first, last = states[shown[0]], states[shown[-1]]
    words, left = first.number("words"), last.number("words")
    growth = _growth_change(*(state.number("growth", "exponent") for state in (first, last)))
    finding = (
        f"{compact(words)} words were read and {compact(left)} ({share(left, words)}) are left;"
        f" {growth} after filtering"
    )
    before, after = (state.number("languages", "effective") for state in (first, last))
    if (before, after) != (1, 1):  # of one language there is nothing to weigh
        finding += (
            f", and text falls on as many languages as {significant(after)} of equal size"
            f" (before: {significant(before)})"
        )
    values = {
        "shown": [STATES[name] for name in shown],
        "first": STATES[FIRST],
        "last": STATES[LAST],
        "scale": [_scale(name, facts) for name, facts in states.items()],
        "measures": _measures(list(states.values()), analysis.number("vendi_documents")),
        "sample_units": run.counters("analysis").number("sample_units"),
        "growth": _growth_curves(analysis),
        "exponents": [analysis.number("states", s, "growth", "exponent") for s in (LAST, FIRST)],
        "law": Facts(analysis.value("cluster_law")),
        "changed": _most_changed(analysis),
        "changed_by_language": [
            (foreign(language), code(name), percent(moved))
            for language, facts in analysis.items("changed_by_language")
            for name, moved in most_first(facts.group())
        ],
        "by_label": {
            axis: [_by_label(facts, axis, shown) for facts in analysis.rows(f"by_{axis}")]
            for axis in ("source", "language")
        },
        "num_domains": last.number("domains", "num_labels"),
        "domains": [
            (
                foreign(facts.text("domain") or "–"),
                count(facts.number("documents")),
                size(facts.number("bytes")),
            )
            for facts in analysis.rows("domains")
        ],
    }
    return Section("variety", "Scale and variety", f"{finding}.", values)


def _growth_change(before: float | None, after: float | None) -> str:
    if before is None or after is None:
        return "how the vocabulary grows was not measured"
    if abs(after - before) <= 0.005:
        return "the vocabulary grows as fast as before"
    return f"the vocabulary grows {'faster' if after > before else 'more slowly'}"


def _scale(state: str, facts: Facts) -> tuple[Any, ...]:
    documents, num_bytes, *rest = facts.each("documents", "bytes", "words", "tokens_estimated")
    return (STATES[state], code(state), count(documents), size(num_bytes), *map(compact, rest))


def _measures(states: Sequence[Facts], vendi_documents: float | None) -> list[tuple[Any, ...]]:
    """A row for each measure of variety, a column for each state."""

    def read(show: Callable[..., str], *path: str, **how: int) -> Callable[[Facts], str]:
        return lambda facts: show(facts.number(*path), **how)

    def further(n: int) -> Callable[[Facts], str]:
        def shown(facts: Facts) -> str:
            longer, shorter = (facts.number("entropy_bits", f"{m}gram") for m in (n, n - 1))
            if longer is None or shorter is None:
                return NOT_MEASURED
            return fixed(longer - shorter, 2)

        return shown

    def vendi(facts: Facts) -> str:
        value, high = Facts(facts.group("vendi")).each("value", "high")
        if value is None or high is None:
            return NOT_MEASURED
        return f"{fixed(value, 1)} ± {fixed(high - value, 1)}"

    effective = partial(read, significant)
    rows = (
        ("Sources", "effective number, by bytes", effective("sources", "effective")),
        ("Concentration", "HHI of sources; 1: a single one", read(fixed, "sources", "hhi")),
        ("Languages", "effective number, by bytes", effective("languages", "effective")),
        ("Domains", "effective number, by documents", effective("domains", "effective")),
        ("Vocabulary growth", "exponent of Heaps’ law", read(fixed, "growth", "exponent")),
        ("Word entropy", "bits a word tells", read(fixed, "entropy_bits", "1gram", digits=2)),
        ("… after one word", "bits the next word tells", further(2)),
        ("… after two words", "bits the next word tells", further(3)),
        (f"Unlike of {count(vendi_documents)}", "Vendi score of documents, 95 % interval", vendi),
    )
    name = Markup('<div class="measure">{}<span>{}</span></div>')
    return [(name.format(what, meaning), *map(show, states)) for what, meaning, show in rows]


def _growth_curves(analysis: Facts) -> Chart | None:
    series = []
    for state, tone in ((FIRST, "b"), (LAST, "a")):
        points = [
            (n, types)
            for point in analysis.sequence("growth_curves", state)
            if (n := _at(point, 0)) and (types := _at(point, 1))
        ]
        drawn = [p for p in points if p[0] * MOST_OF_CURVE >= points[-1][0]]
        if drawn:
            series.append(Series(STATES[state], drawn, tone, dots=True))
    if not series:
        return None
    return partial(lines, series, x_label="words", y_label="different words", from_zero=True)


def _at(point: object, place: int) -> float | None:
    return number(point[place]) if isinstance(point, (list, tuple)) and len(point) > place else None


def _most_changed(analysis: Facts) -> list[tuple[Markup, Chart, str]]:
    """Features whose distribution filtering changed most, by the share of documents that would have
    to move."""
    changed = []
    for name, facts in analysis.items("histograms"):
        before, after, low, high = (
            [number(v) or 0.0 for v in facts.sequence(*path)]
            for path in (("states", FIRST), ("states", LAST), ("low",), ("high",))
        )
        same_length = len(before) == len(after) == len(low) == len(high) > 1
        if not same_length or max(low) >= max(high) or not sum(before) or not sum(after):
            continue
        pairs = zip(before, after, strict=True)
        moved = sum(abs(b / sum(before) - a / sum(after)) for b, a in pairs) / 2
        changed.append((moved, name, _histogram(low, high, before, after)))
    changed.sort(key=lambda one: (-one[0], one[1]))
    return [(code(name), chart, percent(moved)) for moved, name, chart in changed[:MOST_HISTOGRAMS]]


def _histogram(
    low: Sequence[float], high: Sequence[float], before: Sequence[float], after: Sequence[float]
) -> Chart:
    # A bin of zeros alone, and gaps of bins that nobody is in, become bins like the others.
    edges = sorted({*low, *high})
    behind, counts = [0.0] * (len(edges) - 1), [0.0] * (len(edges) - 1)
    for start, b, a in zip(low, before, after, strict=True):
        place = edges.index(start)
        behind[place] += b
        counts[place] += a
    # Features that do not pass 1 are shares; the others have long tails.
    log, draw = edges[-1] > 1.5, partial(histogram, x_label="value", noun="documents")
    return partial(draw, edges, counts, log=log, behind=behind)


def _by_label(facts: Facts, axis: str, states: Sequence[str]) -> tuple[Any, ...]:
    label = facts.text(axis) or "–"
    documents = [count(facts.number(state, "documents") or 0) for state in states]
    first, last = facts.number(states[0], "bytes"), facts.number(states[-1], "bytes") or 0
    name = label if label == OTHER else foreign(label)
    return (name, *documents, size(first or 0), size(last), share(last, first))
