"""How much text there is, how good and how varied it is, before and after filtering; and in which
mixture it is read."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from tasks.corpus.tally import OTHER
from tasks.report.charts import Bar, Series, bars, histogram, lines
from tasks.report.markup import Markup, foreign, tag
from tasks.report.page import Section, absent, code, figure, folded, legend, pair, table
from tasks.report.quantities import (
    NARROW,
    NOT_MEASURED,
    Facts,
    compact,
    count,
    fixed,
    number,
    numbers,
    percent,
    plural,
    share,
    significant,
    size,
)
from tasks.report.run import Run

STATES = {"ingest": "read", "quality": "good", "dedup": "distinct", "documents": "kept, edited"}
"""What a reader calls the states of the data."""
MOST_HISTOGRAMS = 6
MOST_LABELS = 15
MOST_OF_CURVE = 100
"""How much longer the last beginning on a curve of growth is than the first that is drawn; others
lie on each other."""
FIRST, LAST = "ingest", "documents"


def variety_section(run: Run) -> Section:
    analysis = run.metrics("analysis")
    states = {name: Facts(value) for name, value in analysis.group("states").items()}
    shown = [name for name in STATES if name in states]
    if not shown:
        return Section(
            "variety", "Scale and variety", "Scale and variety were not measured in this run.", []
        )
    first, last = states[shown[0]], states[shown[-1]]
    words, left = first.number("words"), last.number("words")
    growth = _change(
        "the vocabulary grows",
        first.number("growth", "exponent"),
        last.number("growth", "exponent"),
    )
    finding = (
        f"{compact(words)} words were read and {compact(left)} ({share(left, words)}) are left;"
        f" {growth} after filtering"
    )
    languages = [state.number("languages", "effective") for state in (first, last)]
    if languages != [1, 1]:  # of one language there is nothing to weigh
        finding += (
            f", and text falls on as many languages as {significant(languages[1])} of equal size "
            f"(before: {significant(languages[0])})"
        )
    finding += "."
    pieces: list[Markup | Sequence[Markup] | None] = [
        _scale(states, shown),
        _variety(analysis, states, shown, run),
        pair(_growth(analysis), _cluster_law(analysis)),
        _histograms(analysis),
        _changed_by_language(analysis),
        _by_label(analysis, "source", shown),
        _by_label(analysis, "language", shown),
        _domains(analysis, last),
    ]
    return Section("variety", "Scale and variety", finding, pieces)


def mixture_section(run: Run) -> Section:
    mixture = Facts(run.metrics("documents").value("mixture"))
    there, reached, planned = (
        mixture.number(name) for name in ("bytes", "reached_bytes", "planned_bytes")
    )
    if there is None:
        return Section(
            "mixture", "Mixture", "How often documents are read was not measured in this run.", []
        )
    if mixture.value("configured") is not True:
        finding = (
            f"No mixture is set: every training document is read once in an epoch, {size(reached)}"
            " in all."
        )
        return Section("mixture", "Mixture", finding, [])
    times = significant((reached or 0) / there) if there else "–"
    finding = (
        f"One epoch reads {size(reached)} of training text, {times} times what is there; planned"
        f" were {size(planned)}. Validation documents are read once."
    )
    pieces = [_mixed(mixture, axis) for axis in ("source", "language")]
    return Section("mixture", "Mixture", finding, pieces)


def _change(what: str, before: float | None, after: float | None) -> str:
    if before is None or after is None:
        return "how the vocabulary grows was not measured"
    word = (
        "faster"
        if after > before + 0.005
        else "more slowly"
        if after < before - 0.005
        else "as fast"
    )
    return f"{what} {word}" + (" as before" if word == "as fast" else "")


def _scale(states: Mapping[str, Facts], shown: Sequence[str]) -> Markup:
    rows = [
        (
            STATES[name],
            code(name),
            count(states[name].number("documents")),
            size(states[name].number("bytes")),
            compact(states[name].number("words")),
            compact(states[name].number("tokens_estimated")),
        )
        for name in shown
    ]
    note = (
        "The corpus after each stage that takes documents away. In scripts written without spaces"
        " every letter is a word. Tokens are estimated from words before there is a tokenizer: 4/3"
        " per word, 1 per such letter."
    )
    return table(
        "Scale",
        ("state", "after", "documents", "text", "words", "tokens, estimated"),
        rows,
        note,
        left=2,
    )


def _variety(
    analysis: Facts, states: Mapping[str, Facts], shown: Sequence[str], run: Run
) -> Markup:
    def row(name: str, meaning: str, read: Callable[[Facts], str]) -> tuple[object, ...]:
        return (
            tag("div", name, tag("span", meaning), class_="measure"),
            *(read(states[state]) for state in shown),
        )

    def further(facts: Facts, n: int) -> str:
        longer, shorter = (
            facts.number("entropy_bits", f"{n}gram"),
            facts.number("entropy_bits", f"{n - 1}gram"),
        )
        return NOT_MEASURED if longer is None or shorter is None else fixed(longer - shorter, 2)

    def vendi(facts: Facts) -> str:
        value, high = facts.number("vendi", "value"), facts.number("vendi", "high")
        return (
            NOT_MEASURED
            if value is None or high is None
            else f"{fixed(value, 1)} ± {fixed(high - value, 1)}"
        )

    documents = analysis.number("vendi_documents")
    rows = [
        row(
            "Sources",
            "effective number, by bytes",
            lambda f: significant(f.number("sources", "effective")),
        ),
        row(
            "Concentration",
            "HHI of sources; 1: a single one",
            lambda f: fixed(f.number("sources", "hhi")),
        ),
        row(
            "Languages",
            "effective number, by bytes",
            lambda f: significant(f.number("languages", "effective")),
        ),
        row(
            "Domains",
            "effective number, by documents",
            lambda f: significant(f.number("domains", "effective")),
        ),
        row(
            "Vocabulary growth",
            "exponent of Heaps’ law",
            lambda f: fixed(f.number("growth", "exponent")),
        ),
        row(
            "Word entropy",
            "bits a word tells",
            lambda f: fixed(f.number("entropy_bits", "1gram"), 2),
        ),
        row("… after one word", "bits the next word tells", lambda f: further(f, 2)),
        row("… after two words", "bits the next word tells", lambda f: further(f, 3)),
        row(f"Unlike of {count(documents)}", "Vendi score of documents, 95 % interval", vendi),
    ]
    note = (
        "Effective number: as many labels of equal size would be as varied. Entropies, growth and"
        f" Vendi score are of samples of {count(run.counters('analysis').number('sample_units'))}"
        " words in every state: they grow with a sample, so only equal samples compare. More is"
        " more varied, except for HHI; what repeats itself or copies others lowers them."
    )
    return table("Variety", ("measure", *(STATES[name] for name in shown)), rows, note)


def _growth(analysis: Facts) -> Markup:
    series = []
    for state, tone in ((FIRST, "b"), (LAST, "a")):
        points = [
            (n, types)
            for point in analysis.sequence("growth_curves", state)
            if (n := _at(point, 0)) and (types := _at(point, 1))
        ]
        if points:
            series.append(
                Series(
                    STATES[state],
                    [p for p in points if p[0] * MOST_OF_CURVE >= points[-1][0]],
                    tone,
                    dots=True,
                )
            )
    if not series:
        return absent("Vocabulary growth", "How the vocabulary grows")
    exponents = [analysis.number("states", state, "growth", "exponent") for state in (FIRST, LAST)]
    note = (
        "Different words among the first words of the sample. They grow as a power of it (Heaps’"
        f" law) with the exponent {fixed(exponents[1])} in what was kept and {fixed(exponents[0])}"
        " in what was read; nearer to 1 is richer, or noisier."
    )
    return figure(
        "Vocabulary growth",
        lambda width: lines(
            series, width, x_label="words", y_label="different words", from_zero=True
        ),
        note,
        legend(("b point", STATES[FIRST]), ("a point", STATES[LAST])),
        half=True,
    )


def _at(point: object, place: int) -> float | None:
    return number(point[place]) if isinstance(point, (list, tuple)) and len(point) > place else None


def _cluster_law(analysis: Facts) -> Markup | None:
    law = Facts(analysis.value("cluster_law"))
    exponent, error = law.number("exponent"), law.number("standard_error")
    if exponent is None:
        return absent("Law of duplicates", "The law of cluster sizes (it takes twenty clusters)")
    text = (
        f"Clusters of duplicates become rarer by size to the power of −{fixed(exponent, 2)} (±"
        f" {fixed(error, 2)}), fitted to {plural(law.number('num_clusters'), 'cluster')} of two or"
        " more. The largest distance of fitted and true distribution is"
        f" {fixed(law.number('distance'), 3)}. Below 2 a few huge clusters hold most copies; above"
        " 3 copies come in pairs."
    )
    return tag(
        "div", tag("h3", "Law of duplicates"), tag("p", text, class_="note"), class_="tabled"
    )


def _histograms(analysis: Facts) -> list[Markup]:
    """Features whose distribution filtering changed most, by the share of documents that would have
    to move."""
    changed = []
    for name, facts in analysis.items("histograms"):
        before, after = (
            [number(v) or 0.0 for v in facts.sequence("states", state)] for state in (FIRST, LAST)
        )
        low, high = ([number(v) or 0.0 for v in facts.sequence(side)] for side in ("low", "high"))
        if (
            not (len(before) == len(after) == len(low) == len(high))
            or len(low) < 2
            or not sum(before)
            or not sum(after)
        ):
            continue
        moved = (
            sum(abs(b / sum(before) - a / sum(after)) for b, a in zip(before, after, strict=True))
            / 2
        )
        changed.append((moved, name, low, high, before, after))
    if not changed:
        return [absent("What filtering changed", "The distribution of features")]
    figures = [
        _histogram(*one)
        for one in sorted(changed, key=lambda one: (-one[0], one[1]))[:MOST_HISTOGRAMS]
    ]
    heading = tag("h3", "What filtering changed most")
    note = (
        "Documents by value of a feature. Pale: all that were read. Solid: those kept. The six"
        " features that changed most."
    )
    return [
        tag("div", heading, tag("p", note, class_="note"), class_="tabled"),
        *(shown for i in range(0, len(figures), 2) if (shown := pair(*figures[i : i + 2]))),
    ]


def _histogram(
    moved: float,
    name: str,
    low: Sequence[float],
    high: Sequence[float],
    before: Sequence[float],
    after: Sequence[float],
) -> Markup:
    # A bin of zeros alone, and gaps of bins that nobody is in, become bins like the others.
    edges = sorted({*low, *high})
    log = edges[-1] > 1.5
    behind, counts = [0.0] * (len(edges) - 1), [0.0] * (len(edges) - 1)
    for start, b, a in zip(low, before, after, strict=True):
        place = edges.index(start)
        behind[place] += b
        counts[place] += a
    note = f"{percent(moved)} of the documents would have to move to make both alike."
    return figure(
        code(name),
        lambda width: histogram(
            edges, counts, width, x_label="value", noun="documents", log=log, behind=behind
        ),
        note,
        half=True,
    )


def _changed_by_language(analysis: Facts) -> Markup | None:
    """The features that changed most in each language, which the figures of all of them may
    hide."""
    rows = []
    for language, facts in analysis.items("changed_by_language"):
        moved = numbers(facts.group())
        for name in sorted(moved, key=lambda name: (-moved[name], name)):
            rows.append((foreign(language), code(name), percent(moved[name])))
    if not rows:
        return None
    note = (
        "The share of a language’s documents that would have to move to another bin to make what"
        " was kept like what was read. Of languages of which at least a hundred documents were"
        " kept; features.parquet of the artifact has all bins."
    )
    return folded(
        "What filtering changed most, by language",
        table(None, ("language", "feature", "moved"), rows, note, left=2),
    )


def _by_label(analysis: Facts, axis: str, shown: Sequence[str]) -> Markup | None:
    rows = []
    for facts in analysis.rows(f"by_{axis}"):
        label = facts.text(axis) or "–"
        cells: list[object] = [label if label == OTHER else foreign(label)]
        for state in shown:
            cells.append(count(facts.number(state, "documents") or 0))
        cells += [size(facts.number(state, "bytes") or 0) for state in (shown[0], shown[-1])]
        rows.append(
            (*cells, share(facts.number(shown[-1], "bytes") or 0, facts.number(shown[0], "bytes")))
        )
    if not rows:
        return None
    columns = [
        axis,
        *(STATES[state] for state in shown),
        f"text {STATES[shown[0]]}",
        f"text {STATES[shown[-1]]}",
        "text left",
    ]
    return folded(
        f"State by state, by {axis}",
        table(
            None, columns, rows, "Documents in each state, and the bytes of the first and the last."
        ),
    )


def _domains(analysis: Facts, last: Facts) -> Markup | None:
    rows = [
        (foreign(f.text("domain") or "–"), count(f.number("documents")), size(f.number("bytes")))
        for f in analysis.rows("domains")
    ]
    if not rows:
        return None
    summary = (
        f"The largest of {plural(last.number('domains', 'num_labels'), 'domain')} in what was kept"
    )
    return folded(summary, table(None, ("registrable domain", "documents", "text"), rows))


def _mixed(mixture: Facts, axis: str) -> list[Markup]:
    found = sorted(
        mixture.items(f"by_{axis}"),
        key=lambda item: (-(item[1].number("reached_bytes") or 0), item[0]),
    )
    total, planned_total, there_total = (
        sum(f.number(name) or 0 for _, f in found)
        for name in ("reached_bytes", "planned_bytes", "bytes")
    )
    marks, rows = [], []
    for name, f in found:
        there, planned, reached = (
            f.number(key) or 0 for key in ("bytes", "planned_bytes", "reached_bytes")
        )
        times = f"{significant(reached / there)}{NARROW}×" if there else "–"
        title = f"{name}: {size(there)} there, {size(planned)} planned, {size(reached)} reached"
        marks.append(Bar(name, reached, f"{share(reached, total)} · {times}", title, whole=planned))
        rows.append(
            (
                name if name == OTHER else foreign(name),
                size(there),
                share(there, there_total),
                share(planned, planned_total),
                share(reached, total),
                times,
                count(f.number("documents")),
            )
        )
    note = (
        "Solid: bytes one epoch reads, with their share and how often it reads what is there. Pale:"
        " planned. They differ where documents are few and a fraction of them is repeated, or where"
        " a cap on repeats holds."
    )
    columns = (axis, "there", "share there", "planned", "reached", "read", "documents")
    chart = figure(
        f"Mixture by {axis}",
        lambda width: bars(marks[:MOST_LABELS], width),
        note,
        legend(("a", "reached"), ("pale", "planned")),
    )
    return [chart, folded(f"{plural(len(rows), 'row')} by {axis}", table(None, columns, rows))]
