"""Where documents came from and where they went: funnel, reasons, sources, lengths, languages,
quality rules."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tasks.corpus.tally import OTHER
from tasks.report.charts import Bar, bars, heat, histogram
from tasks.report.markup import Markup, foreign, join, tag
from tasks.report.page import Section, absent, amount, code, figure, folded, legend, table
from tasks.report.quantities import (
    NARROW,
    NOT_MEASURED,
    Facts,
    count,
    number,
    numbers,
    percent,
    plural,
    share,
    size,
)
from tasks.report.run import Run
from tasks.report.scales import tick_text

LARGEST = 15
"""Rows drawn of a long distribution; the table below it has all."""
MOST_RULES_IN_MATRIX = 24
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
}


def documents_section(run: Run) -> Section:
    reasons = _reasons(run)
    read, kept = run.documents_read, run.documents_kept
    finding: list[object] = [
        f"Of {plural(read, 'record')} read, {count(kept)} ({share(kept, read)}) were kept."
    ]
    if read is None or kept is None:
        finding = ["How many records were read and kept was not measured in this run."]
    if reasons:
        stage, reason, lost = max(reasons, key=lambda r: r[2])
        finding.append(
            [" The largest loss is ", code(reason), f" in {stage}: {plural(lost, 'document')}."]
        )
    pieces = [
        _funnel(run),
        _reason_table(run, reasons),
        _sources(run),
        _lengths(run),
        _input_state(run),
        _licences(run),
    ]
    return Section("documents", "Documents", finding, pieces)


def rules_section(run: Run) -> Section:
    quality = run.metrics("quality")
    hits = {row.text("rule"): row for row in quality.rows("funnel")}
    dropped = sum(numbers(run.counters("quality").group("dropped")).values())
    struck = sum(1 for row in hits.values() if row.number("dropped"))
    finding = (
        f"{plural(struck, 'rule')} of {len(quality.rows('rules'))} had something to drop; together"
        f" they dropped {plural(dropped, 'document')}. A document may break several rules: its"
        " first is the one it is counted under."
    )
    if lines := quality.number("line_cuts", "all", "cuts"):
        num_bytes, documents = (
            quality.number("line_cuts", "all", name) for name in ("bytes", "documents")
        )
        finding += (
            f" {plural(lines, 'line')} ({size(num_bytes)}) that break rules on lines were cut out"
            f" of {plural(documents, 'document')} that rules kept."
        )
    if not quality.rows("rules"):
        finding = "Quality rules were not measured in this run."
    pieces = [_rule_table(quality, hits), _overlap(quality), _dropped_by_language(quality)]
    return Section("quality", "Quality rules", finding, pieces)


def languages_section(run: Run) -> Section:
    found, kept = (
        run.metrics("language").items("languages"),
        run.metrics("documents").group("by_language"),
    )
    if not found:
        return Section("languages", "Languages", "Languages were not measured in this run.", [])
    total = sum(facts.number("documents") or 0 for _, facts in found)
    largest, facts = max(found, key=lambda item: item[1].number("documents") or 0)
    unknown = next((f.number("documents") for name, f in found if name == "und"), None)
    finding: list[object] = [
        (
            f"{plural(sum(name != 'und' for name, _ in found), 'language')} identified; the"
            " largest is "
        ),
        foreign(largest),
        f" with {share(facts.number('documents'), total)} of the documents.",
        f" {plural(unknown, 'document')} could not be assigned (und)." if unknown else None,
    ]
    note = (
        "Documents by identified language (ISO code; und: undetermined). Pale: identified among all"
        " read. Solid: still there after filtering and deduplication."
    )
    return Section(
        "languages",
        "Languages",
        finding,
        _distribution("Documents by language", "language", found, kept, note),
    )


def _funnel(run: Run) -> Markup:
    rows = run.metrics("documents").rows("funnel")
    if not rows:
        return absent("What is left after each stage", "The funnel")
    read = run.documents_read or max(row.number("documents") or 0 for row in rows)
    marks, before = [], None
    for row in rows:
        left, name = row.number("documents") or 0, row.text("stage") or ""
        if name == "documents" and left == before:
            continue  # writing what is kept loses nothing
        lost = (
            f", {count(before - left)} fewer than before"
            if before is not None and before > left
            else ""
        )
        title = f"{name}: {plural(left, 'document')}, {share(left, read)} of those read{lost}"
        marks.append(
            Bar(
                STAGE_WORDS.get(name, name),
                left,
                f"{count(left)} · {share(left, read)}",
                title,
                whole=max(read, left),
            )
        )
        before = left
    note = (
        "Documents left after each stage, with their share of all records read. Pale: everything"
        " that was read."
    )
    return figure("What is left after each stage", lambda width: bars(marks, width), note)


def _reasons(run: Run) -> list[tuple[str, str, float]]:
    """(stage, reason, documents), by stage in order of the run, largest first within."""
    found: list[tuple[str, str, float]] = []
    order = {stage: i for i, stage in enumerate(run.artifacts)}
    for stage, group in sorted(
        run.metrics("documents").group("dropped").items(),
        key=lambda item: (order.get(item[0], len(order)), item[0]),
    ):
        by_size = sorted(
            numbers(group if isinstance(group, Mapping) else {}).items(),
            key=lambda item: (-item[1], item[0]),
        )
        found.extend((str(stage), reason, lost) for reason, lost in by_size if lost)
    return found


def _reason_table(run: Run, reasons: Sequence[tuple[str, str, float]]) -> Markup | None:
    if not reasons:
        return None
    largest = max(lost for _, _, lost in reasons)
    rows = [
        (code(reason), stage, amount(lost, largest), share(lost, run.documents_read))
        for stage, reason, lost in reasons
    ]
    note = (
        "Each dropped document is counted once, under the first reason that met it. Kept, dropped"
        " and quarantined add up to read."
    )
    return table(
        "Why documents were dropped",
        ("reason", "stage", "documents", "of read"),
        rows,
        note,
        left=2,
    )


def _sources(run: Run) -> list[Markup]:
    note = (
        "Pale: documents read. Solid: documents kept. A source that is all pale was dropped"
        " entirely."
    )
    read, kept = (
        run.metrics("ingest").items("by_source"),
        run.metrics("documents").group("by_source"),
    )
    return _distribution("Documents by source", "source", read, kept, note)


def _distribution(
    title: str, what: str, read: Sequence[tuple[str, Facts]], kept: Mapping[str, object], note: str
) -> list[Markup]:
    """Kept of read by name: the largest as bars, all in a table.

    The rest entry of a long table is not compared: which names it sums up differs between read and
    kept.
    """
    if not read:
        return [absent(title, f"The distribution by {what}")]
    ordered = sorted(read, key=lambda item: (-(item[1].number("documents") or 0), item[0]))
    marks, rows = [], []
    for name, facts in ordered:
        if name == OTHER:
            rows.append(
                (name, count(facts.number("documents")), size(facts.number("bytes")), "–", "–", "–")
            )
            continue
        there, left = facts.number("documents") or 0, Facts(kept.get(name)).number("documents") or 0
        title_text = (
            f"{name}: {count(left)} of {plural(there, 'document')} kept,"
            f" {size(facts.number('bytes'))} read"
        )
        marks.append(Bar(name, left, f"{count(left)} of {count(there)}", title_text, whole=there))
        kept_bytes = size(Facts(kept.get(name)).number("bytes") or 0)
        rows.append(
            (
                foreign(name),
                count(there),
                size(facts.number("bytes")),
                count(left),
                kept_bytes,
                share(left, there),
            )
        )
    of_how_many, table_has = f"{len(marks)}", "all"
    if len(rows) > len(marks):  # how many names the rest has is not known
        of_how_many, table_has = (
            f"more than {len(marks)}",
            f"the {len(marks)} largest and the rest in one row",
        )
    more = (
        f" The {LARGEST} largest of {of_how_many}; the table has {table_has}."
        if len(marks) > LARGEST
        else ""
    )
    chart = marks and figure(
        title,
        lambda width: bars(marks[:LARGEST], width),
        note + more,
        legend(("a", "kept"), ("pale", "read")),
    )
    columns = (what, "documents read", "bytes read", "kept", "bytes kept", "kept of read")
    return [
        chart or absent(title, f"A named {what}"),
        folded(f"{plural(len(rows), 'row')} by {what}", table(None, columns, rows)),
    ]


def _lengths(run: Run) -> Markup:
    lengths = run.metrics("ingest")
    edges = [
        n
        for v in lengths.sequence("length_histogram", "edges_bytes")
        if (n := number(v)) is not None
    ]
    counts = [
        n for v in lengths.sequence("length_histogram", "counts") if (n := number(v)) is not None
    ]
    if len(edges) == len(counts) and edges:
        edges.append(edges[-1] * 2 or 1.0)  # the last bin has no upper end
    if len(edges) != len(counts) + 1 or not any(counts):
        return absent("Document length", "The length distribution")
    note = (
        "Documents read, by UTF-8 bytes of text, on a logarithmic axis: equal steps are equal"
        " ratios."
    )
    return figure(
        "Document length",
        lambda width: histogram(
            edges,
            counts,
            width,
            x_label="bytes of text",
            noun="documents",
            log=True,
            shown=size,
            tick=_byte_tick,
        ),
        note,
    )


def _byte_tick(value: float) -> str:
    text = tick_text(value)
    return f"{text}B" if text[-1].isalpha() else f"{text}{NARROW}B"


def _input_state(run: Run) -> list[Markup]:
    """What was wrong with the input: records set aside and texts repaired."""
    counters, examples = run.counters("ingest"), run.metrics("ingest").rows("quarantine_examples")
    repaired = numbers(counters.group("repaired"))
    quarantined = counters.number("quarantined")
    repairs = ", ".join(
        f"{REPAIRS.get(k, k)} in {plural(v, 'document')}" for k, v in repaired.items() if v
    )
    text = (
        f"Quarantined: {plural(quarantined, 'record')}. Repaired:"
        f" {repairs or ('none' if repaired else NOT_MEASURED)}."
    )
    pieces = [tag("p", text, class_="note")]
    if examples:
        rows = [
            (
                foreign(e.text("file") or "–"),
                foreign(e.text("error") or "–"),
                count(e.number("line")),
                count(e.number("byte_offset")),
            )
            for e in examples
        ]
        note = (
            "The first records that are no document: broken JSON, invalid UTF-8, a wrong type."
            " quarantine.jsonl lists all."
        )
        pieces.append(
            table("Records in quarantine", ("file", "error", "line", "byte"), rows, note, left=2)
        )
    return [tag("div", tag("h3", "State of the input"), pieces, class_="tabled")]


def _licences(run: Run) -> Markup:
    licences = numbers(run.metrics("ingest").group("licenses"))
    if not licences:
        return absent("Licences", "The licence of each document")
    total = sum(licences.values())
    ordered = sorted(licences.items(), key=lambda item: (-item[1], item[0]))
    rows = [(foreign(name), amount(n, ordered[0][1]), share(n, total)) for name, n in ordered]
    note = (
        "As declared by each record that was read. Whether a use is allowed is for a person to"
        " decide."
    )
    return table("Licences", ("licence", "documents", "share"), rows, note)


def _rule_table(quality: Facts, hits: Mapping[str | None, Facts]) -> Markup:
    rules = quality.rows("rules")
    if not rules:
        return absent("Rules", "The rule table")
    largest = max((row.number("dropped") or 0 for row in hits.values()), default=0) or 1
    rows, observed = [], 0
    for i, rule in enumerate(rules):
        name = rule.text("name") or f"rule {i + 1}"
        hit = hits.get(name, Facts({}))
        every, first = hit.number("dropped"), hit.number("dropped_first")
        is_off = not any(_bounds(place) for place in (rule, *rule.rows("elsewhere")))
        if every is None and rule.value("drops") is False and not is_off:
            every, first = _hits_of_all(quality, i), 0.0
            observed += 1
        numbered = [tag("span", f"{i + 1}", class_="index"), code(name)]
        hit_cells = ("–", "–") if is_off else (amount(every, largest), count(first))
        criterion = join([_criterion(rule, is_off), _other_bounds(rule)])
        rows.append((numbered, rule.text("preset") or "–", criterion, *hit_cells))
    note = (
        "Hits: documents the rule would drop on its own. First: documents for which it is the first"
        " rule broken, in this order; these add up to all documents dropped. A rule with many hits"
        " and few firsts repeats what earlier rules found."
    )
    if observed:
        note += f" {plural(observed, 'rule')} only observed: hits counted, nothing dropped."
    columns = ("rule", "preset", "keeps documents with", "hits", "first")
    return join([table("Rules", columns, rows, note, left=3), _rules_of_places(rules)])


def _bounds(place: Facts) -> bool:
    """Whether a rule, or an entry of its `elsewhere`, holds some document against a number."""
    return place.value("threshold") is not None or bool(place.group("cuts"))


def _criterion(rule: Facts, is_off: bool) -> Markup:
    """What a document must satisfy, e.g. `num_words ≥ 50`; a rule without any bound is switched
    off."""
    if rule.value("threshold") is None:
        return join(
            [
                code(rule.text("feature") or NOT_MEASURED),
                tag("span", "off", class_="aside") if is_off else None,
            ]
        )
    scope = rule.text("applies_to") or "all"
    criterion = _bound(rule, rule.value("threshold"))
    return (
        criterion
        if scope == "all"
        else join([criterion, tag("span", f"{scope} only", class_="aside")])
    )


def _bound(rule: Facts, threshold: object) -> Markup:
    sign = {"min": "≥", "low": "≥", "below": "≥", "max": "≤", "high": "≤", "above": "≤"}.get(
        rule.text("side") or "", rule.text("side")
    )
    limit = f"{n:,.6g}" if (n := number(threshold)) is not None else str(threshold)
    return code(
        " ".join(part for part in (rule.text("feature"), sign, limit) if part) or NOT_MEASURED
    )


def _other_bounds(rule: Facts) -> Markup | None:
    """By what other numbers differ from the one of the run."""
    axes = ["language"] if rule.group("cuts") else []
    for place in _places(rule):
        axes += [axis for axis in _AXES if place.value(axis) is not None]
        axes += ["language"] if place.group("cuts") else []
    return tag("span", "by " + " and ".join(sorted(set(axes))), class_="aside") if axes else None


_AXES = ("source", "kind", "language")


def _places(rule: Facts) -> list[Facts]:
    """The entries of `elsewhere` that say something: a source without a say leaves a language the
    rule it has everywhere."""

    def asks(place: Facts) -> tuple[object, ...]:
        return (place.value("threshold"), place.group("cuts"), place.value("drops"))

    found = {tuple(place.value(axis) for axis in _AXES): place for place in rule.rows("elsewhere")}

    def wider(labels: tuple[object, ...]) -> list[Facts]:
        """The entries with one label less."""
        fewer = [
            tuple(None if i == j else label for j, label in enumerate(labels))
            for i in range(len(labels))
            if labels[i]
        ]
        return [found[place] for place in fewer if place in found]

    return [
        place
        for labels, place in found.items()
        if not (around := wider(labels)) or any(asks(place) != asks(other) for other in around)
    ]


def _rules_of_places(rules: Sequence[Facts]) -> Markup | None:
    """What rules ask of languages, kinds and sources where that is not what they ask of the
    others."""
    rows: list[tuple[object, ...]] = []
    for rule in rules:
        name = code(rule.text("name") or NOT_MEASURED)
        for place in (rule, *_places(rule)):
            language, threshold = place.value("language"), place.value("threshold")
            labels = [
                foreign(str(label)) if label is not None else "all"
                for axis in _AXES
                for label in (place.value(axis),)
            ]
            if place is not rule and (threshold is not None or not _bounds(place)):
                rows.append(
                    (
                        name,
                        *labels,
                        _bound(rule, threshold) if threshold is not None else "off",
                        _role(place),
                    )
                )
            rows += [
                (name, *labels[:-1], foreign(label), _bound(rule, cut), _role(place))
                for label, cut in place.group("cuts").items()
                if language in (None, label)
            ]
    if not rows:
        return None
    note = (
        "Where a language, a kind or a source has a number of its own, it stands in place of the"
        " one in the table above."
    )
    columns: tuple[str, ...] = ("rule", *_AXES, "keeps documents with", "")
    if all(row[2] == "all" for row in rows):
        rows, columns = [row[:2] + row[3:] for row in rows], columns[:2] + columns[3:]
    title = (
        f"{plural(len(rows), 'threshold')} by"
        f" {'language and source' if len(columns) == 5 else 'language, kind and source'}"
    )
    return folded(title, table(None, columns, rows, note, left=len(columns)))


def _role(place: Facts) -> str:
    """Said of a rule that has a bound for a place and drops nothing there."""
    return "recorded only" if place.value("drops") is False and _bounds(place) else ""


def _hits_of_all(quality: Facts, rule: int) -> float | None:
    """Hits of a rule that only observes: the diagonal of the overlap."""
    matrix = quality.sequence("overlap")
    row = matrix[rule] if rule < len(matrix) and isinstance(matrix[rule], (list, tuple)) else ()
    return number(row[rule]) if rule < len(row) else None


def _overlap(quality: Facts) -> Markup:
    names = [rule.text("name") or f"rule {i + 1}" for i, rule in enumerate(quality.rows("rules"))]
    matrix = [
        [number(v) or 0.0 for v in row]
        for row in quality.sequence("overlap")
        if isinstance(row, (list, tuple))
    ]
    if not names or len(matrix) != len(names) or any(len(row) != len(names) for row in matrix):
        return absent("How rules overlap", "The overlap of rules")
    by_hits = sorted(
        (i for i in range(len(names)) if matrix[i][i] > 0), key=lambda i: -matrix[i][i]
    )[:MOST_RULES_IN_MATRIX]
    used = sorted(by_hits)
    if len(used) < 2:
        return tag(
            "p", "Fewer than two rules had hits, so there is no overlap to show.", class_="note"
        )
    drawn, numbered = [names[i] for i in used], [i + 1 for i in used]
    small = [[matrix[i][j] for j in used] for i in used]
    note = (
        "Documents that break both rules; the darker, the larger their share of the row. Grey: all"
        f" hits of the rule itself. Numbers as in the table above{_only(len(used), names, matrix)}."
    )
    return figure(
        "How rules overlap",
        lambda width: heat(drawn, numbered, small, width, noun="documents"),
        note,
    )


def _only(drawn: int, names: Sequence[str], matrix: Sequence[Sequence[float]]) -> str:
    with_hits = sum(1 for i in range(len(names)) if matrix[i][i] > 0)
    return (
        f"; the {drawn} rules with most hits of {with_hits} that have any"
        if drawn < with_hits
        else "; rules without hits are left out"
    )


def _dropped_by_language(quality: Facts) -> Markup | None:
    dropped = sorted(
        numbers(quality.group("dropped_by_language")).items(), key=lambda item: (-item[1], item[0])
    )
    dropped = [(name, n) for name, n in dropped if n]
    if not dropped:
        return None
    total = sum(n for _, n in dropped)
    marks = [
        Bar(
            name,
            n,
            count(n),
            f"{name}: {plural(n, 'document')} dropped, {percent(n / total)} of all dropped",
        )
        for name, n in dropped
    ]
    note = (
        "Documents that quality rules dropped, by identified language. Rules made for one language"
        " can be unfair to others."
    )
    if len(marks) > LARGEST:
        note += f" The {LARGEST} largest of {len(marks)}."
    return figure("Dropped by language", lambda width: bars(marks[:LARGEST], width), note)
