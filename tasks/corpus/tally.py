"""Counts documents and bytes by label, in small tables for metrics that stay bounded whatever the
labels are."""

from __future__ import annotations

import itertools
import re
from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa

from tasks.corpus.documentset import sum_counters

MAX_LABELS = 100
MAX_LABEL_CHARS = 80
OTHER = "(other)"
# `npm:@scope/name` is a name, `someone@host` is not.
ADDRESS = re.compile(r"(?<!\S)@?[^\s@]*[^\W_]@")

Tally = dict[str, dict[str, int]]
"""{label: {documents, bytes}}."""


def add_to_tally(tally: Tally, labels: Sequence[str | None], sizes: Sequence[int]) -> None:
    """Add many documents, none for None.

    Runs of one label, which are the rule in a file, cost as much as one document.
    """
    begin = 0
    for label, run in itertools.groupby(labels):
        end = begin + sum(1 for _ in run)
        if label is not None:
            entry = tally.setdefault(label, {"documents": 0, "bytes": 0})
            entry["documents"] += end - begin
            entry["bytes"] += sum(sizes[begin:end])
        begin = end


def tally_columns(labels: pa.ChunkedArray | pa.Array, sizes: pa.ChunkedArray | pa.Array) -> Tally:
    """Documents and bytes of each label, without a Python object per document."""
    grouped = pa.table({"label": labels, "bytes": sizes}).group_by("label", use_threads=False)
    table = grouped.aggregate([("bytes", "count"), ("bytes", "sum")]).sort_by("label")
    return {
        row["label"]: {"documents": row["bytes_count"], "bytes": row["bytes_sum"]}
        for row in table.to_pylist()
    }


def largest(tally: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """The largest entries by bytes; the rest, and labels that are not names, as `(other)`.

    A label that is long or holds an address is not a name.
    """
    shown: dict[str, dict[str, Any]] = {}
    other: list[Mapping[str, Any]] = []
    for label, entry in sorted(tally.items(), key=lambda item: (-item[1]["bytes"], item[0])):
        is_name = (
            len(label) <= MAX_LABEL_CHARS and label.isprintable() and not ADDRESS.search(label)
        )
        if is_name and len(shown) < MAX_LABELS:
            shown[label] = dict(entry)
        else:
            other.append(entry)
    return shown | ({OTHER: sum_counters(other)} if other else {})
