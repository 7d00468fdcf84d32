"""Counts what quality rules drop: per part, per label, and as the metrics of the stage."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow as pa

from tasks.corpus.documentset import sum_counters
from tasks.corpus.score_labels import DIMENSIONS
from tasks.corpus.tally import OTHER, largest
from tasks.quality.described_rules import describe_rule
from tasks.quality.rules import RuleBook


def count_part(
    book: RuleBook, verdicts: np.ndarray, drops: np.ndarray, labels_of: Mapping[str, np.ndarray]
) -> dict[str, Any]:
    bits = np.arange(len(book.names), dtype=np.uint64)[:, None]
    # One row of zeros and ones for each rule.
    broken = ((verdicts >> bits) & np.uint64(1)).astype(np.int64)
    hits = ((drops >> bits) & np.uint64(1)).sum(axis=1).tolist()
    dropped = drops != 0
    # The lowest bit set is the first rule, and below it are as many bits as its number.
    some = drops[dropped]
    reasons = np.bitwise_count((some & -some) - np.uint64(1)).astype(np.int64)
    first = np.bincount(reasons, minlength=len(book.names)).tolist()
    together = (broken @ broken.T).tolist()
    return {
        "read": len(verdicts),
        "kept": int((~dropped).sum()),
        "dropped": {name: count for name, count in zip(book.names, first, strict=True) if count},
        "hits": dict(zip(book.names, hits, strict=True)),
        "overlap": {
            name: dict(zip(book.names, row, strict=True))
            for name, row in zip(book.names, together, strict=True)
        },
        **{
            f"by_{axis}": _drop_table(book, labels, dropped, reasons)
            for axis, labels in labels_of.items()
        },
    }


def count_by_label(
    book: RuleBook, verdicts: np.ndarray, judged: Mapping[str, np.ndarray], labels: pa.Table
) -> dict[str, Any]:
    """{rule on a score: {dimension: {label: documents and bytes, scored and broken}}}, whatever
    other rules say."""
    features = {
        j.rule.name: j.rule.feature for place in book.places() for j in book.judgements(*place)
    }
    sizes = labels["bytes"].to_numpy()
    counts: dict[str, Any] = {}
    for bit, name in enumerate(book.names):
        if features[name] not in judged:
            continue
        broken = ((verdicts >> np.uint64(bit)) & np.uint64(1)).astype(np.int64)
        scored = ~np.isnan(judged[features[name]])
        counts[name] = {}
        for dimension in DIMENSIONS:
            values, places = np.unique(
                np.array(labels[dimension].to_pylist(), object).astype(str), return_inverse=True
            )
            table = {
                "documents": np.bincount(places),
                "bytes": np.bincount(places, sizes),
                "scored": np.bincount(places, scored),
                "removed": np.bincount(places, broken),
                "removed_bytes": np.bincount(places, broken * sizes),
            }
            counts[name][dimension] = {
                str(value): {column: int(numbers[i]) for column, numbers in table.items()}
                for i, value in enumerate(values)
            }
    return counts


def _drop_table(
    book: RuleBook, labels: np.ndarray, dropped: np.ndarray, reasons: np.ndarray
) -> dict[str, Any]:
    """{label: {read, kept, dropped {REASON: n}}}; reasons are those of the dropped documents, in
    order."""
    values, places = np.unique(labels.astype(str), return_inverse=True)
    size, rules = len(values), len(book.names)
    read = np.bincount(places, minlength=size).tolist()
    # Label and rule as one number, counted at once.
    counts = np.bincount(places[dropped] * rules + reasons, minlength=size * rules)
    table = {}
    for label, num, row in zip(values, read, counts.reshape(size, rules).tolist(), strict=True):
        lost = {name: count for name, count in zip(book.names, row, strict=True) if count}
        table[str(label)] = {"read": num, "kept": num - sum(row), "dropped": lost}
    return table


def summarize(book: RuleBook, totals: Mapping[str, Any]) -> dict[str, Any]:
    overlap, hits, first = totals["overlap"], totals["hits"], totals["dropped"]
    rules = [describe_rule(book, bit, name) for bit, name in enumerate(book.names)]
    names = [rule["name"] for rule in rules if rule["drops"]]
    of_languages = totals["by_language"]
    return {
        "rules": rules,
        "funnel": [
            {"rule": name, "dropped": hits[name], "dropped_first": first.get(name, 0)}
            for name in names
        ],
        "overlap": [[overlap[a][b] for b in book.names] for a in book.names],
        "by_source": _largest(totals["by_source"]),
        "by_language": _largest(of_languages),
        **({"by_kind": totals["by_kind"]} if "by_kind" in totals else {}),
        "dropped_by_language": {
            label: row["read"] - row["kept"]
            for label, row in of_languages.items()
            if row["read"] > row["kept"]
        },
        "score_rules": {
            rule: {dimension: largest(table) for dimension, table in tables.items()}
            for rule, tables in totals.get("score_rules", {}).items()
        },
    }


def _largest(table: Mapping[str, Any]) -> dict[str, Any]:
    """The labels with most documents; the rest, and labels that are not names, as `(other)`."""
    shown = largest(
        {label: {"documents": row["read"], "bytes": row["read"]} for label, row in table.items()}
    )
    rest = [row for label, row in table.items() if label not in shown]
    return {label: table[label] for label in shown if label in table} | (
        {OTHER: sum_counters(rest)} if rest else {}
    )
