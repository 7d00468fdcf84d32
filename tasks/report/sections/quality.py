"""Shows the quality rules: what each asks, what it dropped, and how rules overlap."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from markupsafe import Markup

from tasks.report.charts import Chart, Mark, bars, heat
from tasks.report.markup import amount, aside, breakable, code, foreign
from tasks.report.page import Section
from tasks.report.quantities import (
    NOT_MEASURED,
    Facts,
    count,
    most_first,
    number,
    numbers,
    percent,
    plural,
    size,
)
from tasks.report.run import Run

MOST_LANGUAGES = 15
MOST_RULES_IN_MATRIX = 24
AXES = ("source", "kind", "language")
"""By what a rule can have numbers of its own."""


def quality_section(run: Run) -> Section:
    quality = run.metrics("quality")
    rules = quality.rows("rules")
    hits = {row.text("rule"): row for row in quality.rows("funnel")}
    dropped = sum(numbers(run.counters("quality").group("dropped")).values())
    struck = sum(1 for row in hits.values() if row.number("dropped"))
    finding = (
        f"{plural(struck, 'rule')} of {len(rules)} had something to drop; together"
        f" they dropped {plural(dropped, 'document')}. A document may break several rules: its"
        " first is the one it is counted under."
    )
    cuts = Facts(quality.value("line_cuts", "all"))
    if lines := cuts.number("cuts"):
        finding += (
            f" {plural(lines, 'line')} ({size(cuts.number('bytes'))}) that break rules on lines"
            f" were cut out of {plural(cuts.number('documents'), 'document')} that rules kept."
        )
    if not rules:
        finding = "Quality rules were not measured in this run."
    names = [rule.text("name") or f"rule {i + 1}" for i, rule in enumerate(rules)]
    by_language = [(k, n) for k, n in most_first(quality.group("dropped_by_language")) if n]
    more = f" The {MOST_LANGUAGES} largest of {len(by_language)}."
    values = {
        **_rule_table(quality, rules, names, hits),
        **_overlap(quality, names),
        "places": _places_table(rules),
        "by_language": _by_language(by_language),
        "by_language_more": more if len(by_language) > MOST_LANGUAGES else "",
    }
    return Section("quality", "Quality rules", finding, values)


def _rule_table(
    quality: Facts, rules: Sequence[Facts], names: Sequence[str], hits: Mapping[str | None, Facts]
) -> dict[str, Any]:
    found, num_observed = [], 0
    for i, (rule, name) in enumerate(zip(rules, names, strict=True)):
        hit = hits.get(name, Facts({}))
        every, first = hit.number("dropped"), hit.number("dropped_first")
        is_off = not any(map(_has_bound, (rule, *rule.rows("elsewhere"))))
        if every is None and rule.value("drops") is False and not is_off:
            every, first = _hits_of_all(quality, i), 0.0
            num_observed += 1
        numbered = Markup('<span class="index">{}</span>{}').format(i + 1, code(name))
        asked = breakable(rule.text("preset") or "–"), _criterion(rule, is_off)
        found.append(((numbered, *asked), is_off, every, first))
    largest = max((every or 0 for _, _, every, _ in found), default=0)
    rows = [
        (*cells, *(("–", "–") if is_off else (amount(every, largest), count(first))))
        for cells, is_off, every, first in found
    ]
    return {"rules": rows, "num_observed": num_observed}


def _has_bound(place: Facts) -> bool:
    """Whether a rule, or an entry of its `elsewhere`, holds some document against a number."""
    return place.value("threshold") is not None or bool(place.group("cuts"))


def _criterion(rule: Facts, is_off: bool) -> Markup:
    """What a document must satisfy, e.g. `num_words ≥ 50`, and by what other numbers differ from
    that one."""
    threshold, scope = rule.value("threshold"), rule.text("applies_to") or "all"
    if threshold is None:
        criterion = code(rule.text("feature") or NOT_MEASURED) + (aside("off") if is_off else "")
    else:
        criterion = _bound(rule, threshold) + (aside(f"{scope} only") if scope != "all" else "")
    places = _places(rule)
    axes = {axis for place in places for axis in AXES if place.value(axis) is not None}
    axes |= {"language" for place in (rule, *places) if place.group("cuts")}
    return criterion + (aside("by " + " and ".join(sorted(axes))) if axes else "")


def _bound(rule: Facts, threshold: object) -> Markup:
    signs = {"min": "≥", "low": "≥", "below": "≥", "max": "≤", "high": "≤", "above": "≤"}
    sign = signs.get(rule.text("side") or "", rule.text("side"))
    limit = f"{n:,.6g}" if (n := number(threshold)) is not None else str(threshold)
    return code(" ".join(part for part in (rule.text("feature"), sign, limit) if part))


def _places(rule: Facts) -> list[Facts]:
    """The entries of `elsewhere` that say something: a source without a say leaves a language the
    rule it has everywhere."""

    def asks(place: Facts) -> tuple[object, ...]:
        return (place.value("threshold"), place.group("cuts"), place.value("drops"))

    found = {tuple(place.value(axis) for axis in AXES): place for place in rule.rows("elsewhere")}

    def wider(labels: tuple[object, ...]) -> list[Facts]:
        """The entries with one label less."""
        fewer = [(*labels[:i], None, *labels[i + 1 :]) for i in range(len(labels)) if labels[i]]
        return [found[place] for place in fewer if place in found]

    # An entry that repeats every wider one around it would say nothing new.
    return [
        place
        for labels, place in found.items()
        if not (around := wider(labels)) or any(asks(place) != asks(other) for other in around)
    ]


def _places_table(rules: Sequence[Facts]) -> dict[str, Any] | None:
    """What rules ask of languages, kinds and sources where that is not what they ask of the
    others."""
    rows: list[tuple[object, ...]] = []
    for rule in rules:
        name = code(rule.text("name") or NOT_MEASURED)
        for place in (rule, *_places(rule)):
            language, threshold = place.value("language"), place.value("threshold")
            named = [place.value(axis) for axis in AXES]
            labels = ["all" if label is None else foreign(label) for label in named]
            recorded = place.value("drops") is False and _has_bound(place)
            role = "recorded only" if recorded else ""
            if place is not rule and (threshold is not None or not _has_bound(place)):
                bound = "off" if threshold is None else _bound(rule, threshold)
                rows.append((name, *labels, bound, role))
            rows += [
                (name, *labels[:-1], foreign(label), _bound(rule, cut), role)
                for label, cut in place.group("cuts").items()
                if language in (None, label)
            ]
    columns: tuple[str, ...] = ("rule", *AXES, "keeps documents with", "")
    axes = "language, kind and source"
    if all(row[2] == "all" for row in rows):
        rows, columns = [row[:2] + row[3:] for row in rows], columns[:2] + columns[3:]
        axes = "language and source"
    title = f"{plural(len(rows), 'threshold')} by {axes}"
    return {"title": title, "columns": columns, "rows": rows} if rows else None


def _hits_of_all(quality: Facts, rule: int) -> float | None:
    """Hits of a rule that only observes: the diagonal of the overlap."""
    matrix = quality.sequence("overlap")
    row = matrix[rule] if rule < len(matrix) and isinstance(matrix[rule], (list, tuple)) else ()
    return number(row[rule]) if rule < len(row) else None


def _overlap(quality: Facts, names: Sequence[str]) -> dict[str, Any]:
    """A heat map of the rules that have hits, or why there is none."""
    rows = [row for row in quality.sequence("overlap") if isinstance(row, (list, tuple))]
    matrix = [[number(v) or 0.0 for v in row] for row in rows]
    square = len(matrix) == len(names) and all(len(row) == len(names) for row in matrix)
    if not names or not square:
        return {"overlap": None, "few_overlap": False}
    with_hits = [i for i in range(len(names)) if matrix[i][i] > 0]
    used = sorted(sorted(with_hits, key=lambda i: -matrix[i][i])[:MOST_RULES_IN_MATRIX])
    left_out = "rules without hits are left out"
    if len(used) < len(with_hits):
        left_out = f"the {len(used)} rules with most hits of {len(with_hits)} that have any"
    drawn, numbered = [names[i] for i in used], [i + 1 for i in used]
    small = [[matrix[i][j] for j in used] for i in used]
    chart: Chart = partial(heat, drawn, numbered, small, noun="documents")
    few = len(used) < 2
    return {"overlap": None if few else chart, "few_overlap": few, "left_out": left_out}


def _by_language(dropped: Sequence[tuple[str, float]]) -> Chart | None:
    total = sum(n for _, n in dropped)
    marks = []
    for name, n in dropped[:MOST_LANGUAGES]:
        title = f"{name}: {plural(n, 'document')} dropped, {percent(n / total)} of all dropped"
        marks.append(Mark(name, n, count(n), title))
    return partial(bars, marks) if marks else None
