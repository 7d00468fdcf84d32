"""Writes quality rules as a query over the sidecars of quality.

DuckDB reads columns in place, on all cores. The query decides as
`tasks.quality.rules.judge` does; a test compares the two.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from llm_core.config import ConfigError, nearest
from tasks.quality.config import QualityConfig
from tasks.quality.presets import LISTING_WORDS, MIN_LINES, Rule
from tasks.quality.rules import (
    UNSEGMENTED_FROM,
    WITHOUT_TERMINAL_PUNCTUATION,
    RuleBook,
)

NUM_SAMPLES = 5


def replay_query(
    quality: Sequence[str],
    language: Sequence[str],
    documents: Sequence[str],
    reason: str,
    kind: str,
) -> str:
    """Groups of (source, language, bit of the old reason or null, new reason or null, documents,
    bytes, smallest ids with their file and row)."""
    # x & -x is the lowest bit of x, and bits are in the order of the rules: the first that drops.
    # Rows of the three are the same documents in the same order: joined by position, with no table
    # of ids in memory.
    return f"""
    WITH judged AS (
        SELECT d.source AS source, l.language AS language, q.id AS id, q.num_bytes AS num_bytes,
            {{'id': q.id, 'file': q.filename, 'row': q.file_row_number}} AS place,
            CASE WHEN q.drops = 0 THEN NULL ELSE q.drops & ((~q.drops) + 1::UBIGINT) END AS old_bit,
            {reason} AS new_reason
        FROM {_table(quality, ", filename = true, file_row_number = true")} q
        POSITIONAL JOIN (SELECT language FROM {_table(language)}) l
        POSITIONAL JOIN (SELECT source, {kind} AS kind FROM {_table(documents)}) d
    )
    SELECT source, language, old_bit, new_reason, count(*), sum(num_bytes),
        min_by(place, id, {NUM_SAMPLES}) FILTER ((old_bit IS NULL) <> (new_reason IS NULL))
    FROM judged GROUP BY ALL ORDER BY ALL
    """


def kind_expression(config: QualityConfig) -> str:
    """An expression of the kind that `tasks.quality.rules.document_kind` finds."""
    if not config.by_kind:
        return "NULL"
    of_source = [
        f"WHEN source = {_text(source)} THEN {_text(kind)}"
        for source, kind in config.kind_of_source.items()
    ]
    given = f"CASE {' '.join(of_source)} END" if of_source else "NULL"
    if config.kind_key is None:
        return given
    pointer = _text("/" + config.kind_key.replace("~", "~0").replace("/", "~1"))
    own = f"json_extract_string(metadata, {pointer})"
    return f"CASE WHEN {own} IN ({_texts(config.by_kind)}) THEN {own} ELSE {given} END"


def reason_expression(book: RuleBook, fields: dict[str, str]) -> str:
    """An expression of the first rule that drops a document, by its source, language and kind; null
    where it is kept."""
    cases = []
    for place in book.places():
        rules = [j.rule for j in book.judgements(*place) if j.drops and j.rule.is_on]
        whens = [f"WHEN {_breaks(rule, fields)} THEN {_text(rule.name)}" for rule in rules]
        first = f"CASE {' '.join(whens)} END" if rules else "NULL"
        columns = {"d.source": place.source, "l.language": place.language, "d.kind": place.kind}
        where = [f"{name} = {_text(label)}" for name, label in columns.items() if label is not None]
        cases.append((len(where), " AND ".join(where), first))
    # The narrowest place first. Every combination has its own, so of two as narrow only one can
    # hold after all narrower ones.
    ordered = sorted(cases, key=lambda case: -case[0])
    branches = " ".join(f"WHEN {where} THEN {first}" for _, where, first in ordered if where)
    rest = next(first for _, where, first in ordered if not where)
    return f"CASE {branches} ELSE {rest} END" if branches else rest


def _breaks(rule: Rule, fields: dict[str, str]) -> str:
    """A condition as `tasks.quality.rules.breaks` and `judge` have it; a missing value breaks no
    rule."""
    if rule.feature not in fields:
        raise ConfigError(
            f"{rule.name} looks at {rule.feature}, which this run did not measure;"
            f" {nearest(rule.feature, list(fields))}"
        )
    column = f'CAST(q."{rule.feature}" AS DOUBLE)'
    conditions = [f"{column} {'<' if rule.side == 'min' else '>'} {_threshold(rule)}"]
    if fields[rule.feature] in ("float", "double"):
        conditions.append(f"NOT isnan({column})")  # DuckDB takes NaN for the largest number
    is_segmented = f"q.unsegmented_frac < {UNSEGMENTED_FROM!r}"
    words = f"q.mean_sentence_words / CASE WHEN {is_segmented} THEN 1 ELSE 2 END"
    fewest, most = LISTING_WORDS
    scopes = {
        "all": "true",
        "segmented": is_segmented,
        "terminal": f"l.language NOT IN ({_texts(WITHOUT_TERMINAL_PUNCTUATION)})",
        "lines": f"q.num_lines >= {MIN_LINES}",
        "listing": f"NOT ({words} > {fewest} AND {words} <= {most})",
    }
    conditions += [scopes[scope] for scope in rule.applies_to.split("_")]
    if rule.languages:
        conditions.append(f"l.language IN ({_texts(rule.languages)})")
    return " AND ".join(conditions)


def _threshold(rule: Rule) -> str:
    """The threshold of a row's language; null, which nothing is under or over, where only other
    languages have one."""
    threshold = "NULL" if rule.threshold is None else f"CAST('{float(rule.threshold)!r}' AS DOUBLE)"
    if not rule.cuts:
        return threshold
    branches = " ".join(
        f"WHEN {_text(language)} THEN CAST('{cut!r}' AS DOUBLE)" for language, cut in rule.cuts
    )
    return f"(CASE l.language {branches} ELSE {threshold} END)"


def _table(paths: Sequence[str], options: str = "") -> str:
    """The rows of files and nothing else: DuckDB takes `language=de/` in a path for a column and
    `[1]` for a pattern."""
    literal = [re.sub(r"[\[*?]", r"[\g<0>]", path) for path in paths]
    return f"read_parquet([{_texts(literal)}], hive_partitioning = false{options})"


def _texts(values: Iterable[str]) -> str:
    return ", ".join(map(_text, values))


def _text(value: str) -> str:
    return "'" + value.replace("'", "''") + "'"
